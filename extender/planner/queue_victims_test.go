package planner

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/extender/internal/fixture"
	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/contract"
)

func withoutNominations(o *Options) { o.Nominate = false }

// Room was made every five seconds for somebody who never used it.
func TestEvictionsForAClaimantThatNeverRunsGetRare(t *testing.T) {
	bad := func(pod *corev1.Pod) bool { return pod.Labels["bad"] != "" }
	asBad := func(pods ...*corev1.Pod) []*corev1.Pod {
		for _, pod := range pods {
			pod.Labels["bad"] = "yes"
		}
		return pods
	}
	refused := func(w *world) { w.refuses = func(pod *corev1.Pod, _ string) bool { return bad(pod) } }
	unbound := func(w *world) {
		w.failBind = func(pod *corev1.Pod) error {
			if bad(pod) {
				return errConflict
			}
			return nil
		}
	}
	cases := map[string]struct {
		pods    []*corev1.Pod
		trouble func(w *world)
		// atMost may be evicted in an hour: four times as many as are needed.
		atMost int
	}{
		"its Bindings fail":                  {asBad(queued("b", "p", "100")), unbound, 4},
		"the scheduler refuses it":           {asBad(queued("b", "p", "100")), refused, 4},
		"the scheduler refuses its gang":     {asBad(inQueue("b", gangPods("g", 2, 2, "100")...)...), refused, 8},
		"its Bindings fail in its own queue": {asBad(withPriority(queued("a", "p", "100"), 100)), unbound, 4},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			runQueues(t, 1, func(w *world) {
				w.queue(aQueue("a", ""))
				w.queue(aQueue("b", "", deserves(2)))
				c.trouble(w)
				w.submit("a", 4, "100")
				w.goOn(2 * time.Second)
				w.create(c.pods...)
				w.goOnWithSuccessors(time.Hour, "a", "100")
				if n := len(w.evicted); n == 0 || n > c.atMost {
					t.Errorf("%d evicted in an hour, want 1 to %d", n, c.atMost)
				}
				w.failBind, w.refuses = nil, nil
				w.goOnWithSuccessors(3*time.Hour, "a", "100")
				for _, pod := range c.pods {
					if w.pod(pod.UID).Spec.NodeName == "" {
						t.Errorf("%s does not run although nothing stands in the way any more", pod.Name)
					}
				}
			}, withoutNominations)
		})
	}
}

// Two claimants of one quota took the same victim, and the second waited in vain.
func TestEachClaimantOfAQuotaHasVictimsOfItsOwn(t *testing.T) {
	runQueues(t, 2, func(w *world) {
		w.queue(aQueue("dept", "", limited(4)))
		w.queue(aQueue("a", "dept", deserves(2)))
		w.queue(aQueue("b", "dept", deserves(2)))
		w.submit("a", 4, "100")
		w.goOn(2 * time.Second)
		w.create(queued("b", "b1", "100"), queued("b", "b2", "50"))
		w.goOnWithoutEvicting(5 * time.Second)
		victims := w.effects.take(&w.effects.evicted)
		slices.Sort(victims)
		if len(slices.Compact(slices.Clone(victims))) != 2 || len(victims) != 2 {
			t.Errorf("victims %q, want two, each once", victims)
		}
		w.leave(victims, time.Second)
		w.goOn(2 * time.Second)
		w.wantRunning("b", 2)
		w.wantRunning("a", 2)
	})
}

func TestAllVictimsOfManyClaimantsAreAskedTogether(t *testing.T) {
	runQueues(t, 2, func(w *world) {
		w.queue(aQueue("a", ""))
		w.queue(aQueue("b", "", deserves(8)))
		w.submit("a", 8, "100")
		w.goOn(2 * time.Second)
		w.submit("b", 8, "100")
		w.goOnWithoutEvicting(10 * time.Second)
		victims := w.effects.take(&w.effects.evicted)
		slices.Sort(victims)
		if len(slices.Compact(victims)) != 8 {
			t.Errorf("victims %q, want all eight at once", victims)
		}
	})
}

