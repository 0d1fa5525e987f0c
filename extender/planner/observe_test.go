package planner

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"

	"github.com/tranche-dev/tranche/extender/internal/fixture"
	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/placement"
	"github.com/tranche-dev/tranche/pkg/units"
)

func sharesOfInt(n int) units.Shares { return units.Shares(n) }

func ended(pod *corev1.Pod, phase corev1.PodPhase) *corev1.Pod {
	pod = pod.DeepCopy()
	pod.Status.Phase = phase
	return pod
}

func TestChargesEndWithThePod(t *testing.T) {
	pod := fixture.Pod("p", "60")
	cases := map[string]struct {
		then func(k *kit, bound *corev1.Pod)
		want units.Shares
	}{
		"running": {func(k *kit, b *corev1.Pod) { k.observe(ended(b, corev1.PodRunning)) }, 60},
		"asked to terminate": {func(k *kit, b *corev1.Pod) {
			p := b.DeepCopy()
			p.DeletionTimestamp = &p.CreationTimestamp
			k.observe(p)
		}, 60},
		"succeeded":        {func(k *kit, b *corev1.Pod) { k.observe(ended(b, corev1.PodSucceeded)) }, 0},
		"failed":           {func(k *kit, b *corev1.Pod) { k.observe(ended(b, corev1.PodFailed)) }, 0},
		"gone":             {func(k *kit, b *corev1.Pod) { k.gone(b) }, 0},
		"old news":         {func(k *kit, _ *corev1.Pod) { k.observe(pod) }, 60},
		"another one gone": {func(k *kit, _ *corev1.Pod) { k.gone(fixture.Pod("q", "60")) }, 60},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			run(t, func(k *kit) {
				k.node("a", 1)
				bound := fixture.Bound(k, pod, "a", one(fixture.GPU("a", 0), 60))
				k.observe(pod, bound)
				tc.then(k, bound)
				k.wantCharged("a", 0, tc.want, 0)
			})
		})
	}
}

func TestForcedDeletionKeepsTheChargeForTheGracePeriod(t *testing.T) {
	run(t, func(k *kit) {
		k.node("a", 1)
		pod := fixture.Pod("p", "60")
		grace := int64(20)
		pod.Spec.TerminationGracePeriodSeconds = &grace
		k.place(pod, "a")
		bound := fixture.Bound(k, pod, "a", one(fixture.GPU("a", 0), 60))
		k.observe(bound)
		k.vanished(bound)
		if got := k.filter(fixture.Pod("next", "50"), "a"); got[0] != placement.NotEnoughFree {
			t.Errorf("next pod: %q, want it to wait", got[0])
		}
		k.after(20 * time.Second)
		k.wantCharged("a", 0, 60, 0)
		k.after(lingerMargin + tick)
		k.wantCharged("a", 0, 0, 50) // for the pod that waited
		if woken := k.effects.take(&k.effects.woken); len(woken) != 1 || woken[0] != "next" {
			t.Errorf("woken: %q, want the pod that waited", woken)
		}
	})
}

// Somebody's pods had a grace period of a year, and their GPUs were nobody's.
func TestForcedDeletionDoesNotKeepTheChargeForEver(t *testing.T) {
	run(t, func(k *kit) {
		k.node("a", 1)
		pod := fixture.Pod("p", "60")
		year := int64(365 * 24 * 3600)
		pod.Spec.TerminationGracePeriodSeconds = &year
		k.place(pod, "a")
		bound := fixture.Bound(k, pod, "a", one(fixture.GPU("a", 0), 60))
		k.observe(bound)
		k.vanished(bound)
		k.after(time.Minute)
		k.wantCharged("a", 0, 60, 0)
		k.after(mostGrace)
		k.wantCharged("a", 0, 0, 0)
	})
}

func TestNothingLingersOnANodeThatIsGone(t *testing.T) {
	run(t, func(k *kit) {
		k.node("a", 1)
		pod := fixture.Pod("p", "60")
		k.place(pod, "a")
		bound := fixture.Bound(k, pod, "a", one(fixture.GPU("a", 0), 60))
		k.observe(bound)
		k.p.ForgetNode(k.Context(), "a")
		k.vanished(bound)
		k.node("a", 1)
		k.wantCharged("a", 0, 0, 0)
	})
}

