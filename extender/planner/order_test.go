package planner

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/tranche-dev/tranche/extender/internal/fixture"
	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/contract"
)

func leaveGang(p *corev1.Pod) {
	delete(p.Labels, contract.GangLabel)
	delete(p.Annotations, contract.GangMinCountAnnotation)
}

// A bound member whose gang label goes, and that then fails: the planner panics.
func TestAMemberThatLostItsLabelMayFail(t *testing.T) {
	runWorld(t, 1, func(w *world) {
		pods := gangPods("g", 2, 2, "100")
		w.create(pods...)
		w.goOn(2 * time.Second)
		w.wantBound("g", 2)
		w.change(pods[0].UID, leaveGang)
		w.change(pods[0].UID, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
		w.after(time.Second)
		w.wantCharged("a", 0, 0, 0)
	})
}

// A pending pod that has left its gang still counts to it.
func TestAPodThatLeftItsGangDoesNotCount(t *testing.T) {
	runWorld(t, 1, func(w *world) {
		full := fixture.Pod("full", "4 GPU")
		w.place(full, "a")
		pods := gangPods("g", 2, 2, "100")
		w.create(pods...)
		w.goOn(time.Second)
		w.change(pods[1].UID, leaveGang)
		w.goOn(time.Second)
		w.wantNone(func(s *state) string {
			if n := len(s.gangs[GangKey{"demo", "g"}].members); n != 1 {
				return fmt.Sprintf("%d members", n)
			}
			return ""
		})
	})
}

// Members that were in no queue when they came are never counted in the one that their Gang names later.
func TestMembersThatCameBeforeTheirGangHeedItsQueue(t *testing.T) {
	noDefault := func(o *Options) { o.DefaultQueue = "" }
	for _, first := range []bool{true, false} {
		t.Run(fmt.Sprint("gang first ", first), func(t *testing.T) {
			runQueues(t, 1, func(w *world) {
				w.queue(aQueue("a", "", limited(1)))
				gang := &view.Gang{Namespace: "demo", Name: "g", UID: "u", MinCount: 2, Queue: "a"}
				pods := gangPods("g", 2, 0, "100")
				if first {
					w.p.ObserveGang(w.Context(), gang)
				}
				w.create(pods...)
				if !first {
					w.p.ObserveGang(w.Context(), gang)
				}
				w.goOn(2 * time.Second)
				w.wantBound("g", 0)
			}, noDefault)
		})
	}
}

// A queue that comes again with another selector has the wrong demand.
func TestAQueueWithAnotherSelectorHasAnotherDemand(t *testing.T) {
	selecting := func(text string) func(q *view.Queue) {
		return func(q *view.Queue) {
			s, err := labels.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			q.Selector = s
		}
	}
	t.Run("forbidden then allowed", func(t *testing.T) {
		runQueues(t, 1, func(w *world) {
			w.place(open(queued("default", "full", "4 GPU")), "a")
			w.queue(aQueue("a", "", selecting("x=y")))
			w.create(queued("a", "p", "1 GPU"))
			w.goOn(2 * time.Second)
			if got := w.status("a").Demand.GPU; got != "0" {
				t.Errorf("demand %v of who is forbidden", got)
			}
			w.p.ForgetQueue(w.Context(), "a")
			w.queue(aQueue("a", ""))
			w.goOn(30 * time.Second)
			if got := w.status("a").Demand.GPU; got != "1" {
				t.Errorf("demand %v, want 1", got)
			}
		})
	})
	t.Run("allowed then forbidden", func(t *testing.T) {
		runQueues(t, 1, func(w *world) {
			w.create(queued("a", "p", "1 GPU"))
			w.goOn(2 * time.Second)
			w.queue(aQueue("a", "", selecting("x=y")))
			w.goOn(30 * time.Second)
			if got := w.status("a").Demand.GPU; got != "0" {
				t.Errorf("demand %v, want 0", got)
			}
		})
	})
}

// Without queues those who once found no room are remembered for ever.
func TestWithoutQueuesNobodyIsRememberedForWanting(t *testing.T) {
	runWorld(t, 1, func(w *world) {
		for i := range 20 {
			pods := gangPods(fmt.Sprint("g", i), 2, 2, "4 GPU")
			w.create(pods...)
			w.goOn(time.Second)
			w.remove(pods...)
		}
		w.after(time.Hour)
		w.wantNone((*state).leftover)
	})
}

// Nodes that go while something is kept there are remembered for ever.
func TestNodesThatGoWhileSomethingIsKeptThereAreForgotten(t *testing.T) {
	runQueues(t, 1, func(w *world) {
		w.queue(aQueue("a", ""))
		w.p.ForgetNode(w.Context(), "a")
		for i := range 10 {
			name := fmt.Sprint("n", i)
			w.bigNode(name, 4)
			pod := withCPU(queued("a", name, "4 GPU"), "1")
			w.create(pod)
			w.after(time.Second) // it is given that node
			w.p.ForgetNode(w.Context(), name)
			w.after(time.Second)
			w.remove(pod)
		}
		w.after(time.Hour)
		w.wantNone(func(s *state) string {
			if len(s.nodes) > 0 {
				return fmt.Sprintf("%d nodes are known and none exists", len(s.nodes))
			}
			return ""
		})
	})
}

// Evictions that nobody wants any more.
func TestADrainThatIsTakenBackSparesWhoIsThere(t *testing.T) {
	runQueues(t, 1, func(w *world) {
		w.queue(aQueue("a", ""))
		w.submit("a", 1, "1 GPU")
		w.goOn(2 * time.Second)
		w.wantRunning("a", 1)
		w.queue(aQueue("a", "", func(q *view.Queue) { q.Stop = v1alpha1.StopHoldAndDrain }))
		w.after(time.Second)
		asked := w.effects.take(&w.effects.evicted)
		w.queue(aQueue("a", ""))
		w.after(time.Minute)
		if got := w.effects.take(&w.effects.spared); !slices.Equal(got, asked) {
			t.Errorf("asked to go %v, spared %v", asked, got)
		}
		w.wantNone(func(s *state) string {
			if len(s.expelled) > 0 {
				return "expelled"
			}
			return ""
		})
	})
}

// Devices that the kubelet reported before the inventory was known.
func TestDevicesReportedBeforeTheInventoryCount(t *testing.T) {
	for _, first := range []bool{true, false} {
		t.Run(fmt.Sprint("node first ", first), func(t *testing.T) {
			run(t, func(k *kit) {
				pod := fixture.Bound(t, fixture.Pod("p", "100"), "a", one(fixture.GPU("a", 0), 100))
				pod = fixture.Reported(pod, "c0", "nvidia.com/gpu-share", 100, fixture.GPU("a", 1))
				if first {
					k.node("a", 2)
				}
				k.observe(pod)
				if !first {
					k.node("a", 2)
				}
				k.after(time.Minute)
				k.wantCharged("a", 1, 100, 0)
			})
		})
	}
}

// A namespace that opts in after its pods without GPUs were bound.
func TestANamespaceThatOptsInLaterHasItsPodsCounted(t *testing.T) {
	for _, first := range []bool{true, false} {
		t.Run(fmt.Sprint("namespace first ", first), func(t *testing.T) {
			runWorld(t, 1, func(w *world) {
				w.queue(aQueue("a", ""))
				pod := boundTo(withCPU(open(queued("a", "p", "")), "2"), "a")
				if first {
					w.namespace("demo", true)
				}
				w.create(pod)
				if !first {
					w.namespace("demo", true)
				}
				w.after(time.Second)
				if got := w.status("a").Allocated.CPU; got == nil || got.String() != "2" {
					t.Errorf("allocated %v, want 2", got)
				}
			}, withQueues)
		})
	}
}

// A pod that moves to another queue while it holds.
func TestAPodThatMovesToAFullQueueLosesItsHold(t *testing.T) {
	runQueues(t, 1, func(w *world) {
		w.queue(aQueue("a", ""))
		w.queue(aQueue("b", "", limited(0)))
		pod := queued("a", "p", "1 GPU")
		w.create(pod)
		w.after(time.Second)
		if w.held() != 100 {
			t.Fatal("not held")
		}
		w.change(pod.UID, func(p *corev1.Pod) { p.Labels[contract.QueueLabel] = "b" })
		w.after(time.Second)
		w.wantWithinLimits()
		w.goOn(5 * time.Second)
		w.wantRunning("b", 0)
	})
}

// A Gang that was made anew while the watch was interrupted.
func TestAGangMadeAnewIsReported(t *testing.T) {
	runWorld(t, 1, func(w *world) {
		gang := view.Gang{Namespace: "demo", Name: "g", UID: "u1", Generation: 1, MinCount: 2}
		w.p.ObserveGang(w.Context(), &gang)
		w.create(gangPods("g", 2, 0, "100")...)
		w.goOn(2 * time.Second)
		w.wantBound("g", 2)
		w.goOn(20 * time.Second)
		w.effects.mu.Lock()
		w.effects.reports = nil
		w.effects.mu.Unlock()
		again := gang
		again.UID = "u2"
		w.p.ObserveGang(w.Context(), &again)
		w.goOn(time.Hour)
		if w.phase("g") == "" {
			t.Error("the new object was never reported")
		}
	})
}

// A person takes a Gang over that the system made, with the queue that it names.
func TestAGangThatAPersonTakesOverIsInItsQueue(t *testing.T) {
	runQueues(t, 1, func(w *world) {
		w.queue(aQueue("a", ""))
		w.queue(aQueue("b", "", limited(0)))
		gang := view.Gang{Namespace: "demo", Name: "g", UID: "u1", Generation: 1, MinCount: 2, Queue: "a", Managed: true}
		w.p.ObserveGang(w.Context(), &gang)
		pods := gangPods("g", 2, 0, "100")
		inQueue("a", pods[0])
		inQueue("b", pods[1])
		w.create(pods...)
		w.goOn(2 * time.Second)
		w.wantBound("g", 0) // they disagree
		own := gang
		own.Managed = false
		w.p.ObserveGang(w.Context(), &own)
		w.goOn(5 * time.Second)
		w.wantBound("g", 2) // in queue a
	})
}

// A pod that is let go to a node of another device plugin, whose queue has no more than it asks for.
func TestAPodForAForeignNodeIsNotInItsOwnWay(t *testing.T) {
	runQueues(t, 0, func(w *world) {
		foreign := fixture.ForeignNode("f")
		foreign.Status.Allocatable[corev1.ResourceCPU], foreign.Status.Allocatable[corev1.ResourcePods] = resource.MustParse("64"), resource.MustParse("110")
		w.p.ObserveNode(w.Context(), view.NodeOf(foreign, w.p.opts.Resources))
		w.nodes = []string{"f"}
		w.queue(aQueue("a", "", limited(2)))
		w.submit("a", 1, "2 GPU")
		w.after(time.Second) // the API server takes its time to lift the gate
		w.goOn(5 * time.Minute)
		w.wantRunning("a", 1)
	})
}

// A pod that was let go to a node of another device plugin, which then has no room, and is refused by its queue once.
func TestAPodThatNoForeignNodeTakesIsServedAgain(t *testing.T) {
	runQueues(t, 1, func(w *world) {
		full := open(queued("default", "full", "4 GPU"))
		w.place(full, "a")
		foreign := fixture.ForeignNode("f")
		foreign.Status.Allocatable[corev1.ResourceCPU], foreign.Status.Allocatable[corev1.ResourcePods] = resource.MustParse("64"), resource.MustParse("110")
		w.p.ObserveNode(w.Context(), view.NodeOf(foreign, w.p.opts.Resources))
		w.queue(aQueue("a", "", limited(2)))
		w.submit("a", 1, "2 GPU")
		w.after(time.Second)
		w.p.ForgetNode(w.Context(), "f") // before the scheduler comes to it
		w.goOn(10 * time.Second)
		w.gone(boundTo(full, "a")) // now there is room
		w.goOn(10 * time.Minute)
		w.wantRunning("a", 1)
	})
}

// A gang that became whole again is not to be evicted any more.
func TestAStaleGangThatIsWholeAgainIsSpared(t *testing.T) {
	runWorld(t, 1, func(w *world) {
		w.p.ObserveGang(w.Context(), &view.Gang{Namespace: "demo", Name: "g", UID: "u", MinCount: 2, DisruptAll: true, Staleness: new(10 * time.Second)})
		pods := gangPods("g", 2, 0, "100")
		w.create(pods...)
		w.goOnWithoutEvicting(2 * time.Second)
		w.wantBound("g", 2)
		w.remove(pods[1])
		w.goOnWithoutEvicting(12 * time.Second)
		asked := w.effects.take(&w.effects.evicted) // a budget keeps it
		if len(asked) == 0 {
			t.Fatal("nobody was asked to go")
		}
		w.create(memberPod("g", "again", 0, "100"))
		w.goOnWithoutEvicting(5 * time.Second)
		w.wantBound("g", 2)
		if got := w.effects.take(&w.effects.spared); len(got) == 0 {
			t.Errorf("%v were asked to go, the gang is whole again, and nobody was spared", asked)
		}
	})
}

// A gang's object names another queue while a member's Binding is on its way, which then fails.
func TestAGangThatMovesWhileAMemberIsBoundAsksItsNewQueue(t *testing.T) {
	runQueues(t, 1, func(w *world) {
		w.queue(aQueue("a", ""))
		w.queue(aQueue("b", "", limited(0)))
		gang := view.Gang{Namespace: "demo", Name: "g", UID: "u", MinCount: 1, Queue: "a"}
		w.p.ObserveGang(w.Context(), &gang)
		pod := memberPod("g", "m", 0, "100")
		w.create(pod)
		w.after(time.Second)
		w.admit()
		if _, err := w.reserve(pod, "a"); err != nil {
			t.Fatal(err)
		}
		moved := gang
		moved.Queue = "b"
		w.p.ObserveGang(w.Context(), &moved)
		w.p.Abort(w.Context(), target(pod, "a"))
		w.goOn(10 * time.Minute)
		w.wantBound("g", 0) // queue b takes nobody
	})
}

// Pods that leave a queue without an object stay in no line.
func TestAPodThatLeavesAnUnknownQueueIsInALine(t *testing.T) {
	runQueues(t, 1, func(w *world) {
		full := open(queued("default", "full", "4 GPU"))
		w.place(full, "a")
		w.queue(aQueue("b", "", limited(1)))
		pod := open(queued("a", "p", "1 GPU")) // there is no queue a
		w.create(pod)
		w.filter(pod, "a")
		w.after(time.Second)
		w.change(pod.UID, func(p *corev1.Pod) { p.Labels[contract.QueueLabel] = "b" })
		w.after(time.Second)
		w.wantSound()
		w.gone(boundTo(full, "a"))
		w.after(5 * time.Second)
		if w.held() != 100 {
			t.Error("there is room, and the pod is not served")
		}
	})
}

// A pod that was to be shown to an autoscaler gets a place before its gate is lifted, and loses it.
func TestAPodThatWasShownAndWithdrawnIsShownAgain(t *testing.T) {
	runQueues(t, 1, func(w *world) {
		w.queue(aQueue("a", "", func(q *view.Queue) { q.WhenFull = v1alpha1.WhenFullExpose }))
		full := open(queued("default", "full", "4 GPU"))
		w.place(full, "a")
		w.create(queued("a", "p", "1 GPU"))
		w.after(time.Second)
		if n := len(w.effects.admitted); n != 1 {
			t.Fatalf("%d are shown, want 1", n)
		}
		w.effects.admitted = nil // the API server does not take it yet
		w.gone(boundTo(full, "a"))
		w.after(time.Second)
		if n := len(w.effects.admitted); n != 1 {
			t.Fatalf("%d are admitted, want 1", n)
		}
		sick := fixture.Inventory("a", 4)
		for i := range sick.GPUs {
			sick.GPUs[i].Healthy = false
		}
		w.nodeWith("a", sick, nil)
		w.after(2 * gangHoldTimeout)
		if got := w.effects.take(&w.effects.withdrawn); len(got) != 1 {
			t.Fatalf("withdrawn %v", got)
		}
		if len(w.effects.admitted) < 2 { // with that of its place, which was withdrawn
			t.Error("the only pod of its queue has no place and is not shown")
		}
	})
}
