package planner

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tranche-dev/tranche/extender/view"
)

// The API server drops events after an hour: who waits longer, while nothing
// happens, must be told again, whatever it waits for.
func TestPodsThatWaitForHoursAreToldWhyAllTheTime(t *testing.T) {
	for what, limit := range map[string]float64{"a limit": 1, "room": 100} {
		t.Run(what, func(t *testing.T) {
			runQueues(t, 1, func(w *world) {
				w.queue(aQueue("a", "", limited(limit)))
				w.submit("a", 40, "1 GPU")
				w.goOn(2 * time.Second)
				running := w.runningIn("a")
				if len(running) == 0 {
					t.Fatal("nobody runs")
				}
				w.effects.take(&w.effects.warned)
				for hour := range 3 {
					w.after(time.Hour)
					told := strings.Join(w.effects.take(&w.effects.warned), "\n")
					for i := range 40 {
						name := fmt.Sprintf("a-1-%d", i)
						if !slices.Contains(running, name) && !strings.Contains(told, name+": ") {
							t.Errorf("pod %s was told nothing in hour %d", name, hour+1)
						}
					}
				}
			})
		})
	}
}

// A queue whose limit keeps all of its pods out is not looked at while others come
// and go, and yet nobody of it misses anything.
func TestQueueAtItsLimitMissesNothing(t *testing.T) {
	runQueues(t, 2, func(w *world) {
		w.queue(aQueue("top", "", deserves(8), limited(4)))
		w.queue(aQueue("a", "top"))
		w.queue(aQueue("b", "top"))
		w.queue(aQueue("other", "", deserves(8)))
		w.submit("a", 4, "1 GPU")
		w.goOn(time.Second)
		w.wantRunning("a", 4)
		w.submit("b", 6, "1 GPU")
		w.submit("other", 2, "1 GPU")
		w.goOn(10 * time.Second)
		w.wantRunning("other", 2)
		w.wantRunning("b", 2) // which are its share of what the limit leaves; the others borrowed
		for range 3 {
			w.endOne("other")
			w.submit("other", 1, "1 GPU")
			w.goOn(time.Second)
		}
		for i, n := range []int{3, 4} {
			w.endOne("a")
			w.goOn(time.Second)
			w.wantRunning("b", n)
			w.wantSettled()
			if t.Failed() {
				t.Fatal(fmt.Sprint("after ", i+1, " of a have gone"))
			}
		}
		w.queue(aQueue("top", "", deserves(8), limited(5)))
		w.goOn(time.Second)
		w.wantRunning("b", 5)
	})
}

// Those at the front of a queue at its limit go away: who was behind them is
// entitled to have room made.
func TestWhoComesToTheFrontAtALimitHasRoomMade(t *testing.T) {
	runQueues(t, 1, func(w *world) {
		w.queue(aQueue("top", "", deserves(4), limited(4)))
		w.queue(aQueue("b", "top", deserves(2)))
		allTaken(w, "top")
		w.submit("b", 2*mostWants, "1 GPU")
		w.goOn(10 * time.Second)
		w.wantRunning("b", 0)
		w.wantTold("b-1-0", "of its limit of 4", "pods of queue a run for at least 5m0s")
		for i := range mostWants {
			w.remove(w.pod(uidOf(fmt.Sprintf("b-1-%d", i))))
		}
		w.goOn(5 * time.Minute) // until 11 s after they may be taken
		w.wantRunning("b", 3)   // two that it deserves, and half of the others
	})
}

// The same with gangs.
func TestGangThatComesToTheFrontHasRoomMade(t *testing.T) {
	runQueues(t, 1, func(w *world) {
		w.queue(aQueue("b", "", deserves(2)))
		allTaken(w, "")
		var gangs [][]*corev1.Pod
		for i := range 2 * mostWants {
			pods := gangPods(fmt.Sprint("g", i), 2, 2, "100")
			w.p.ObserveGang(w.Context(), &view.Gang{Namespace: "demo", Name: fmt.Sprint("g", i), MinCount: 2, Queue: "b"})
			gangs = append(gangs, pods)
		}
		w.create(slices.Concat(gangs...)...)
		w.goOn(10 * time.Second)
		for _, pods := range gangs[:mostWants] {
			w.remove(pods...)
		}
		w.goOn(4*time.Minute + 52*time.Second) // until 3 s after they may be taken
		w.wantBound(fmt.Sprint("g", mostWants), 2)
	})
}

// allTaken has the pods of a new queue a under parent run on all four GPUs, from
// where nobody may take them for five minutes.
func allTaken(w *world, parent string) {
	w.queue(aQueue("a", parent, func(q *view.Queue) { q.MinRuntime = 5 * time.Minute }))
	for i := range 4 {
		pod := queued("a", fmt.Sprint("a", i), "1 GPU")
		pod.CreationTimestamp = metav1.Now()
		w.create(pod)
	}
	w.goOn(time.Second)
	w.wantRunning("a", 4)
}
