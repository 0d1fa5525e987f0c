package planner

import (
	"errors"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/tranche-dev/tranche/extender/internal/fixture"
	"github.com/tranche-dev/tranche/extender/view"
)

// A call of kube-scheduler may come after the watch has told of the pod's end. A
// queue had a ghost in it then for ten minutes: others were entitled to less, and
// it could not be deleted.
func TestCallsForPodsThatAreGoneLeaveNothing(t *testing.T) {
	for name, call := range map[string]func(w *world, pod *corev1.Pod){
		"refused everywhere": func(w *world, pod *corev1.Pod) { w.filter(pod, "a", "b") },
		"one node passes":    func(w *world, pod *corev1.Pod) { w.filter(pod, "c") },
		"prioritized":        func(w *world, pod *corev1.Pod) { w.prioritize(pod, "c", "d") },
		"bound": func(w *world, pod *corev1.Pod) {
			var refused *RefusedError
			if _, err := w.p.Reserve(w.Context(), target(pod, "c"), view.PodOf(pod, w.p.opts.Resources)); !errors.As(err, &refused) || refused.Reason != Deleting {
				w.Errorf("bind said %v, want that the pod is going", err)
			}
		},
		"read before it went": func(w *world, pod *corev1.Pod) {
			w.p.Truth(w.Context(), pod.UID, view.PodOf(pod, w.p.opts.Resources))
		},
		"read with a node before it went": func(w *world, pod *corev1.Pod) {
			w.p.Truth(w.Context(), pod.UID, view.PodOf(boundTo(pod, "c"), w.p.opts.Resources))
		},
	} {
		for kind, pod := range map[string]*corev1.Pod{
			"single": open(queued("a", "late", "100")),
			"member": inQueue("a", open(memberPod("g", "late", 2, "100")))[0],
		} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				runQueues(t, 4, func(w *world) {
					w.queue(aQueue("a", ""))
					for _, full := range []string{"a", "b"} {
						w.place(open(queued("default", "on-"+full, "4 GPU")), full)
					}
					pod := fixture.Identify(pod)
					w.create(pod)
					w.remove(pod)
					call(w, pod)
					w.after(time.Second)
					if got := w.status("a"); got.Demand.GPU != "" && got.Demand.GPU != "0" || got.Allocated.GPU != "0" || got.Held.GPU != "0" || got.PendingGangs != 0 {
						w.Errorf("the queue of a pod that is gone has %+v", got)
					}
					w.queue(aQueue("a", "", func(q *view.Queue) { q.Deleting = true }))
					w.after(time.Second)
					if w.inUse("a") {
						w.Error("the queue of a pod that is gone is in use")
					}
					for _, full := range []string{"a", "b"} {
						w.gone(boundTo(open(queued("default", "on-"+full, "4 GPU")), full))
					}
					w.after(time.Second)
					w.wantNone((*state).leftover)
				})
			})
		}
	}
}

// A pod of which the watch never tells has gone before it could, mostly.
func TestPodsThatTheWatchNeverShowsAreVerified(t *testing.T) {
	for kind, pod := range map[string]*corev1.Pod{
		"single": open(queued("a", "p", "100")),
		"member": inQueue("a", open(memberPod("g", "p", 2, "100")))[0],
	} {
		t.Run(kind, func(t *testing.T) {
			runQueues(t, 2, func(w *world) {
				w.queue(aQueue("a", "", limited(0)))
				pod := fixture.Identify(pod)
				w.filter(pod, "a", "b")
				w.after(confirmWithin / 2)
				if got := w.effects.take(&w.effects.verified); len(got) > 0 {
					w.Errorf("verified %v before the watch had its time", got)
				}
				w.after(confirmWithin)
				if got := w.effects.take(&w.effects.verified); !slices.Equal(got, []string{"p"}) {
					w.Errorf("verified %v, want p once", got)
				}
				// It exists, so it is asked for again until the watch tells of it.
				w.p.Truth(w.Context(), pod.UID, view.PodOf(pod, w.p.opts.Resources))
				w.after(confirmWithin + sweepEvery)
				if got := w.effects.take(&w.effects.verified); !slices.Equal(got, []string{"p"}) {
					w.Errorf("verified %v, want p once more", got)
				}
				w.p.Truth(w.Context(), pod.UID, nil)
				w.after(time.Second)
				w.wantNone((*state).leftover)
				// And one that the watch shows is left alone.
				w.create(pod)
				w.after(2 * confirmWithin)
				if got := w.effects.take(&w.effects.verified); len(got) > 0 {
					w.Errorf("verified %v though the watch has told of it", got)
				}
			})
		})
	}
}

// A pod that runs stays in its queue, whatever calls come late.
func TestCallsForPodsThatRunChangeNothing(t *testing.T) {
	runQueues(t, 1, func(w *world) {
		w.queue(aQueue("a", "", limited(4)))
		w.submit("a", 1, "4 GPU")
		w.goOn(2 * time.Second)
		w.wantRunning("a", 1)
		pod := open(queued("a", w.runningIn("a")[0], "4 GPU"))
		w.after(time.Minute) // what was decided is not remembered any more
		w.filter(fixture.Identify(pod), "a")
		w.wantNone(func(s *state) string {
			if len(s.pending) > 0 {
				return "a pod that runs counts as waiting"
			}
			return ""
		})
		w.after(callsLag + 2*sweepEvery)
		if got := w.status("a"); got.Allocated.GPU != "4" || got.PendingGangs != 0 {
			w.Errorf("the queue of a pod that runs has %+v", got)
		}
		w.wantSound()
		w.removeAll()
	})
}

// boundTo is a pod as it is once it sits on a node.
func boundTo(pod *corev1.Pod, node string) *corev1.Pod {
	pod = pod.DeepCopy()
	pod.Spec.NodeName = node
	return pod
}

// inUse says whether a queue was reported to be.
func (w *world) inUse(queue string) bool {
	w.effects.mu.Lock()
	defer w.effects.mu.Unlock()
	return w.effects.queues[queue].InUse
}
