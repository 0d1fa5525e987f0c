package planner

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tranche-dev/tranche/extender/internal/fixture"
	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/placement"
)

func TestFilterAnswersByRequestAndNode(t *testing.T) {
	terminating := fixture.Pod("p", "10")
	terminating.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	model := func(name string) map[string]string { return map[string]string{contract.ModelAnnotation: name} }
	annotated := func(annotations map[string]string, limits ...string) *testPod {
		pod := fixture.Pod("p", limits...)
		pod.Annotations = annotations
		return pod
	}
	nodes := []string{"full", "half", "empty", "foreign", "stranger"}
	no := placement.NoInventory
	cases := map[string]struct {
		pod  *testPod
		want []Reason
	}{
		"a share":                   {fixture.Pod("p", "60"), []Reason{placement.NotEnoughFree, placement.NotEnoughFree, "", no, no}},
		"a smaller share":           {fixture.Pod("p", "50"), []Reason{placement.NotEnoughFree, "", "", no, no}},
		"a whole GPU":               {fixture.Pod("p", "1 GPU"), []Reason{placement.NoWholeGPU, placement.NoWholeGPU, "", "", no}},
		"two whole GPUs":            {fixture.Pod("p", "2 GPU"), []Reason{placement.TooFewGPUs, placement.TooFewGPUs, "", "", no}},
		"a whole GPU of a model":    {annotated(model(fixture.Model), "1 GPU"), []Reason{placement.NoWholeGPU, placement.NoWholeGPU, "", no, no}},
		"a model that is not there": {annotated(model("B200"), "50"), []Reason{placement.NoSuchModel, placement.NoSuchModel, placement.NoSuchModel, no, no}},
		"no GPU":                    {fixture.Pod("p", ""), []Reason{"", "", "", "", ""}},
		"a broken request":          {fixture.Pod("p", "101"), []Reason{Invalid, Invalid, Invalid, Invalid, Invalid}},
		"a zero":                    {fixture.Pod("p", "0"), []Reason{Invalid, Invalid, Invalid, Invalid, Invalid}},
		"a pod on its way out":      {terminating, []Reason{Deleting, Deleting, Deleting, Deleting, Deleting}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			run(t, func(k *kit) {
				k.node("full", 1)
				k.node("half", 1)
				k.node("empty", 2)
				k.p.ObserveNode(k.Context(), view.NodeOf(fixture.ForeignNode("foreign"), k.p.opts.Resources))
				k.observe(
					fixture.Bound(k, fixture.Pod("a", "100"), "full", one(fixture.GPU("full", 0), 100)),
					fixture.Bound(k, fixture.Pod("b", "50"), "half", one(fixture.GPU("half", 0), 50)),
				)
				if diff := cmp.Diff(tc.want, k.filter(tc.pod, nodes...)); diff != "" {
					k.Errorf("filter (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestFilterOfNothingIsNothing(t *testing.T) {
	run(t, func(k *kit) {
		if got := k.filter(fixture.Pod("p", "10")); len(got) != 0 {
			k.Errorf("got %q", got)
		}
	})
}

func TestFilterHoldsOnlyOnTheLastNodeLeft(t *testing.T) {
	run(t, func(k *kit) {
		k.node("a", 1)
		k.node("b", 1)
		pod := fixture.Pod("p", "40")
		k.filter(pod, "a", "b")
		k.wantCharged("a", 0, 0, 0)
		k.wantCharged("b", 0, 0, 0)
		// The scheduler asks about a nominated node alone, then again.
		for range 3 {
			k.filter(pod, "a")
			k.wantCharged("a", 0, 0, 40)
		}
		k.filter(pod, "b")
		k.wantCharged("a", 0, 0, 0)
		k.wantCharged("b", 0, 0, 40)
	})
}

func TestFilterDoesNotCountThePodsOwnHold(t *testing.T) {
	run(t, func(k *kit) {
		k.node("a", 1)
		pod := fixture.Pod("p", "60")
		k.filter(pod, "a")
		if got := k.filter(pod, "a"); got[0] != "" {
			k.Errorf("refused because of its own hold: %s", got[0])
		}
		if got := k.filter(fixture.Pod("other", "60"), "a"); got[0] != placement.NotEnoughFree {
			k.Errorf("another pod got %q, want %q", got[0], placement.NotEnoughFree)
		}
	})
}

func TestHoldExpires(t *testing.T) {
	run(t, func(k *kit) {
		k.node("a", 1)
		k.filter(fixture.Pod("p", "60"), "a")
		k.after(holdTimeout - time.Second)
		k.wantCharged("a", 0, 0, 60)
		k.after(2 * time.Second)
		k.wantCharged("a", 0, 0, 0)
	})
}

func TestPrioritizeHoldsOnTheBestNode(t *testing.T) {
	run(t, func(k *kit) {
		k.node("a", 2)
		k.node("b", 2)
		k.p.ObserveNode(k.Context(), view.NodeOf(fixture.ForeignNode("foreign"), k.p.opts.Resources))
		k.observe(fixture.Bound(k, fixture.Pod("x", "50"), "b", one(fixture.GPU("b", 1), 50)))
		pod := fixture.Pod("p", "50")
		got := k.prioritize(pod, "a", "b", "foreign", "stranger")
		if got[1] != placement.MaxPriority || got[0] >= got[1] || got[2] != 0 || got[3] != 0 {
			k.Errorf("priorities %v, want 10 for b alone, and 0 for nodes without inventory", got)
		}
		k.wantCharged("b", 1, 50, 50)
		// Again, after the best has changed.
		pod.Annotations[contract.PlacementAnnotation] = string(contract.PlacementSpread)
		pod.ResourceVersion = "2"
		if got := k.prioritize(pod, "a", "b"); got[0] != placement.MaxPriority {
			k.Errorf("priorities %v, want 10 for a", got)
		}
		k.wantCharged("b", 1, 50, 0)
	})
}

func TestPreemptKeepsNodesThatFitWithoutTheVictims(t *testing.T) {
	run(t, func(k *kit) {
		k.node("a", 1)
		k.node("b", 1)
		k.node("c", 1)
		victims := map[string]*testPod{}
		for _, n := range []string{"a", "b"} {
			victims[n] = fixture.Bound(k, fixture.Pod("v"+n, "60"), n, one(fixture.GPU(n, 0), 60))
			k.observe(victims[n])
		}
		k.observe(fixture.Bound(k, fixture.Pod("w", "40"), "b", one(fixture.GPU("b", 0), 40)))
		got := k.p.Preempt(k.Context(), fixture.Pod("p", "80"), map[string][]testUID{
			"a": {victims["a"].UID}, "b": {victims["b"].UID}, "c": nil, "stranger": {"x"},
		})
		if diff := cmp.Diff(map[string]bool{"a": true, "b": false, "c": true, "stranger": false}, got); diff != "" {
			k.Errorf("kept (-want +got):\n%s", diff)
		}
	})
}
