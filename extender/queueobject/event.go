package queueobject

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
)

// tell puts events on a queue for conditions whose status changed. What was
// written before is compared, so that nothing is told twice, not even by a new
// leader.
func (w *Writer) tell(queue *v1alpha1.Queue, before, after *v1alpha1.QueueStatus) {
	for _, c := range after.Conditions {
		old := meta.FindStatusCondition(before.Conditions, c.Type)
		if old != nil && old.Status == c.Status || old == nil && good(c) {
			continue // a queue begins well
		}
		kind := corev1.EventTypeWarning
		if good(c) {
			kind = corev1.EventTypeNormal
		}
		w.recorder.Event(&corev1.ObjectReference{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: "Queue",
			Name: queue.Name, UID: queue.UID, ResourceVersion: queue.ResourceVersion,
		}, kind, c.Reason, cmp.Or(c.Message, c.Type+" is "+string(c.Status)))
	}
}

// good says whether a condition is as it should be.
func good(c metav1.Condition) bool {
	if c.Type == v1alpha1.QueueReady {
		return c.Status == metav1.ConditionTrue
	}
	return c.Status == metav1.ConditionFalse
}
