package planner

import (
	"strings"
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

func TestLimitHoldsTheRestUntilItIsRaised(t *testing.T) {
	runQueues(t, 2, func(w *world) {
		w.queue(aQueue("a", "", limited(2)))
		w.submit("a", 3, "100")
		w.goOn(2 * time.Second)
		w.wantRunning("a", 2)
		w.wantTold("a-1-2", "QueueWaiting", "ueue a uses 2 GPUs of its limit of 2 GPUs", "the pod asks for 1 GPU", "raise")
		if s := w.status("a"); s.Allocated.GPU != "2" || s.PendingGangs != 1 || s.Open || s.EffectiveLimit.GPU != "2" || s.Demand.GPU != "3" {
			t.Errorf("status %+v", s)
		}
		w.queue(aQueue("a", "", limited(3)))
		w.goOn(time.Second)
		w.wantRunning("a", 3)
		w.queue(aQueue("a", "", limited(1)))
		w.goOn(5 * time.Second)
		w.wantRunning("a", 3) // nobody is evicted for a limit
		if c := w.condition("a", v1alpha1.QueueOverLimit); c.Status != "True" {
			t.Errorf("condition %+v, want it over its limit", c)
		}
	})
}

func TestLimitOfAnAncestorHolds(t *testing.T) {
	runQueues(t, 2, func(w *world) {
		w.queue(aQueue("a", "dept")) // before its parent
		w.submit("a", 2, "100")
		w.goOn(2 * time.Second)
		w.wantRunning("a", 0)
		w.wantTold("a-1-0", "parent", "does not exist")
		if c := w.condition("a", v1alpha1.QueueReady); c.Reason != v1alpha1.ReasonParentUnknown {
			t.Errorf("condition %+v", c)
		}
		w.queue(aQueue("dept", "", limited(1)))
		w.goOn(2 * time.Second)
		w.wantRunning("a", 1)
		w.wantTold("a-1-1", "ueue dept, above a, uses 1 GPU of its limit of 1 GPU")
		if s := w.status("dept"); s.Allocated.GPU != "1" || s.PendingGangs != 1 {
			t.Errorf("status of the parent %+v", s)
		}
	})
}

func TestQueueThatCannotTakeThePodSaysSo(t *testing.T) {
	runQueues(t, 1, func(w *world) {
		w.queue(aQueue("inner", ""))
		w.queue(aQueue("leaf", "inner"))
		w.queue(aQueue("held", "", func(q *view.Queue) { q.Stop = v1alpha1.StopHold }))
		w.queue(aQueue("small", "", limited(0.5)))
		w.queue(aQueue("others", "", func(q *view.Queue) {
			q.Selector = labels.SelectorFromSet(labels.Set{"team": "x"})
		}))
		cases := map[string]string{
			"nosuch": "There is no queue nosuch; use one of default, held, leaf",
			"inner":  "takes no pods itself; use one of leaf",
			"held":   "stopPolicy holds it; set that to None",
			"small":  "waiting will not help: ask for less, or raise spec.limit of queue small",
			"others": "does not take pods of namespace demo",
		}
		for queue := range cases {
			w.create(queued(queue, "p-"+queue, "100"))
		}
		w.goOn(2 * time.Second)
		warned := w.effects.take(&w.effects.warned)
		for queue, text := range cases {
			w.effects.mu.Lock()
			w.effects.warned = append([]string(nil), warned...)
			w.effects.mu.Unlock()
			w.wantTold("p-"+queue, "QueueWaiting", text)
			w.wantRunning(queue, 0)
		}
		w.queue(aQueue("nosuch", ""))
		w.queue(aQueue("held", ""))
		w.goOn(2 * time.Second)
		w.wantRunning("nosuch", 1)
		w.wantRunning("held", 1)
	})
}

func TestUngatedPodsHeedTheLimitToo(t *testing.T) {
	runQueues(t, 2, func(w *world) {
		w.queue(aQueue("a", "", limited(2)))
		for _, name := range []string{"p", "q", "r"} {
			w.create(open(queued("a", name, "100")))
		}
		w.goOn(2 * time.Second)
		w.wantRunning("a", 2)
		w.wantTold(w.waitingIn("a"), "of its limit of 2 GPUs")
		w.remove(w.pod(fixture.Identify(fixture.Pod("p")).UID))
		w.goOn(2 * time.Second)
		w.wantRunning("a", 2)
	})
}

// Three teams deserve 4, 2 and 2 of 8 GPUs. One borrows all, the others come.
func TestDeservedIsTakenBackExactly(t *testing.T) {
	runQueues(t, 2, func(w *world) {
		w.queue(aQueue("a", "", deserves(4)))
		w.queue(aQueue("b", "", deserves(2)))
		w.queue(aQueue("c", "", deserves(2)))
		w.submit("a", 10, "100")
		w.goOn(2 * time.Second)
		w.wantRunning("a", 8)
		w.submit("b", 3, "100")
		w.submit("c", 3, "100")
		w.goOn(10 * time.Second)
		w.wantRunning("a", 4)
		w.wantRunning("b", 2)
		w.wantRunning("c", 2)
		if len(w.evicted) != 4 {
			t.Errorf("evicted %q, want 4 of a", w.evicted)
		}
		w.goOn(60 * time.Second)
		if len(w.evicted) != 4 {
			t.Errorf("evicted %q: more than was needed", w.evicted)
		}
		for _, q := range []string{"a", "b", "c"} {
			if s := w.status(q); s.FairShare.GPU != s.Allocated.GPU {
				t.Errorf("queue %s has %s of its fair share of %s", q, s.Allocated.GPU, s.FairShare.GPU)
			}
		}
	})
}

func TestReclaimKeepsWhatVictimsLeaveForItsTaker(t *testing.T) {
	runQueues(t, 1, func(w *world) {
		w.queue(aQueue("a", "", deserves(1)))
		w.queue(aQueue("b", "", deserves(3)))
		w.submit("a", 4, "100")
		w.goOn(2 * time.Second)
		w.create(queued("b", "pair", "2 GPU"))
		w.goOnWithoutEvicting(time.Second)
		victims := w.effects.take(&w.effects.evicted)
		if len(victims) != 2 {
			t.Fatalf("victims %q, want two", victims)
		}
		// One goes; somebody who would fit there comes.
		w.leave(victims[:1], time.Second)
		w.create(open(queued("a", "thief", "50")))
		w.goOnWithoutEvicting(5 * time.Second)
		if running := w.runningIn("a"); len(running) != 3 {
			t.Errorf("queue a runs %q, want the thief to wait", running)
		}
		w.leave(victims[1:], time.Second)
		w.goOn(2 * time.Second)
		w.wantRunning("b", 1)
	})
}

func TestPriorityPreemptsInItsOwnQueueOnly(t *testing.T) {
	runQueues(t, 2, func(w *world) {
		w.queue(aQueue("a", "", deserves(4)))
		w.queue(aQueue("b", "", deserves(4)))
		w.submit("a", 4, "100")
		w.submit("b", 4, "100")
		w.goOn(2 * time.Second)
		w.create(withPriority(queued("a", "urgent", "100"), 100))
		w.goOn(5 * time.Second)
		w.wantRunning("b", 4)
		w.wantRunning("a", 4)
		if w.pod(fixture.Identify(fixture.Pod("urgent")).UID).Spec.NodeName == "" || len(w.evicted) != 1 {
			t.Errorf("evicted %q, want one of a for the urgent pod", w.evicted)
		}
	})
}

func TestStoppedQueueIsDrained(t *testing.T) {
	runQueues(t, 1, func(w *world) {
		w.queue(aQueue("dept", ""))
		w.queue(aQueue("a", "dept"))
		w.submit("a", 2, "100")
		w.submit("default", 1, "100")
		w.goOn(2 * time.Second)
		w.queue(aQueue("dept", "", func(q *view.Queue) { q.Stop = v1alpha1.StopHoldAndDrain }))
		w.goOn(15 * time.Second)
		w.wantRunning("a", 0)
		w.wantRunning("default", 1)
	})
}

func TestPodsWithoutGPUsWaitForCPUQuota(t *testing.T) {
	runQueues(t, 1, func(w *world) {
		cpu := int64(3000)
		w.queue(aQueue("a", "", func(q *view.Queue) { q.Limit.CPU = &cpu }))
		for _, name := range []string{"p", "q"} {
			pod := queued("a", name, "")
			pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}
			w.create(pod)
		}
		w.goOn(2 * time.Second)
		w.wantRunning("a", 1)
		w.wantTold("q", "ueue a uses 2 cpu of its limit of 3 cpu, and the pod asks for 2 cpu")
		cpu = 4000
		w.queue(aQueue("a", "", func(q *view.Queue) { q.Limit.CPU = new(int64(4000)) }))
		w.goOn(2 * time.Second)
		w.wantRunning("a", 2)
	})
}

