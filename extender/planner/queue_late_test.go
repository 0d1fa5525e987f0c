package planner

import (
	"testing"
	"time"

	"github.com/tranche-dev/tranche/extender/internal/fixture"
)

// kube-scheduler may know a pod before the extender's watch tells of it. It is of
// its queue all the same, and of no other before.
func TestPodThatOnlyTheSchedulerKnowsHeedsItsLimit(t *testing.T) {
	runQueues(t, 1, func(w *world) {
		w.queue(aQueue("a", "", limited(2)))
		w.submit("a", 2, "100")
		w.goOn(2 * time.Second)
		w.wantRunning("a", 2)

		late := fixture.Identify(open(queued("a", "late", "100")))
		w.filter(late, "a")
		w.goOn(time.Second) // rounds go by before the watch tells
		w.create(late)
		w.goOn(2 * time.Second)
		w.wantRunning("a", 2)
		w.wantTold("late", "ueue a uses 2 GPUs of its limit of 2 GPUs")
	})
}