// The other half was evicted for nothing, every two minutes.
func TestNobodyGoesForRoomThatABudgetKeepsHalfOf(t *testing.T) {
	runQueues(t, 1, func(w *world) {
		w.queue(aQueue("a", ""))
		w.queue(aQueue("b", "", deserves(4)))
		w.submit("a", 4, "100")
		w.goOn(2 * time.Second)
		w.effects.protect(w.runningIn("a")[:2]...)
		w.create(queued("b", "b", "4 GPU"))
		refusals := 0
		for range 3600 {
			w.goOnBy(time.Second, time.Second)
			for _, name := range w.effects.take(&w.effects.kept) {
				w.p.EvictionRefused(w.Context(), "a budget", uidOf(name))
				refusals++
			}
		}
		w.wantRunning("a", 4)
		if len(w.evicted) != 0 || refusals == 0 {
			t.Errorf("evicted %q in an hour after %d refusals, want nobody in vain", w.evicted, refusals)
		}
		w.effects.protect()
		w.goOnBy(time.Hour, time.Second)
		w.wantRunning("b", 1)
	})
}

// goOnRefusing is goOnBy with an API server that tells which budget is in the way.
func (w *world) goOnRefusing(d time.Duration, budget string) (refusals int) {
	w.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		w.goOnBy(time.Second, time.Second)
		var uids []types.UID
		for _, name := range w.effects.take(&w.effects.kept) {
			uids = append(uids, uidOf(name))
		}
		if len(uids) > 0 {
			refusals++
			w.p.EvictionRefused(w.Context(), budget, uids...)
		}
	}
	return refusals
}

func TestOthersGoThanABudgetKeepsTogether(t *testing.T) {
	for _, gang := range []bool{false, true} {
		runQueues(t, 1, func(w *world) {
			w.queue(aQueue("a", ""))
			w.queue(aQueue("b", "", deserves(2)))
			w.submit("a", 4, "100")
			w.goOn(2 * time.Second)
			w.effects.budget(w.runningIn("a"), 1)
			claim := []*corev1.Pod{queued("b", "b", "2 GPU")}
			if gang {
				claim = inQueue("b", gangPods("g", 2, 2, "100")...)
			}
			w.create(claim...)
			text := "PodDisruptionBudget demo/x allows 1 more disruption, 2 are needed"
			if n := w.goOnRefusing(time.Minute, text); n == 0 || n > 4 || len(w.evicted) > 0 {
				t.Errorf("%d refusals and %q evicted, want a few and nobody", n, w.evicted)
			}
			if gang {
				if word, message := w.why("g"); !strings.Contains(message, text) {
					t.Errorf("the gang was told %s: %s", word, message)
				}
			} else {
				w.wantTold("b", "GPUUnavailable", text)
			}
			w.effects.budget(w.runningIn("a")[:2], 1)
			w.goOnRefusing(time.Hour, text)
			if len(w.evicted) != 2 {
				t.Errorf("evicted %q, want two", w.evicted)
			}
			for _, pod := range claim {
				if w.pod(pod.UID).Spec.NodeName == "" {
					t.Errorf("%s does not run", pod.Name)
				}
			}
		})
	}
}

// Victims went for a queue that had been stopped meanwhile.
func TestVictimsAreSparedWhenTheirClaimantsQueueIsStopped(t *testing.T) {
	runQueues(t, 1, func(w *world) {
		w.queue(aQueue("a", ""))
		w.queue(aQueue("b", "", deserves(4)))
		w.submit("a", 4, "100")
		w.goOn(2 * time.Second)
		w.create(queued("b", "b", "4 GPU"))
		w.goOnWithoutEvicting(2 * time.Second)
		victims := w.effects.take(&w.effects.evicted)
		w.queue(aQueue("b", "", deserves(4), held))
		w.goOnWithoutEvicting(2 * time.Second)
		spared := w.effects.take(&w.effects.spared)
		slices.Sort(victims)
		slices.Sort(spared)
		if len(victims) != 4 || !slices.Equal(victims, spared) {
			t.Errorf("victims %q, spared %q, want all four", victims, spared)
		}
		w.goOn(time.Minute)
		w.wantRunning("a", 4)
	})
}