func TestReplayInAnyOrderGivesTheSameLedger(t *testing.T) {
	pods := make([]*corev1.Pod, 0, 4)
	for i, name := range []string{"p", "q", "r", "s"} {
		pods = append(pods, fixture.Bound(t, fixture.Pod(name, "20"), "a", one(fixture.GPU("a", i%2), 20)))
	}
	var want string
	for shift := range len(pods) {
		run(t, func(k *kit) {
			if shift%2 == 0 {
				k.node("a", 2)
			}
			for i := range pods {
				k.observe(pods[(i+shift)%len(pods)], pods[i])
			}
			k.node("a", 2)
			got := ""
			for _, g := range k.p.Snapshot().Ledger.Dump().Nodes[0].GPUs {
				for _, p := range g.Pods {
					got += string(g.UUID) + " " + p.Name + " " + p.State + "\n"
				}
			}
			if want == "" {
				want = got
			}
			if diff := cmp.Diff(want, got); diff != "" || strings.Count(got, "allocated") != 4 {
				k.Errorf("shift %d (-want +got):\n%s", shift, diff)
			}
		})
	}
}

func TestTruthDisplacesHolds(t *testing.T) {
	run(t, func(k *kit) {
		k.node("a", 1)
		k.filter(fixture.Pod("held", "60"), "a")
		k.observe(fixture.Bound(k, fixture.Pod("p", "60"), "a", one(fixture.GPU("a", 0), 60)))
		k.wantCharged("a", 0, 60, 0)
		if n := k.overcommitted(); n != 0 {
			k.Errorf("%d GPUs overcommitted", n)
		}
	})
}

func TestUnplannedPods(t *testing.T) {
	run(t, func(k *kit) {
		k.node("a", 1)
		k.node("b", 1)
		k.p.ObserveNode(k.Context(), view.NodeOf(fixture.ForeignNode("f"), k.p.opts.Resources))
		by := func(pod *corev1.Pod, node string) *corev1.Pod {
			pod.Spec.NodeName = node
			return pod
		}
		// On a node of another device plugin that is how it should be.
		k.observe(by(fixture.Pod("x", "1 GPU"), "f"))
		if got := k.effects.take(&k.effects.warned); got != nil {
			k.Errorf("warned of %v", got)
		}
		// On ours it is not. It is charged once the kubelet says for what.
		pod := by(fixture.Pod("p", "40"), "a")
		k.observe(pod, pod)
		if got := k.effects.take(&k.effects.warned); len(got) != 1 || !strings.HasPrefix(got[0], "p: UnplannedGPU: ") {
			k.Errorf("warned of %q, want p once", got)
		}
		k.wantCharged("a", 0, 0, 0)
		k.observe(fixture.Reported(pod, "c0", "nvidia.com/gpu-share", 40, fixture.GPU("a", 0)))
		k.wantCharged("a", 0, 40, 0)
		// A plan for another node is none.
		forged := fixture.Bound(k, fixture.Pod("q", "40"), "a", one(fixture.GPU("a", 0), 40))
		k.observe(by(forged, "b"))
		k.wantCharged("b", 0, 0, 0)
		if got := testutil.ToFloat64(k.metrics.UnplannedPods); got != 2 {
			k.Errorf("counted %v unplanned pods, want 2", got)
		}
		k.gone(pod)
		k.wantCharged("a", 0, 0, 0)
	})
}

func TestUnplannedPodOnANodeThatJoinsLater(t *testing.T) {
	run(t, func(k *kit) {
		pod := fixture.Pod("p", "1 GPU")
		pod.Spec.NodeName = "a"
		k.observe(fixture.Reported(pod, "c0", "nvidia.com/gpu", 1, fixture.GPU("a", 0)))
		k.node("a", 1)
		k.wantCharged("a", 0, 100, 0)
	})
}

func TestLedgerFollowsTheKubelet(t *testing.T) {
	const share = corev1.ResourceName("nvidia.com/gpu-share")
	run(t, func(k *kit) {
		k.node("a", 2)
		a0, a1 := fixture.GPU("a", 0), fixture.GPU("a", 1)
		p := fixture.Bound(k, fixture.Pod("p", "60"), "a", one(a0, 60))
		q := fixture.Bound(k, fixture.Pod("q", "60"), "a", one(a1, 60))
		k.observe(p, q)
		// As planned.
		k.observe(fixture.Reported(p, "c0", share, 60, a0))
		if got := testutil.ToFloat64(k.metrics.PlanMismatches); got != 0 {
			k.Errorf("counted %v mismatches, want none", got)
		}
		// Swapped: the first half alone would overcommit, so it waits.
		pReported := fixture.Reported(p, "c0", share, 60, a1)
		k.observe(pReported)
		k.wantCharged("a", 0, 60, 0)
		k.wantCharged("a", 1, 60, 0)
		k.observe(fixture.Reported(q, "c0", share, 60, a0))
		r, _ := k.record(p)
		if got := r.On(a1); got != 60 {
			k.Errorf("p is charged %d shares of the GPU that it got, want 60", got)
		}
		if got := testutil.ToFloat64(k.metrics.PlanMismatches); got != 2 {
			k.Errorf("counted %v mismatches, want 2", got)
		}
		if n := k.overcommitted(); n != 0 {
			k.Errorf("%d GPUs overcommitted", n)
		}
		// Told again, nothing changes.
		k.observe(pReported)
		if got := testutil.ToFloat64(k.metrics.PlanMismatches); got != 2 {
			k.Errorf("counted %v mismatches, want still 2", got)
		}
	})
}

