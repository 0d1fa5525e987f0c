package queueobject

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tranche-dev/tranche/extender/objectwriter"
	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
)

// ours are the conditions that the planner alone sets: what it does not report
// does not hold any more.
var ours = []string{v1alpha1.QueueReady, v1alpha1.QueueDeservedScaled, v1alpha1.QueueOverLimit}

// statusOf returns what to write in the place of old: what is reported, with
// the times of conditions that did not change. It shares nothing with reported
// that it changes.
func statusOf(old, reported *v1alpha1.QueueStatus, now time.Time) v1alpha1.QueueStatus {
	s := *reported.DeepCopy() // the planner's own, and requests last
	s.Conditions = conditionsOf(old.Conditions, s.Conditions, now)
	return s
}

// conditionsOf puts reported in the place of our conditions among old. Those of
// others stay as they are, even if reported has them as they once were.
func conditionsOf(old, reported []metav1.Condition, now time.Time) []metav1.Condition {
	conditions := slices.DeleteFunc(slices.Clone(old), func(c metav1.Condition) bool {
		return slices.Contains(ours, c.Type) && meta.FindStatusCondition(reported, c.Type) == nil
	})
	for _, c := range reported {
		if !slices.Contains(ours, c.Type) {
			continue
		}
		objectwriter.SetCondition(&conditions, c, now)
	}
	return conditions
}

// pressing says whether the change from before to after decides whether pods
// start, so that it must not wait. Messages may hold numbers and do not count.
func pressing(before, after *v1alpha1.QueueStatus) bool {
	return before.Open != after.Open || !slices.EqualFunc(before.Conditions, after.Conditions, func(a, b metav1.Condition) bool {
		return a.Type == b.Type && a.Status == b.Status && a.Reason == b.Reason && a.ObservedGeneration == b.ObservedGeneration
	})
}
