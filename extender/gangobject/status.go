package gangobject

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tranche-dev/tranche/extender/objectwriter"
	"github.com/tranche-dev/tranche/extender/planner"
	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/contract"
)

// statusOf returns what to write in the place of old: the report's status, cut
// to what the API server takes, with the times of conditions that did not
// change. It shares nothing with report that it changes.
func statusOf(old *v1alpha1.GangStatus, report *planner.GangReport, gang *v1alpha1.Gang, now time.Time) v1alpha1.GangStatus {
	s := *report.Status.DeepCopy()
	if s.Phase == "" {
		s.Phase = v1alpha1.GangPending
	}
	if !report.Keep {
		s.Members, s.Held, s.Bound, s.Running, s.Placement = 0, 0, 0, 0, nil
	}
	// The planner may not have seen yet what was written last. And the report
	// is about the size that it names, which may have been written with it.
	s.ObservedGeneration = max(s.ObservedGeneration, old.ObservedGeneration)
	if gang.Labels[contract.ManagedByLabel] == contract.ManagedByTranche && gang.Spec.MinCount == report.MinCount {
		s.ObservedGeneration = max(s.ObservedGeneration, gang.Generation)
	}
	s.Reasons = reasonsOf(s.Reasons)
	s.Placement = placementOf(s.Placement)
	s.Conditions = conditionsOf(old.Conditions, s.Conditions, s.ObservedGeneration, now)
	return s
}

// reasonsOf keeps the first reason of each type.
func reasonsOf(reasons []v1alpha1.GangReason) []v1alpha1.GangReason {
	var kept []v1alpha1.GangReason
	for _, r := range reasons {
		if len(kept) == v1alpha1.MaxGangReasons {
			break
		}
		if slices.ContainsFunc(kept, func(k v1alpha1.GangReason) bool { return k.Type == r.Type }) {
			continue
		}
		r.Message = objectwriter.Shorten(r.Message, v1alpha1.MaxGangReasonMessage)
		kept = append(kept, r)
	}
	return kept
}

func placementOf(placement []v1alpha1.GangPlacement) []v1alpha1.GangPlacement {
	placement = placement[:min(len(placement), v1alpha1.MaxGangPlacements)]
	for i := range placement {
		p := &placement[i]
		p.Pods = p.Pods[:min(len(p.Pods), v1alpha1.MaxGangPlacementPods)]
	}
	return placement
}

// conditionsOf puts changed into old: conditions that the report does not name
// stay, since somebody else may have set them.
func conditionsOf(old, changed []metav1.Condition, generation int64, now time.Time) []metav1.Condition {
	conditions := slices.Clone(old)
	for _, c := range changed {
		if c.ObservedGeneration == 0 {
			c.ObservedGeneration = generation
		}
		objectwriter.SetCondition(&conditions, c, now)
	}
	return conditions
}
