package planner

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/tranche-dev/tranche/extender/internal/fixture"
	"github.com/tranche-dev/tranche/pkg/contract"
)

// badNodes lets the scheduler refuse the pods called p on some nodes, for a
// reason that the planner does not know. counts: it refuses nodes without enough
// shares as well, so that Filter does not hear of them.
func (w *world) badNodes(counts bool, nodes ...string) {
	w.tells = true
	w.refuses = func(pod *corev1.Pod, node string) bool {
		return slices.Contains(nodes, node) && strings.HasPrefix(pod.Name, "p")
	}
	w.full = func(pod *corev1.Pod, node string) bool {
		return counts && w.p.Snapshot().Ledger.Node(node).Free() < 100 && !w.holdsOn(pod, node)
	}
}

// holdsOn says whether the pod holds GPUs of a node, which the scheduler counts
// as free.
func (w *world) holdsOn(pod *corev1.Pod, node string) bool {
	for _, r := range w.p.Snapshot().Ledger.Node(node).Claims() {
		if r.Pod.UID == pod.UID {
			return true
		}
	}
	return false
}

// A pod whose volume is in another zone held GPUs where it could not go, and
// nobody was evicted where it could.
func TestSinglePodIsTriedOnOtherNodesThanTheSchedulerRefuses(t *testing.T) {
	for _, counts := range []bool{false, true} {
		for _, gated := range []bool{false, true} {
			for _, models := range []bool{false, true} {
				if counts && !gated {
					continue // it was never admitted, and is the scheduler's business
				}
				t.Run(fmt.Sprintf("Filter is asked %t, gated %t, models are limited %t", !counts, gated, models), func(t *testing.T) {
					runQueues(t, 3, func(w *world) {
						q := aQueue("x", "")
						if models {
							modelLimited(map[string]float64{fixture.Model: 12})(q)
						}
						w.queue(q)
						w.submit("x", 12, "100")
						w.goOn(2 * time.Second)
						w.wantRunning("x", 12)
						for _, name := range w.runningIn("x") {
							if node := w.pod(uidOf(name)).Spec.NodeName; node != "c" {
								w.remove(w.pod(uidOf(name)))
							}
						}
						w.badNodes(counts, "a", "b")
						pod := withPriority(queued("x", "p", "100"), 10)
						if !gated {
							open(pod)
						}
						w.create(pod)
						w.goOn(5 * time.Second)
						if node := w.pod(pod.UID).Spec.NodeName; node != "c" {
							t.Errorf("p is on %q, want c, where others have a lower priority", node)
						}
						if len(w.evicted) != 1 {
							t.Errorf("evicted %q, want one", w.evicted)
						}
						w.goOn(time.Minute)
						if held := w.held(); held != 0 {
							t.Errorf("%d shares are held for nobody", held)
						}
					})
				})
			}
		}
	}
}

// If nobody may go for it either, it waits, is told why, and takes the first node
// that will do.
func TestSinglePodThatTheSchedulerRefusesIsTold(t *testing.T) {
	for _, counts := range []bool{false, true} {
		t.Run(fmt.Sprintf("Filter is asked %t", !counts), func(t *testing.T) {
			runQueues(t, 3, func(w *world) {
				w.queue(aQueue("x", "", deserves(12)))
				w.queue(aQueue("y", ""))
				w.submit("x", 12, "100")
				w.goOn(2 * time.Second)
				last := ""
				for _, name := range w.runningIn("x") {
					if node := w.pod(uidOf(name)).Spec.NodeName; node != "c" {
						w.remove(w.pod(uidOf(name)))
					} else {
						last = name
					}
				}
				w.badNodes(counts, "a", "b")
				w.create(queued("y", "p", "100"), queued("y", "q", "100"))
				w.goOn(time.Minute)
				if w.pod(uidOf("q")).Spec.NodeName == "" {
					t.Error("q, which no node refuses, waits")
				}
				if n := w.held(); n > 100 {
					t.Errorf("%d shares are held for one pod", n)
				}
				w.goOnBy(10*time.Minute, time.Second)
				w.wantTold("p", "GPUUnavailable", "kube-scheduler's own filters refuse nodes a, b, where there is room", "FailedScheduling")
				w.remove(w.pod(uidOf(last)))
				w.goOnBy(time.Minute, time.Second)
				if node := w.pod(uidOf("p")).Spec.NodeName; node != "c" {
					t.Errorf("p is on %q, want c", node)
				}
			})
		})
	}
}