func TestGangWaitsForItsQuotaAsAWhole(t *testing.T) {
	runQueues(t, 2, func(w *world) {
		w.size = 4
		w.queue(aQueue("a", "", limited(3)))
		pods := gangPods("g", 4, 4, "100")
		for _, pod := range pods {
			pod.Labels[contract.QueueLabel] = "a"
		}
		w.create(pods...)
		w.goOn(2 * time.Second)
		w.wantBound("g", 0)
		w.wantWaits("g", v1alpha1.ReasonQueueTooSmall, "the gang of 4 asks for 4 GPUs, and queue a has a limit of 3 GPUs")
		w.queue(aQueue("a", "", limited(4)))
		w.goOn(2 * time.Second)
		w.wantBound("g", 4)
	})
}

func TestWholeGangsAreVictims(t *testing.T) {
	runQueues(t, 2, func(w *world) {
		w.size = 4
		w.queue(aQueue("a", "", deserves(4)))
		w.queue(aQueue("b", "", deserves(4)))
		for _, g := range []string{"g", "h"} {
			pods := gangPods(g, 4, 4, "100")
			for _, pod := range pods {
				pod.Labels[contract.QueueLabel] = "a"
			}
			w.create(pods...)
			w.goOn(2 * time.Second)
			w.wantBound(g, 4)
		}
		w.submit("b", 1, "100")
		w.goOn(5 * time.Second)
		w.wantRunning("b", 1)
		if len(w.evicted) != 4 || w.bound("g") != 4 && w.bound("h") != 4 {
			t.Errorf("evicted %q, want one whole gang", w.evicted)
		}
	})
}

