package planner

import (
	"fmt"
	"testing"
	"time"

	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
)

// That a pod began to wait was not reported if Filter had refused it.
func TestQueueIsClosedWhenFilterRefusesItsPod(t *testing.T) {
	runQueues(t, 1, func(w *world) {
		w.queue(aQueue("a", "", deserves(4)))
		w.queue(aQueue("b", ""))
		w.submit("a", 4, "100")
		w.goOn(2 * time.Second)
		pod := open(queued("b", "p", "100"))
		w.observe(pod)
		w.after(2 * time.Second)
		if !w.status("b").Open {
			t.Error("queue b is closed though nobody was refused")
		}
		w.filter(pod, "a")
		w.after(time.Second)
		if s := w.status("b"); s.Open || s.PendingGangs != 1 {
			t.Errorf("open %v with %d waiting, want it closed with one", s.Open, s.PendingGangs)
		}
		w.gone(pod)
		w.after(time.Second)
		if s := w.status("b"); !s.Open || s.PendingGangs != 0 {
			t.Errorf("open %v with %d waiting, want it open again", s.Open, s.PendingGangs)
		}
	})
}

// Fair shares were reported only when a charge changed as well.
func TestFairShareFollowsTheNodes(t *testing.T) {
	runQueues(t, 2, func(w *world) {
		w.queue(aQueue("a", ""))
		w.create(inQueue("a", gangPods("g", 9, 9, "100")...)...)
		want := func(gpus string) {
			t.Helper()
			w.goOn(2 * time.Second)
			if got := string(w.status("a").FairShare.GPU); got != gpus {
				t.Errorf("fair share %s, want %s", got, gpus)
			}
		}
		want("8")
		w.p.ForgetNode(w.Context(), "b")
		want("4")
		w.bigNode("b", 2)
		want("6")
	})
}

func TestQueuesAboveThemselvesSaySoAndDeepOnesAreServed(t *testing.T) {
	runQueues(t, 1, func(w *world) {
		for i := range 3 {
			w.queue(aQueue(fmt.Sprint("ring-", i), fmt.Sprint("ring-", (i+1)%3)))
		}
		w.submit("ring-0", 1, "100")
		leaf := ""
		for i := range 80 {
			name := fmt.Sprint("deep-", i)
			w.queue(aQueue(name, leaf))
			leaf = name
		}
		w.submit(leaf, 1, "100")
		w.goOn(2 * time.Second)
		w.wantRunning("ring-0", 0)
		w.wantRunning(leaf, 1)
		if c := w.condition("ring-0", v1alpha1.QueueReady); c.Status != "False" || c.Reason != v1alpha1.ReasonParentCycle {
			t.Errorf("condition %+v, want it to say that the queue is above itself", c)
		}
		if got := w.status("deep-0").Allocated.GPU; got != "1" {
			t.Errorf("the queue at the top has %s GPUs, want 1", got)
		}
	})
}

func TestPodsWaitForAQueueThatIsDeletedAndMadeAnew(t *testing.T) {
	runQueues(t, 1, func(w *world) {
		w.queue(aQueue("q", "", limited(1)))
		w.submit("q", 2, "100")
		w.goOn(time.Second)
		w.wantRunning("q", 1)
		w.p.ForgetQueue(w.Context(), "q")
		w.goOn(time.Second)
		w.wantRunning("q", 1)
		w.queue(aQueue("q", ""))
		w.goOn(time.Second)
		w.wantRunning("q", 2)
	})
}

// Sums near the largest number are not to wrap round.
func TestReclaimBelowLimitsNearTheLargestNumber(t *testing.T) {
	runQueues(t, 1, func(w *world) {
		most := int64(1<<63 - 2)
		vast := func(q *view.Queue) { q.Limit.CPU, q.Limit.Memory = &most, &most }
		w.queue(aQueue("a", "", vast))
		w.queue(aQueue("b", "", deserves(2), vast))
		for i := range 4 {
			w.create(withCPU(queued("a", fmt.Sprint("a", i), "100"), "1"))
		}
		w.goOn(time.Second)
		w.create(withCPU(queued("b", "pair", "2 GPU"), "1"))
		w.goOn(5 * time.Second)
		w.wantRunning("b", 1)
		w.wantRunning("a", 2)
	})
}
