package planner

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tranche-dev/tranche/extender/internal/fixture"
	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/placement"
)

func TestReserveTakesTheHoldOrPlansAnew(t *testing.T) {
	run(t, func(k *kit) {
		k.node("a", 2)
		k.node("b", 1)
		pod := fixture.Pod("p", "60")
		k.filter(pod, "a")
		r, err := k.reserve(pod, "b") // the scheduler decided otherwise
		if err != nil {
			k.Fatal(err)
		}
		want := &contract.Plan{Version: 1, Node: "b", Containers: map[string][]contract.Grant{"c0": {grant(fixture.GPU("b", 0), 60)}}}
		if diff := cmp.Diff(want, r.Plan); diff != "" {
			k.Errorf("plan (-want +got):\n%s", diff)
		}
		k.wantCharged("a", 0, 0, 0)
		k.wantCharged("b", 0, 60, 0)
	})
}

func TestReservationDoesNotExpire(t *testing.T) {
	run(t, func(k *kit) {
		k.node("a", 1)
		pod := fixture.Pod("p", "60")
		k.filter(pod, "a")
		if _, err := k.reserve(pod, "a"); err != nil {
			k.Fatal(err)
		}
		k.after(10 * holdTimeout)
		k.wantCharged("a", 0, 60, 0)
	})
}

func TestReserveRefuses(t *testing.T) {
	pod := fixture.Pod("p", "60")
	wrong := target(pod, "a")
	wrong.Name = "q"
	cases := map[string]struct {
		before func(k *kit)
		target Target
		want   error
		reason Reason
	}{
		"a pod that nobody told of":      {before: func(*kit) {}, target: target(pod, "a"), want: ErrUnknownPod},
		"another name":                   {before: func(k *kit) { k.filter(pod, "a", "b") }, target: wrong, want: ErrWrongPod},
		"a node that is not known":       {before: func(k *kit) { k.filter(pod, "a", "b") }, target: target(pod, "x"), reason: placement.NoInventory},
		"a node that filled up":          {before: func(k *kit) { k.filter(pod, "a", "b"); k.place(fixture.Pod("q", "50"), "a") }, target: target(pod, "a"), reason: placement.NotEnoughFree},
		"a GPU that fell ill":            {before: func(k *kit) { k.filter(pod, "a"); k.inventory("a", unhealthy("a")) }, target: target(pod, "a"), reason: placement.Unhealthy},
		"a pod that is bound":            {before: func(k *kit) { k.place(pod, "b") }, target: target(pod, "a"), want: ErrBoundElsewhere},
		"a bind while one is on":         {before: func(k *kit) { k.filter(pod, "a"); _, _ = k.reserve(pod, "a") }, target: target(pod, "a"), want: ErrInProgress},
		"a pod that is being deleted":    {before: func(k *kit) { p := pod.DeepCopy(); p.DeletionTimestamp = &p.CreationTimestamp; k.observe(p) }, target: target(pod, "a"), reason: Deleting},
		"a pod with a broken request":    {before: func(k *kit) { k.observe(fixture.Pod("p", "101")) }, target: target(pod, "a"), reason: Invalid},
		"a node whose inventory is gone": {before: func(k *kit) { k.filter(pod, "a"); k.p.ForgetNode(k.Context(), "a") }, target: target(pod, "a"), reason: placement.NoInventory},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			run(t, func(k *kit) {
				k.node("a", 1)
				k.node("b", 1)
				tc.before(k)
				_, err := k.p.Reserve(k.Context(), tc.target, nil)
				var refused *RefusedError
				switch {
				case tc.want != nil:
					if !errors.Is(err, tc.want) {
						k.Errorf("error %v, want %v", err, tc.want)
					}
				case !errors.As(err, &refused) || refused.Reason != tc.reason:
					k.Errorf("error %v, want refusal %q", err, tc.reason)
				}
			})
		})
	}
}

func unhealthy(node string) contract.Inventory {
	inv := fixture.Inventory(node, 1)
	inv.GPUs[0].Healthy, inv.GPUs[0].Reason = false, "XID 79"
	return inv
}

func TestReserveOfWhatIsBoundThereIsDone(t *testing.T) {
	run(t, func(k *kit) {
		k.node("a", 1)
		pod := fixture.Pod("p", "60")
		k.place(pod, "a")
		if r, err := k.reserve(pod, "a"); err != nil || !r.Done {
			k.Errorf("got %+v, %v, want done", r, err)
		}
		k.observe(fixture.Bound(k, pod, "a", one(fixture.GPU("a", 0), 60)))
		if r, err := k.reserve(pod, "a"); err != nil || !r.Done {
			k.Errorf("after the watch told: %+v, %v, want done", r, err)
		}
		k.wantCharged("a", 0, 60, 0)
	})
}