func TestLongWaitingGangGetsWhatBecomesFree(t *testing.T) {
	runQueues(t, 2, func(w *world) {
		w.size = 4
		w.queue(aQueue("a", ""))
		w.queue(aQueue("b", ""))
		w.submit("a", 8, "100")
		w.goOn(time.Second)
		pods := gangPods("big", 4, 4, "100")
		for _, pod := range pods {
			pod.Labels[contract.QueueLabel] = "b"
		}
		w.create(pods...)
		// One job ends every ten seconds, and two new ones come.
		for i := range 40 {
			w.goOn(10 * time.Second)
			if running := w.runningIn("a"); len(running) > 0 {
				w.remove(w.pod(fixture.Identify(fixture.Pod(running[i%len(running)])).UID))
			}
			w.submit("a", 2, "100")
			if i == 4 {
				if word, text := w.why("big"); word != v1alpha1.ReasonNoPlace || !strings.Contains(text, "is set aside for it until 00:10:3") {
					t.Errorf("the gang waits for %s: %s", word, text)
				}
				told := strings.Join(w.effects.take(&w.effects.warned), "\n")
				if want := "Free GPUs on 1 node(s) are set aside for gang demo/big of queue b"; !strings.Contains(told, want) {
					t.Errorf("others were told\n%s\nwant %q", told, want)
				}
			}
			if w.bound("big") == 4 {
				if waited := time.Duration(i+1) * 10 * time.Second; waited > 5*time.Minute {
					t.Errorf("the gang waited for %v", waited)
				}
				return
			}
		}
		w.wantBound("big", 4)
	}, func(o *Options) {
		o.Reclaim = false // nobody is evicted here
		o.ReservationDelay, o.ReservationTimeout = 30*time.Second, 10*time.Minute
	})
}

// A queue's pods come back when there is room, and nobody else is evicted.
func TestQueueIsOpenWithoutBacklog(t *testing.T) {
	runQueues(t, 1, func(w *world) {
		w.queue(aQueue("a", "", deserves(4)))
		w.goOn(time.Second)
		if s := w.status("a"); !s.Open {
			t.Errorf("an idle queue is not open: %+v", s)
		}
		w.submit("a", 5, "100")
		w.goOn(time.Second)
		if s := w.status("a"); s.Open || s.PendingGangs != 1 {
			t.Errorf("a queue with a backlog: %+v", s)
		}
		w.remove(w.pod(fixture.Identify(fixture.Pod(w.runningIn("a")[0])).UID))
		w.goOn(time.Second)
		w.remove(w.pod(fixture.Identify(fixture.Pod(w.runningIn("a")[0])).UID))
		w.goOn(time.Second)
		if s := w.status("a"); !s.Open || s.Allocated.GPU != "3" {
			t.Errorf("a queue without backlog: %+v", s)
		}
	})
}

// What stands in the way is not a lack of GPUs but a limit above both queues.
func TestReclaimBelowALimitAboveBoth(t *testing.T) {
	runQueues(t, 2, func(w *world) {
		w.queue(aQueue("dept", "", limited(4)))
		w.queue(aQueue("a", "dept", deserves(2)))
		w.queue(aQueue("b", "dept", deserves(2)))
		w.submit("a", 6, "100")
		w.goOn(2 * time.Second)
		w.wantRunning("a", 4)
		w.submit("b", 3, "100")
		w.goOn(10 * time.Second)
		w.wantRunning("a", 2)
		w.wantRunning("b", 2)
		if len(w.evicted) != 2 {
			t.Errorf("evicted %q, want two of a", w.evicted)
		}
		// At the limit of its own queue a pod of high priority preempts.
		w.create(withPriority(queued("b", "urgent", "100"), 100))
		w.goOn(10 * time.Second)
		if w.pod(fixture.Identify(fixture.Pod("urgent")).UID).Spec.NodeName == "" || len(w.evicted) != 3 {
			t.Errorf("evicted %q, want one of b for the urgent pod", w.evicted)
		}
		w.wantRunning("a", 2)
	})
}
