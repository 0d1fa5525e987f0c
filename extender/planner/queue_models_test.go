package planner

import (
	"testing"
	"time"

	"github.com/tranche-dev/tranche/pkg/contract"
)

// That no place had been found was remembered for the queue, whatever models it
// could have at that time.
func TestPodIsTriedAgainWhenALimitOnAModelIsRaised(t *testing.T) {
	runModels(t, []modelOf{{2, "A", 81920}, {2, "B", 81920}, {1, "C", 81920}}, func(w *world) {
		w.queue(aQueue("q", "", modelLimited(map[string]float64{"A": 1, "B": 1})))
		w.queue(aQueue("other", ""))
		w.create(annotated(queued("other", "hog", "100"), contract.ModelAnnotation, "C"))
		w.goOn(time.Second)
		w.submit("q", 3, "100")
		w.goOn(2 * time.Second)
		w.wantRunning("q", 2)
		w.queue(aQueue("q", "", modelLimited(map[string]float64{"A": 1, "B": 2})))
		w.goOn(2 * time.Second)
		w.wantRunning("q", 3)
	})
}

// Pods of one round may have different models, as each uses up a part of the
// limits.
func TestPodsOfOneRoundSpreadOverTheModelsThatAreLeft(t *testing.T) {
	runModels(t, []modelOf{{2, "A", 81920}, {2, "B", 81920}, {2, "C", 81920}}, func(w *world) {
		limits := modelLimited(map[string]float64{"A": 1, "B": 1})
		w.queue(aQueue("q", "", limits, held))
		w.submit("q", 5, "100")
		w.goOn(time.Second)
		w.wantRunning("q", 0)
		w.queue(aQueue("q", "", limits))
		w.goOn(time.Second)
		w.wantRunning("q", 4)
		if s := w.status("q").Allocated.GPUModels; s["A"] != "1" || s["B"] != "1" || s["C"] != "2" {
			t.Errorf("it has %v, want 1 A, 1 B and 2 C", s)
		}
	})
}

// A gang had to fit into what was left of one model as a whole.
func TestGangSpreadsOverModelsWithinTheirLimits(t *testing.T) {
	runModels(t, []modelOf{{4, "A", 81920}, {4, "B", 81920}}, func(w *world) {
		w.size = 4
		w.queue(aQueue("q", "", modelLimited(map[string]float64{"A": 2, "B": 2})))
		w.create(inQueue("q", gangPods("g", 4, 4, "100")...)...)
		w.goOn(2 * time.Second)
		w.wantBound("g", 4)
		if s := w.status("q").Allocated.GPUModels; s["A"] != "2" || s["B"] != "2" {
			t.Errorf("it has %v, want two of each", s)
		}
	})
}
