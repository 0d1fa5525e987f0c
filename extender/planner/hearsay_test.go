package planner

import (
	"errors"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tranche-dev/tranche/extender/internal/fixture"
	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/contract"
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

func (w *world) view(pod *corev1.Pod) *view.Pod { return view.PodOf(pod, w.p.opts.Resources) }

// Members that Filter tells of before the watch are held beyond their queue's limit.
func TestMembersThatOnlyCallsTellOfHeedTheLimit(t *testing.T) {
	runQueues(t, 1, func(w *world) {
		w.queue(aQueue("a", "", limited(1)))
		w.after(time.Second)
		for _, p := range inQueue("a", gangPods("g", 2, 2, "100")...) {
			w.filter(open(p), "a")
		}
		w.after(time.Second)
		if got := w.held(); got != 0 {
			t.Errorf("%d shares are held, the limit is 100, asked by 200", got)
		}
	})
}

// An answer about a pod in doubt that was read before its Binding began.
func TestAReadThatIsOlderThanTheBindingChangesNothing(t *testing.T) {
	for name, bound := range map[string]bool{"arrives before Bound": false, "arrives after Bound": true} {
		t.Run(name, func(t *testing.T) {
			runWorld(t, 1, func(w *world) {
				pod := fixture.Pod("p", "100")
				w.filter(pod, "a") // the watch is behind
				w.after(confirmWithin + sweepEvery)
				if got := w.effects.take(&w.effects.verified); !slices.Equal(got, []string{"p"}) {
					t.Fatalf("verified %v", got)
				}
				read := w.view(pod) // Verify has read it, the answer is on its way
				w.filter(pod, "a")
				if _, err := w.reserve(pod, "a"); err != nil {
					t.Fatal(err)
				}
				if bound {
					w.p.Bound(w.Context(), target(pod, "a"))
				}
				w.p.Truth(w.Context(), pod.UID, read)
				if !bound {
					w.p.Bound(w.Context(), target(pod, "a"))
				}
				w.after(5 * time.Minute)
				t.Log("verified since:", w.effects.take(&w.effects.verified))
				w.wantCharged("a", 0, 100, 0)
			})
		})
	}
}

// A pod that was bound, verified, and gone before the watch recovered.
func TestAPodThatWasBoundVerifiedAndGoneIsNotCharged(t *testing.T) {
	runWorld(t, 1, func(w *world) {
		pod := fixture.Pod("p", "100")
		plan := w.place(pod, "a")
		w.after(confirmWithin + sweepEvery)
		if got := w.effects.take(&w.effects.verified); !slices.Equal(got, []string{"p"}) {
			t.Fatalf("verified %v", got)
		}
		w.p.Truth(w.Context(), pod.UID, w.view(withPlan(t, pod, "a", plan)))
		// It ends and goes; the watch lists again and has never seen it.
		for range 30 {
			w.after(time.Minute)
			if got := w.effects.take(&w.effects.verified); len(got) > 0 {
				w.p.Truth(w.Context(), pod.UID, nil)
			}
		}
		w.wantCharged("a", 0, 0, 0)
	})
}

// One that was found bound when the scheduler asked again, after a restart say, and that the watch never shows.
func TestAPodThatWasFoundBoundAndIsGoneIsNotCharged(t *testing.T) {
	run(t, func(k *kit) {
		k.node("a", 1)
		pod := fixture.Pod("p", "100")
		if _, err := k.reserve(pod, "a"); err == nil {
			t.Fatal("it is known")
		}
		bound := fixture.Bound(t, pod, "a", one(fixture.GPU("a", 0), 100))
		k.p.Truth(k.Context(), pod.UID, view.PodOf(bound, k.p.opts.Resources)) // as Binder.reserve does
		for range 30 {
			k.after(time.Minute)
			if len(k.effects.take(&k.effects.verified)) > 0 {
				k.p.Truth(k.Context(), pod.UID, nil)
			}
		}
		k.wantCharged("a", 0, 0, 0)
	})
}

func withPlan(t *testing.T, pod *corev1.Pod, node string, plan *contract.Plan) *corev1.Pod {
	pod = boundTo(pod, node)
	text, err := plan.Format()
	if err != nil {
		t.Fatal(err)
	}
	pod.Annotations[contract.PlanAnnotation] = text
	return pod
}

// A call that was made before a pod's deletion was asked for.
func TestAFilterThatIsOlderThanTheDeletionHoldsNothing(t *testing.T) {
	runQueues(t, 1, func(w *world) {
		w.queue(aQueue("a", ""))
		full := open(queued("default", "full", "4 GPU"))
		w.place(full, "a")
		pod := open(queued("a", "p", "1 GPU"))
		pod.Finalizers = []string{"batch.kubernetes.io/job-tracking"}
		w.create(pod)
		going := pod.DeepCopy()
		going.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		w.observe(going)
		w.filter(pod, "a")
		w.gone(boundTo(full, "a"))
		held := 0
		for range 600 {
			w.after(time.Second)
			if w.held() > 0 {
				held++
			}
		}
		if held > 0 {
			t.Errorf("a pod that is being deleted held GPUs for %d s of 600", held)
		}
	})
}

// A pod that runs is deleted by force before the watch shows that it was bound.
func TestAPodDeletedByForceBeforeTheWatchShowsItLingers(t *testing.T) {
	runWorld(t, 1, func(w *world) {
		pod := fixture.Pod("p", "100")
		w.place(pod, "a")
		w.after(confirmWithin + sweepEvery)
		w.p.Truth(w.Context(), pod.UID, nil)
		w.after(time.Second)
		w.wantCharged("a", 0, 100, 0)
		w.after(time.Minute)
		w.wantCharged("a", 0, 0, 0)
	})
}

// A call that comes late for a pod on a node of another device plugin, without queues.
func TestAPodOnAForeignNodeIsNotVerifiedForEver(t *testing.T) {
	run(t, func(k *kit) {
		foreign := fixture.ForeignNode("f")
		k.p.ObserveNode(k.Context(), view.NodeOf(foreign, k.p.opts.Resources))
		k.node("a", 1)
		pod := fixture.Pod("p", "1 GPU")
		k.observe(pod)
		bound := boundTo(pod, "f")
		k.observe(bound)
		k.filter(pod, "a")
		n := 0
		for range 60 {
			k.after(time.Minute)
			if len(k.effects.take(&k.effects.verified)) > 0 {
				n++
				k.p.Truth(k.Context(), pod.UID, view.PodOf(bound, k.p.opts.Resources))
			}
		}
		if n > 1 {
			k.Errorf("verified %d times in an hour, though the watch has told of it", n)
		}
	})
}

// A pod was read bound, and the watch has told since that it is on its way out.
func TestAReadThatIsOlderThanTheDeletionChangesNothing(t *testing.T) {
	runQueues(t, 1, func(w *world) {
		w.queue(aQueue("a", ""))
		pod := open(queued("a", "p", "1 GPU"))
		w.create(pod)
		w.filter(pod, "a")
		r, err := w.reserve(pod, "a")
		if err != nil {
			t.Fatal(err)
		}
		read := withPlan(t, pod, "a", r.Plan) // the call timed out, and the Binder has read it
		going := read.DeepCopy()
		going.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		w.observe(read, going)
		w.p.Truth(w.Context(), pod.UID, w.view(read))
		w.wantNone(func(s *state) string {
			if !s.counted[pod.UID].pod.Deleting {
				return "a pod that is being deleted is taken to go on"
			}
			return ""
		})
	})
}

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
