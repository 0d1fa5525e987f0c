package planner

import (
	"testing"
	"time"
)

// Filter passed pods that Reserve refused, again and again and without a word:
// it knew no limits but those on GPUs.
func TestUngatedPodGoesToTheModelThatItsQueueMayStillHave(t *testing.T) {
	runModels(t, []modelOf{{4, "A", 81920}, {4, "B", 81920}}, func(w *world) {
		w.queue(aQueue("q", "", modelLimited(map[string]float64{"A": 1})))
		for _, name := range []string{"p1", "p2", "p3"} {
			w.create(open(queued("q", name, "100")))
			w.goOn(20 * time.Second)
		}
		w.wantRunning("q", 3)
		if s := w.status("q"); s.Allocated.GPUModels["A"] != "1" && s.Allocated.GPUModels["A"] != "" || s.Allocated.GPU != "3" {
			t.Errorf("status %+v, want at most one GPU of model A", s.Allocated)
		}
	})
}

func TestUngatedPodsOfAQueueAtItsCPULimitAreTold(t *testing.T) {
	runQueues(t, 2, func(w *world) { // with one node Filter would ask for the hold
		w.queue(aQueue("q", "", cpuLimited(2)))
		w.create(withCPU(open(queued("q", "p1", "100")), "2"))
		w.goOn(time.Second)
		w.create(withCPU(open(queued("q", "p2", "100")), "2"))
		w.goOn(10 * time.Second)
		w.wantRunning("q", 1)
		w.wantTold("p2", "QueueWaiting", "ueue q uses 2 cpu of its limit of 2 cpu")
		if s := w.status("q"); s.Open || s.PendingGangs != 1 {
			t.Errorf("open %v with %d waiting, want it closed with one", s.Open, s.PendingGangs)
		}
		w.endOne("q")
		w.goOn(10 * time.Second)
		w.wantRunning("q", 1)
	})
}

// The first change after a quiet time never reached what Filter goes by.
func TestFilterKnowsOfTheFirstChangeAfterAQuietTime(t *testing.T) {
	runQueues(t, 2, func(w *world) {
		w.queue(aQueue("q", "", limited(1)))
		first, second := open(queued("q", "first", "100")), open(queued("q", "second", "100"))
		w.observe(first, second)
		w.after(10 * time.Second)
		w.filter(first, "a") // one node: it holds
		w.after(time.Second)
		for i, reason := range w.filter(second, "a", "b") {
			if reason != QueueWaits {
				t.Errorf("node %d: %q, want it refused for the queue", i, reason)
			}
		}
		w.gone(first)
		w.create(second)
		w.goOn(2 * time.Second)
		w.wantRunning("q", 1)
	})
}
