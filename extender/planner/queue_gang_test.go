package planner

import (
	"fmt"
	"testing"
	"time"

	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
)

// Spec.queue could be changed while a gang had its places: it ran beyond the
// limit of the other queue.
func TestGangThatIsMovedToAnotherQueueHeedsItsLimit(t *testing.T) {
	object := func(queue string) *view.Gang {
		return &view.Gang{Namespace: "demo", Name: "g", MinCount: 4, Queue: queue}
	}
	for _, bound := range []bool{false, true} {
		t.Run(fmt.Sprintf("bound %v", bound), func(t *testing.T) {
			runQueues(t, 1, func(w *world) {
				w.queue(aQueue("a", ""))
				w.queue(aQueue("b", "", limited(1)))
				w.p.ObserveGang(w.Context(), object("a"))
				w.create(gangPods("g", 4, 4, "100")...)
				w.after(300 * time.Millisecond)
				if w.held() != 400 {
					t.Errorf("%d shares are held, want those of the gang", w.held())
				}
				if bound {
					w.goOn(2 * time.Second)
					w.wantBound("g", 4)
				}
				w.p.ObserveGang(w.Context(), object("b"))
				w.goOn(5 * time.Second)
				if got := w.status("b").Allocated.GPU; got != "0" {
					t.Errorf("queue b has %s GPUs, want none", got)
				}
				if bound { // it stays where it was let in
					w.wantBound("g", 4)
					return
				}
				w.wantBound("g", 0)
				w.wantWaits("g", v1alpha1.ReasonQueueTooSmall, "queue b has a limit of 1 GPU")
			})
		})
	}
}

// New members came before all queues, as if they were a repair.
func TestRaisedMinCountJumpsNoQueue(t *testing.T) {
	runQueues(t, 1, func(w *world) {
		object := func(n int32) *view.Gang { return &view.Gang{Namespace: "demo", Name: "g", MinCount: n} }
		w.queue(aQueue("a", ""))
		w.queue(aQueue("b", "", deserves(4)))
		w.p.ObserveGang(w.Context(), object(1))
		w.create(inQueue("a", gangPods("g", 1, 0, "100")...)...)
		w.goOn(time.Second)
		w.wantBound("g", 1)
		w.submit("b", 6, "100")
		w.goOn(time.Second)
		w.wantRunning("b", 3)
		for i := range 3 {
			w.create(inQueue("a", memberPod("g", fmt.Sprint("g-more-", i), 0, "100"))...)
		}
		w.p.ObserveGang(w.Context(), object(4))
		w.goOn(time.Second)
		for range 3 {
			w.endOne("b")
			w.goOn(2 * time.Second)
		}
		w.wantBound("g", 1)
		w.wantRunning("b", 3)
	}, func(o *Options) { o.Reclaim = false })
}

// The place that is kept for the successor was charged beside it, and the queue
// was at its limit for the time that it is kept.
func TestSuccessorOfALostMemberStartsAtOnceInAFullQueue(t *testing.T) {
	runQueues(t, 2, func(w *world) {
		w.size = 4
		w.queue(aQueue("a", "", limited(4)))
		pods := inQueue("a", gangPods("g", 4, 4, "100")...)
		w.create(pods...)
		w.goOn(2 * time.Second)
		w.wantBound("g", 4)
		w.remove(pods[0])
		w.create(inQueue("a", memberPod("g", "g-next", 4, "100"))...)
		w.goOn(time.Second)
		w.wantBound("g", 4)
	})
}