func TestKubeletIsBelievedEvenIfItOvercommits(t *testing.T) {
	run(t, func(k *kit) {
		k.node("a", 2)
		a0, a1 := fixture.GPU("a", 0), fixture.GPU("a", 1)
		p := fixture.Bound(k, fixture.Pod("p", "60"), "a", one(a0, 60))
		k.observe(p, fixture.Bound(k, fixture.Pod("q", "60"), "a", one(a1, 60)))
		k.observe(fixture.Reported(p, "c0", "nvidia.com/gpu-share", 60, a1))
		k.wantCharged("a", 1, 60, 0)
		k.after(swapWithin + time.Second)
		k.wantCharged("a", 1, 120, 0)
		if n := k.overcommitted(); n != 1 {
			k.Errorf("%d GPUs overcommitted, want the 1 that is", n)
		}
	})
}

func TestKubeletsWordAboutMemoryIsConverted(t *testing.T) {
	run(t, func(k *kit) {
		inv := fixture.Inventory("a", 2)
		inv.GPUs[1].MemoryMiB = fixture.MemoryMiB / 2
		k.inventory("a", inv)
		pod := fixture.Pod("p", "25")
		pod.Annotations[contract.MemoryAnnotation] = "20Gi"
		bound := fixture.Bound(k, pod, "a", one(fixture.GPU("a", 0), 25))
		k.observe(fixture.Reported(bound, "c0", "nvidia.com/gpu-share", 25, fixture.GPU("a", 1)))
		k.wantCharged("a", 0, 0, 0)
		k.wantCharged("a", 1, 50, 0) // 20 GiB are half of the smaller GPU
	})
}

func TestDevicesOfNoGPUOfTheNodeAreNotBelieved(t *testing.T) {
	run(t, func(k *kit) {
		k.node("a", 1)
		bound := fixture.Bound(k, fixture.Pod("p", "60"), "a", one(fixture.GPU("a", 0), 60))
		k.observe(fixture.Reported(bound, "c0", "nvidia.com/gpu-share", 60, "GPU-elsewhere"))
		k.wantCharged("a", 0, 60, 0)
	})
}

func TestStateShowsNodesAndWaitingPods(t *testing.T) {
	run(t, func(k *kit) {
		k.node("a", 1)
		broken := fixture.Node(k, "broken", contract.Inventory{})
		broken.Annotations[contract.InventoryAnnotation] = "{"
		k.p.ObserveNode(k.Context(), view.NodeOf(broken, k.p.opts.Resources))
		k.p.ObserveNode(k.Context(), view.NodeOf(fixture.ForeignNode("f"), k.p.opts.Resources))
		k.place(fixture.Pod("p", "60"), "a")
		k.filter(fixture.Created(fixture.Pod("young", "50"), time.Minute), "a")
		k.filter(fixture.Pod("old", "101"), "a")
		s, err := k.p.State(k.Context())
		if err != nil {
			k.Fatal(err)
		}
		if len(s.Nodes) != 1 || len(s.Nodes[0].GPUs[0].Pods) != 1 || s.Nodes[0].GPUs[0].Shares.Free != 40 {
			k.Errorf("nodes %+v", s.Nodes)
		}
		if diff := cmp.Diff([]string{"f"}, s.ForeignNodes); diff != "" {
			k.Errorf("foreign nodes: %s", diff)
		}
		if len(s.BrokenNodes) != 1 || s.BrokenNodes[0].Name != "broken" || s.BrokenNodes[0].Problem == "" {
			k.Errorf("broken nodes %+v", s.BrokenNodes)
		}
		if len(s.Waiting) != 2 || s.Waiting[0].Name != "old" || s.Waiting[0].Reason != "Invalid" || s.Waiting[1].Reason != "NotEnoughFree" {
			k.Errorf("waiting %+v", s.Waiting)
		}
	})
}
