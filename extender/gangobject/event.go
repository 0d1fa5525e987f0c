package gangobject

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
)

// The reasons of Normal events on Gangs. Those of the others are reasons of
// the status.
const (
	eventHeld     = "Held"
	eventStarted  = "Started"
	eventFinished = "Finished"
)

// tell puts events on a gang for what is new in its status. What was written
// before is compared, so that nothing is told twice, not even by a new leader.
func (w *Writer) tell(gang *v1alpha1.Gang, before, after *v1alpha1.GangStatus) {
	event := func(kind, reason, message string) {
		w.recorder.Event(&corev1.ObjectReference{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: "Gang",
			Namespace: gang.Namespace, Name: gang.Name, UID: gang.UID, ResourceVersion: gang.ResourceVersion,
		}, kind, reason, message)
	}
	switch {
	case before.Phase == after.Phase:
	case after.Phase == v1alpha1.GangHeld:
		event(corev1.EventTypeNormal, eventHeld, fmt.Sprintf("places on %d node(s) are held for %d member(s)", len(after.Placement), after.Held))
	case started(after) && !started(before):
		event(corev1.EventTypeNormal, eventStarted, fmt.Sprintf("%d members are bound to %d nodes", after.Bound, len(after.Placement)))
	case after.Phase == v1alpha1.GangFinished:
		event(corev1.EventTypeNormal, eventFinished, "No member is left that will run")
	}
	if r := first(after); r.Type != "" && r.Type != first(before).Type {
		kind := corev1.EventTypeWarning
		if r.Type == v1alpha1.ReasonWaitingForMembers {
			// Every gang does at first.
			kind = corev1.EventTypeNormal
		}
		event(kind, r.Type, r.Message)
	}
}

// started says whether all of a gang's minimum were bound once.
func started(s *v1alpha1.GangStatus) bool {
	return meta.IsStatusConditionTrue(s.Conditions, v1alpha1.GangStarted) ||
		s.Phase == v1alpha1.GangBound || s.Phase == v1alpha1.GangRunning
}

// first is the most important reason, empty if there is none.
func first(s *v1alpha1.GangStatus) v1alpha1.GangReason {
	if len(s.Reasons) == 0 {
		return v1alpha1.GangReason{}
	}
	return s.Reasons[0]
}