// What was wrong with a node may pass.
func TestRefusedNodeIsTriedAgain(t *testing.T) {
	runQueues(t, 1, func(w *world) {
		w.badNodes(true, "a")
		w.create(queued("default", "p", "100"))
		w.goOn(5 * time.Second)
		w.badNodes(true)
		w.goOnBy(time.Minute, time.Second)
		w.wantRunning("default", 1)
	})
}

// Nobody goes for a pod that would not start anywhere: its volume does not exist,
// say.
func TestNobodyIsEvictedForAPodThatLacksNoResources(t *testing.T) {
	runQueues(t, 2, func(w *world) {
		w.queue(aQueue("x", ""))
		w.submit("x", 8, "100")
		w.goOn(2 * time.Second)
		w.endOne("x")
		w.badNodes(true, w.nodes...)
		w.create(withPriority(queued("x", "p", "100"), 10))
		w.goOnBy(10*time.Minute, time.Second)
		if len(w.evicted) > 0 {
			t.Errorf("evicted %q", w.evicted)
		}
		w.wantTold("p", "GPUUnavailable", "refuses all nodes", "1 is not what the pod needs")
		w.badNodes(true)
		w.goOnBy(6*time.Minute, time.Second)
		w.wantRunning("x", 8)
	})
}

// Room is not made on one node after the other for a pod that no node takes.
func TestEvictionsForAPodThatEveryNodeRefusesGetRare(t *testing.T) {
	for _, counts := range []bool{false, true} {
		runQueues(t, 6, func(w *world) {
			w.queue(aQueue("x", ""))
			w.queue(aQueue("y", "", deserves(2)))
			w.submit("x", 24, "100")
			w.goOn(2 * time.Second)
			w.badNodes(counts, w.nodes...)
			w.create(queued("y", "p", "100"))
			w.goOnWithSuccessors(time.Hour, "x", "100")
			if n := len(w.evicted); n == 0 || n > 4 {
				t.Errorf("%d evicted in an hour, want 1 to 4", n)
			}
			w.badNodes(counts)
			w.goOnWithSuccessors(3*time.Hour, "x", "100")
			w.wantRunning("y", 1)
		})
	}
}

// A cluster of which the scheduler looks at a sample only may leave the node out
// by chance.
func TestANodeThatIsNotInTheSampleIsNotRefused(t *testing.T) {
	others := make([]string, leastSampled)
	for i := range others {
		others[i] = fmt.Sprint("other", i)
	}
	cases := map[string]struct {
		nominated string
		offered   []string
		want      bool
	}{
		"few":                       {"", others[1:], true},
		"many":                      {"", others, false},
		"many, and it is nominated": {"a", others, true},
		"its old nomination alone":  {"other0", others[:1], false},
		"the node itself":           {"", []string{"a"}, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			run(t, func(k *kit) {
				k.node("a", 1)
				pod := fixture.Pod("p", "50")
				pod.Labels = map[string]string{contract.QueueLabel: "q"}
				pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: contract.AdmissionGate}}
				w := newWorld(k)
				w.namespace("demo", true)
				w.queue(aQueue("q", ""))
				k.observe(pod)
				k.after(2 * tick)
				k.wantCharged("a", 0, 0, 50)
				open(pod).Status.NominatedNodeName = c.nominated
				k.filter(pod, c.offered...)
				held := w.held()
				if refused := held == 0; refused != c.want {
					t.Errorf("refused %t, want %t", refused, c.want)
				}
			}, withQueues)
		})
	}
}
