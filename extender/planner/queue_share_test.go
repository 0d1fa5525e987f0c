package planner

import (
	"testing"
	"time"

	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
)

func reclaimsNothing(q *view.Queue) { q.Reclaim = v1alpha1.ReclaimNever }

func patient(o *Options) { o.ReservationDelay, o.ReservationTimeout = 2*time.Minute, 30*time.Minute }

// Whatever became free below the common limit went to the next small pod of the
// queue that was above its share.
func TestPairWithinItsShareStartsBesideAStreamOfSinglePods(t *testing.T) {
	runQueues(t, 2, func(w *world) {
		w.queue(aQueue("dept", "", limited(4)))
		w.queue(aQueue("a", "dept", deserves(2)))
		w.queue(aQueue("b", "dept", deserves(2), reclaimsNothing))
		w.submit("a", 4, "100")
		w.goOn(time.Second)
		w.create(queued("b", "pair", "2 GPU"))
		for range 30 {
			w.goOnBy(10*time.Second, time.Second)
			if len(w.runningIn("a")) > 2 {
				w.endOne("a")
			}
			w.submit("a", 1, "100")
		}
		w.wantRunning("b", 1)
		w.wantRunning("a", 2)
	}, patient)
}

// GPUs are not put by for somebody whom a limit keeps out.
func TestGPUsAreNotPutByForAPodThatWaitsForQuota(t *testing.T) {
	runQueues(t, 2, func(w *world) {
		w.queue(aQueue("dept", "", limited(4)))
		w.queue(aQueue("a", "dept"))
		w.queue(aQueue("b", "dept", deserves(2), reclaimsNothing))
		w.queue(aQueue("c", ""))
		w.submit("a", 4, "100")
		w.goOn(time.Second)
		w.create(queued("b", "pair", "2 GPU"))
		w.goOnBy(5*time.Minute, time.Second)
		w.create(queued("c", "whole", "4 GPU"))
		w.goOn(2 * time.Second)
		w.wantRunning("c", 1)
	}, patient)
}
