package queueobject

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tranche-dev/tranche/extender/objectwriter"
	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
)

func TestConditionsKeepTheirTimes(t *testing.T) {
	early, now := metav1.NewTime(time.Unix(100, 0)), time.Unix(200, 5)
	old := []metav1.Condition{
		{Type: "Foreign", Status: metav1.ConditionTrue, Reason: "X", LastTransitionTime: early},
		{Type: v1alpha1.QueueReady, Status: metav1.ConditionTrue, Reason: "X", LastTransitionTime: early, ObservedGeneration: 3},
		{Type: v1alpha1.QueueOverLimit, Status: metav1.ConditionTrue, Reason: "X", LastTransitionTime: early, ObservedGeneration: 3},
		{Type: v1alpha1.QueueDeservedScaled, Status: metav1.ConditionTrue, Reason: "X", LastTransitionTime: early, ObservedGeneration: 3},
	}
	before := (&v1alpha1.QueueStatus{Conditions: old}).DeepCopy().Conditions
	got := conditionsOf(old, []metav1.Condition{
		{Type: v1alpha1.QueueReady, Status: metav1.ConditionTrue, Reason: "Y", LastTransitionTime: metav1.NewTime(now), ObservedGeneration: 4},
		{Type: v1alpha1.QueueOverLimit, Status: metav1.ConditionFalse, ObservedGeneration: 4},
		{Type: "Foreign", Status: metav1.ConditionFalse, Reason: "Earlier"},
	}, now)
	want := []metav1.Condition{
		old[0],
		{Type: v1alpha1.QueueReady, Status: metav1.ConditionTrue, Reason: "Y", LastTransitionTime: early, ObservedGeneration: 4},
		{Type: v1alpha1.QueueOverLimit, Status: metav1.ConditionFalse, Reason: "OverLimit", LastTransitionTime: metav1.NewTime(time.Unix(200, 0)), ObservedGeneration: 4},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("conditions (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, old); diff != "" {
		t.Errorf("the old conditions were changed (-before +after):\n%s", diff)
	}
}

func TestMessagesAreCutToWhatTheAPITakes(t *testing.T) {
	fits := strings.Repeat("ö", objectwriter.MaxConditionMessage)
	for name, tc := range map[string]struct{ message, want string }{
		"fits":     {fits, fits},
		"too long": {fits + "ö", strings.Repeat("ö", objectwriter.MaxConditionMessage-1) + "…"},
	} {
		reported := []metav1.Condition{{Type: v1alpha1.QueueReady, Message: tc.message}}
		if got := conditionsOf(nil, reported, time.Unix(1, 0))[0].Message; got != tc.want {
			t.Errorf("%s: %d bytes, want %d", name, len(got), len(tc.want))
		}
		if reported[0].Message != tc.message {
			t.Errorf("%s: the report was changed", name)
		}
	}
}