func TestForeignNodeGetsNoPlan(t *testing.T) {
	run(t, func(k *kit) {
		k.node("a", 1)
		k.p.ObserveNode(k.Context(), view.NodeOf(fixture.ForeignNode("f"), k.p.opts.Resources))
		pod := fixture.Pod("p", "1 GPU")
		k.filter(pod, "a")
		k.filter(pod, "f")
		r, err := k.reserve(pod, "f")
		if err != nil || r.Plan != nil || r.Done {
			k.Errorf("got %+v, %v, want no plan", r, err)
		}
		k.p.Bound(k.Context(), target(pod, "f"))
		k.wantCharged("a", 0, 0, 0)
		if _, err := k.reserve(fixture.Pod("q", "50"), "f"); err == nil {
			k.Error("a share was placed on a node without Tranche")
		}
	})
}

func TestFilterKeepsAPodWhereItIsBeingBound(t *testing.T) {
	run(t, func(k *kit) {
		k.node("a", 1)
		k.node("b", 1)
		pod := fixture.Pod("p", "60")
		k.filter(pod, "a")
		if _, err := k.reserve(pod, "a"); err != nil {
			k.Fatal(err)
		}
		// The scheduler lost patience and asks again.
		if diff := cmp.Diff([]Reason{"", Decided}, k.filter(pod, "a", "b")); diff != "" {
			k.Errorf("filter (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]int64{placement.MaxPriority, 0}, k.prioritize(pod, "a", "b")); diff != "" {
			k.Errorf("prioritize (-want +got):\n%s", diff)
		}
		k.wantCharged("a", 0, 60, 0)
		k.wantCharged("b", 0, 0, 0)
	})
}

func TestOutcomesOfABinding(t *testing.T) {
	pod := fixture.Pod("p", "60")
	cases := map[string]struct {
		outcome                            func(k *kit)
		allocated, held, allocatedAfterAll int
		reservable                         bool
	}{
		"accepted":               {outcome: func(k *kit) { k.p.Bound(k.Context(), target(pod, "a")) }, allocated: 60, allocatedAfterAll: 60},
		"refused":                {outcome: func(k *kit) { k.p.Abort(k.Context(), target(pod, "a")) }, reservable: true},
		"not bound after all":    {outcome: func(k *kit) { k.p.Truth(k.Context(), pod.UID, view.PodOf(pod, k.p.opts.Resources)) }, held: 60, reservable: true},
		"gone after all":         {outcome: func(k *kit) { k.p.Truth(k.Context(), pod.UID, nil) }},
		"bound after all":        {outcome: func(k *kit) { k.p.Truth(k.Context(), pod.UID, boundView(k, pod, "a")) }, allocated: 60, allocatedAfterAll: 60},
		"bound elsewhere":        {outcome: func(k *kit) { k.p.Truth(k.Context(), pod.UID, boundView(k, pod, "b")) }},
		"nobody knows":           {outcome: func(k *kit) { k.p.Unknown(target(pod, "a")) }, allocated: 60, allocatedAfterAll: 60},
		"accepted, then deleted": {outcome: func(k *kit) { k.p.Bound(k.Context(), target(pod, "a")); k.gone(pod) }},
		"deleted, then accepted": {outcome: func(k *kit) { k.gone(pod); k.p.Bound(k.Context(), target(pod, "a")) }},
		"told of before accepted": {outcome: func(k *kit) {
			k.p.Observe(k.Context(), boundView(k, pod, "a"))
			k.p.Bound(k.Context(), target(pod, "a"))
		}, allocated: 60, allocatedAfterAll: 60},
		"told of before refused": {outcome: func(k *kit) {
			k.p.Observe(k.Context(), boundView(k, pod, "a"))
			k.p.Abort(k.Context(), target(pod, "a"))
		}, allocated: 60, allocatedAfterAll: 60},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			run(t, func(k *kit) {
				k.node("a", 1)
				k.node("b", 1)
				k.filter(pod, "a")
				if _, err := k.reserve(pod, "a"); err != nil {
					k.Fatal(err)
				}
				tc.outcome(k)
				k.wantCharged("a", 0, sharesOfInt(tc.allocated), sharesOfInt(tc.held))
				if tc.reservable {
					if _, err := k.reserve(pod, "a"); err != nil {
						k.Errorf("cannot be bound again: %v", err)
					}
					return
				}
				k.after(2 * holdTimeout)
				k.wantCharged("a", 0, sharesOfInt(tc.allocatedAfterAll), 0)
			})
		})
	}
}

func boundView(k *kit, pod *testPod, node string) *view.Pod {
	return view.PodOf(fixture.Bound(k, pod, node, one(fixture.GPU(node, 0), 60)), k.p.opts.Resources)
}

func TestBindingThatTheWatchNeverShowsIsLookedUp(t *testing.T) {
	run(t, func(k *kit) {
		k.node("a", 1)
		pod := fixture.Pod("p", "60")
		k.place(pod, "a")
		k.after(30 * time.Second)
		if got := k.effects.take(&k.effects.verified); got != nil {
			k.Errorf("looked up %v too early", got)
		}
		k.after(time.Minute)
		if got := k.effects.take(&k.effects.verified); len(got) != 1 {
			k.Errorf("looked up %v, want p once", got)
		}
		k.p.Truth(k.Context(), pod.UID, nil)
		k.wantCharged("a", 0, 60, 0) // nobody knows whether its containers have ended
		k.after(time.Minute)
		k.wantCharged("a", 0, 0, 0)
	})
}