// Who waits is told what protects those who have more than their share.
func TestWhoWaitsIsToldWhyNobodyIsEvicted(t *testing.T) {
	for name, tc := range map[string]struct {
		borrower, owner func(q *view.Queue)
		want            string
		running         int // in the end
	}{
		"they have not run long enough": {
			func(q *view.Queue) { q.MinRuntime = 5 * time.Minute }, func(*view.Queue) {},
			"Nobody was evicted for it: pods of queue borrower run for at least 5m0s, by its spec.reclaim.minRuntime; the first may go at 00:05:00 UTC", 2,
		},
		"its queue spares everybody": {
			func(*view.Queue) {}, func(q *view.Queue) { q.Reclaim = v1alpha1.ReclaimNever },
			"Nobody was evicted for it: spec.reclaim.policy of queue owner is Never", 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			runQueues(t, 1, func(w *world) {
				w.queue(aQueue("borrower", "", tc.borrower))
				w.queue(aQueue("owner", "", deserves(2), tc.owner))
				for i := range 4 {
					pod := queued("borrower", fmt.Sprint("b", i), "100")
					pod.CreationTimestamp = metav1.Now()
					w.create(pod)
				}
				w.goOn(time.Second)
				w.submit("owner", 2, "100")
				w.goOn(20 * time.Second)
				w.wantTold("owner-1-0", tc.want)
				w.goOnBy(6*time.Minute, time.Second)
				w.wantRunning("owner", tc.running)
			})
		})
	}
}

// It waited for its victims, which take their time, beside GPUs that were free.
func TestClaimantTakesWhatBecomesFreeBeforeItsVictimsHaveGone(t *testing.T) {
	runQueues(t, 2, func(w *world) {
		w.queue(aQueue("a", ""))
		w.queue(aQueue("b", "", deserves(4)))
		w.submit("a", 8, "100")
		w.goOn(2 * time.Second)
		w.submit("b", 2, "100")
		w.goOnWithoutEvicting(2 * time.Second)
		victims := w.effects.take(&w.effects.evicted)
		if len(victims) != 2 {
			t.Fatalf("victims %q, want two", victims)
		}
		for _, name := range victims {
			w.change(uidOf(name), func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} })
		}
		for _, name := range w.runningIn("a") {
			if !slices.Contains(victims, name) {
				w.remove(w.pod(uidOf(name))) // it has ended by itself
				break
			}
		}
		w.goOnWithoutEvicting(2 * time.Second)
		w.wantRunning("b", 1)
		for _, name := range victims {
			w.remove(w.pod(uidOf(name)))
		}
		w.goOn(2 * time.Second)
		w.wantRunning("b", 2)
		if more := w.effects.take(&w.effects.evicted); len(more) > 0 {
			t.Errorf("%q were evicted as well", more)
		}
	})
}

// Room that was made on a node that takes nobody any more was kept for a gang
// until the grace periods of its victims were over.
func TestReservationEndsWhenItsPlaceIsSpoilt(t *testing.T) {
	for name, spoil := range map[string]func(w *world, node string){
		"cordoned": func(w *world, node string) {
			n := fixture.Node(w, node, fixture.Inventory(node, 4))
			n.Spec.Unschedulable = true
			w.p.ObserveNode(w.Context(), view.NodeOf(n, w.p.opts.Resources))
		},
		"gone": func(w *world, node string) { w.p.ForgetNode(w.Context(), node) },
		"out of order": func(w *world, node string) {
			inv := fixture.Inventory(node, 4)
			for i := range inv.GPUs {
				inv.GPUs[i].Healthy = false
			}
			w.p.ObserveNode(w.Context(), view.NodeOf(fixture.Node(w, node, inv), w.p.opts.Resources))
		},
	} {
		t.Run(name, func(t *testing.T) {
			runQueues(t, 2, func(w *world) {
				w.size = 4
				w.queue(aQueue("a", ""))
				w.queue(aQueue("b", "", deserves(4)))
				for i := range 8 {
					pod := queued("a", fmt.Sprint("a", i), "100")
					grace := int64(600)
					pod.Spec.TerminationGracePeriodSeconds = &grace
					w.create(pod)
				}
				w.goOn(2 * time.Second)
				w.create(inQueue("b", gangPods("g", 4, 4, "100")...)...)
				w.goOnWithoutEvicting(2 * time.Second)
				victims := w.effects.take(&w.effects.evicted)
				if len(victims) != 4 {
					t.Fatalf("victims %q, want four", victims)
				}
				node := w.pod(uidOf(victims[0])).Spec.NodeName
				spoil(w, node)
				for _, name := range victims {
					w.change(uidOf(name), func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
					w.remove(w.pod(uidOf(name)))
				}
				w.goOn(time.Minute)
				w.wantBound("g", 4)
				for _, pod := range w.podsOn(node) {
					if pod.Labels[contract.GangLabel] != "" {
						t.Errorf("%s is on %s", pod.Name, node)
					}
				}
			})
		})
	}
}

func (w *world) podsOn(node string) []*corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []*corev1.Pod
	for _, pod := range w.pods {
		if pod.Spec.NodeName == node {
			list = append(list, pod)
		}
	}
	return list
}
