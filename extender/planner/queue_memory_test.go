package planner

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/tranche-dev/tranche/pkg/contract"
)

// asking is a gated pod that asks for GPU memory.
func asking(queue, name, memory string) *corev1.Pod {
	return annotated(queued(queue, name, "25"), contract.MemoryAnnotation, memory)
}

// Pods were counted before any GPU was known, so each asked for a whole one.
func TestMemoryIsCountedByTheLargestGPUAfterARestart(t *testing.T) {
	runQueues(t, 1, func(w *world) {
		w.queue(aQueue("q", "", limited(0.5), held))
		w.create(asking("q", "p", "20Gi"))
		w.goOn(2 * time.Second)
		w.restartQueues()
		w.goOn(2 * time.Second)
		if s := w.status("q"); s.Demand.GPU != "0.25" {
			t.Errorf("demand %q, want a quarter of a GPU", s.Demand.GPU)
		}
		w.queue(aQueue("q", "", limited(0.5)))
		w.goOn(2 * time.Second)
		w.wantRunning("q", 1)
	})
}

func TestMemoryIsCountedAnewWhenALargerGPUComes(t *testing.T) {
	runModels(t, []modelOf{{4, "small", 40960}}, func(w *world) {
		w.queue(aQueue("q", "", limited(0.3)))
		w.create(asking("q", "p", "20Gi"))
		w.goOn(2 * time.Second)
		w.wantRunning("q", 0)
		w.wantTold("p", "asks for 0.5 GPUs", "a limit of 0.3 GPUs")
		w.nodes = append(w.nodes, "b")
		w.modelNode("b", 4, "large", 81920)
		w.goOn(2 * time.Second)
		w.wantRunning("q", 1)
	})
}

// The place was chosen first, on the fullest GPU, and what it costs the queue was
// asked afterwards: "waiting will not help".
func TestPodTakesTheGPUOnWhichItsQueueCanPayForIt(t *testing.T) {
	nodes := []modelOf{{4, "small", 40960}, {4, "large", 81920}}
	runModels(t, nodes, func(w *world) {
		w.queue(aQueue("q", "", limited(0.3)))
		w.create(asking("q", "p", "20Gi"))
		w.goOn(2 * time.Second)
		w.wantRunning("q", 1)
	})
	runModels(t, nodes, func(w *world) {
		w.size = 2
		w.queue(aQueue("q", "", limited(0.6)))
		pods := inQueue("q", gangPods("g", 2, 2, "25")...)
		for _, pod := range pods {
			annotated(pod, contract.MemoryAnnotation, "20Gi")
		}
		w.create(pods...)
		w.goOn(2 * time.Second)
		w.wantBound("g", 2)
	})
}

// Pods that went while nothing was free were kept until something was.
func TestQueueForgetsPodsThatGoWhileTheyWait(t *testing.T) {
	runQueues(t, 1, func(w *world) {
		w.submit("default", 4, "100")
		w.goOn(time.Second)
		for range 3 {
			w.submit("default", 20, "100")
			w.goOn(time.Second)
			for range 20 {
				w.remove(w.pod(uidOf(w.waitingIn("default"))))
				w.wantSound()
			}
		}
		for range 4 {
			w.endOne("default")
		}
		w.wantNone((*state).leftover)
	})
}

// Sums of backlogs go up to the top, however many levels there are.
func TestQueueBelowManyLevelsCountsInAll(t *testing.T) {
	runQueues(t, 1, func(w *world) {
		const levels = 100
		above := ""
		for i := range levels {
			name := fmt.Sprint("level", i)
			w.queue(aQueue(name, above, limited(0)))
			above = name
		}
		w.create(queued(above, "p", "100"))
		w.goOn(time.Second)
		if n := w.status("level0").PendingGangs; n != 1 {
			t.Errorf("%d wait below the top, want 1", n)
		}
	})
}
