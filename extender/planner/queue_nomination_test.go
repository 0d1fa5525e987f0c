package planner

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/tranche-dev/tranche/extender/internal/fixture"
)

// An admitted pod that lost its hold once held again and again by its own
// nomination, and was refused each time since its hold had used up the limit.
func TestPodRunsAlthoughItsBindingFailedOnce(t *testing.T) {
	runQueues(t, 1, func(w *world) {
		w.queue(aQueue("a", "", limited(1)))
		failed := false
		w.failBind = func(*corev1.Pod) error {
			if failed {
				return nil
			}
			failed = true
			return errConflict
		}
		w.submit("a", 1, "100")
		w.goOn(time.Minute)
		w.wantRunning("a", 1)
		if !failed {
			t.Error("no Binding has failed")
		}
	})
}

func TestPodRunsAlthoughTheSchedulerIsSlowerThanItsHold(t *testing.T) {
	runQueues(t, 1, func(w *world) {
		w.queue(aQueue("a", "", limited(1)))
		w.submit("a", 1, "100")
		w.goOnWithoutScheduling(70 * time.Second)
		w.wantRunning("a", 0)
		w.goOn(time.Minute)
		w.wantRunning("a", 1)
	})
}

// The planner took its own nominations for those of a preemption, and kept the
// room for ever.
func TestPodThatTheSchedulerDoesNotWantLeavesItsGPUs(t *testing.T) {
	runQueues(t, 1, func(w *world) {
		w.queue(aQueue("a", ""))
		w.queue(aQueue("b", ""))
		w.refuses = func(pod *corev1.Pod, _ string) bool { return pod.Name == "unwanted" }
		w.create(queued("a", "unwanted", "4 GPU"))
		w.goOn(2 * time.Second)
		if w.held() == 0 {
			t.Error("the unwanted pod was never admitted")
		}
		w.create(queued("b", "wanted", "100"))
		w.goOn(2 * time.Minute)
		w.wantRunning("b", 1)
	})
}

// The same with room that was made by reclaim: it lay idle for ever.
func TestNodeThatItsClaimantDoesNotTakeIsUsedByOthers(t *testing.T) {
	runQueues(t, 2, func(w *world) {
		w.queue(aQueue("a", ""))
		w.queue(aQueue("b", "", deserves(2)))
		w.refuses = func(pod *corev1.Pod, _ string) bool { return pod.Name == "unwanted" }
		w.submit("a", 8, "100")
		w.goOn(2 * time.Second)
		w.create(queued("b", "unwanted", "100"))
		w.goOnWithSuccessors(3*time.Minute, "a", "100")
		if len(w.evicted) == 0 {
			t.Error("no room was made")
		}
		w.wantRunning("a", 8)
	})
}

// Its own hold had used up the limit, so a pod was refused when the scheduler
// asked again, as it does after something else has failed before Bind.
func TestFilterMayBeAskedAgainBeforeBind(t *testing.T) {
	runQueues(t, 1, func(w *world) {
		w.queue(aQueue("a", "", limited(1)))
		pod := open(queued("a", "p", "100"))
		w.observe(pod)
		w.goOn(time.Second)
		for i := range 3 {
			if reasons := w.filter(pod, "a"); reasons[0] != "" {
				t.Errorf("the %d. time: %q", i+1, reasons[0])
			}
			w.queue(aQueue(fmt.Sprint("other-", i), "")) // what Filter knows of queues is made anew
			w.after(time.Second)
		}
		if _, err := w.reserve(pod, "a"); err != nil {
			t.Error(err)
		}
	})
}

// A new leader that heard of a nominated pod first gave it the quota of one that
// runs.
func TestNominatedPodGetsNothingBeforeAllPodsAreKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kit{T: t, set: []func(o *Options){withQueues}}
		k.start()
		k.node("a", 2)
		k.p.ObserveQueue(k.Context(), aQueue("q", "", limited(1)))
		waits := open(queued("q", "waits", "100"))
		waits.Status.NominatedNodeName = "a"
		k.observe(waits)
		k.observe(fixture.Bound(k, open(queued("q", "runs", "100")), "a", one(fixture.GPU("a", 1), 100)))
		k.rebuilt()
		k.after(2 * tick)
		k.wantCharged("a", 0, 0, 0)
		k.wantCharged("a", 1, 100, 0)
		k.stop()
	})
}
