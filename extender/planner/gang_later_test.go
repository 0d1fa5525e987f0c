package planner

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"

	"github.com/tranche-dev/tranche/extender/internal/fixture"
	"github.com/tranche-dev/tranche/extender/view"
)

func TestMembersBeyondTheMinimumStartAsRoomAppears(t *testing.T) {
	runWorld(t, 1, func(w *world) {
		pods := gangPods("g", 6, 2, "100")
		w.create(pods...)
		w.goOn(2 * time.Second)
		w.wantBound("g", 4)
		for _, pod := range pods {
			if w.pod(pod.UID).Spec.NodeName != "" {
				w.remove(pod)
				break
			}
		}
		w.goOn(2 * time.Second)
		w.wantBound("g", 4)
	})
}

func TestLostMemberIsRepairedBeforeNewGangs(t *testing.T) {
	runWorld(t, 1, func(w *world) {
		w.create(gangPods("old", 4, 4, "100")...)
		w.goOn(time.Second)
		w.wantBound("old", 4)
		w.create(fixtureCreated(gangPods("new", 1, 1, "100"), time.Hour)...)
		w.goOn(time.Second)
		w.wantBound("new", 0)
		w.remove(w.pod("uid-old-2"))
		w.create(fixtureCreated([]*corev1.Pod{memberPod("old", "old-5", 4, "100")}, 2*time.Hour)...)
		w.goOn(2 * time.Second)
		w.wantBound("old", 4)
		w.wantBound("new", 0)
	})
}

func fixtureCreated(pods []*corev1.Pod, after time.Duration) []*corev1.Pod {
	for _, pod := range pods {
		fixture.Created(pod, after)
	}
	return pods
}

func TestSucceededMembersCountForEver(t *testing.T) {
	runWorld(t, 1, func(w *world) {
		pods := gangPods("g", 3, 3, "100")
		w.create(pods...)
		w.goOn(time.Second)
		w.change(pods[0].UID, func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodSucceeded })
		w.goOn(time.Second)
		if word, message := w.why("g"); word != "" {
			t.Errorf("gang waits for %s: %s", word, message)
		}
		w.remove(pods[0])
		w.change(pods[1].UID, func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodSucceeded })
		w.change(pods[2].UID, func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodSucceeded })
		w.goOn(time.Second)
		if got := w.phase("g"); got != "Finished" {
			t.Errorf("phase %q, want Finished", got)
		}
	})
}

func TestNewGenerationOfAnOwnerIsANewGang(t *testing.T) {
	runWorld(t, 1, func(w *world) {
		var old, young []*corev1.Pod
		for i := range 2 {
			old = append(old, ownedBy(memberPod("g", fmt.Sprint("old-", i), 3, "50"), "Job", "train", "uid-1"))
			young = append(young, ownedBy(memberPod("g", fmt.Sprint("young-", i), 3, "50"), "Job", "train", "uid-2"))
		}
		w.create(old...)
		w.create(fixtureCreated(young, time.Minute)...)
		w.goOn(time.Second)
		w.wantBound("g", 0)
		w.wantWaits("g", "WaitingForMembers", "2 of 3")
	})
}

func TestStaleGangIsEvictedOnlyIfItSaysSo(t *testing.T) {
	grace := 30 * time.Second
	cases := map[string]struct {
		gang view.Gang
		want int
	}{
		"mode All":     {view.Gang{DisruptAll: true, Staleness: &grace}, 3},
		"mode Single":  {view.Gang{Staleness: &grace}, 0},
		"no grace set": {view.Gang{DisruptAll: true}, 0},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			runWorld(t, 1, func(w *world) {
				g := tc.gang
				g.Namespace, g.Name, g.MinCount = "demo", "g", 4
				w.p.ObserveGang(w.Context(), &g)
				pods := gangPods("g", 4, 4, "100")
				w.create(pods...)
				w.goOn(time.Second)
				w.remove(pods[1])
				w.goOn(grace - time.Second)
				if len(w.evicted) > 0 {
					t.Errorf("evicted within the grace period: %q", w.evicted)
				}
				w.goOn(5 * time.Second)
				if len(w.evicted) != tc.want {
					t.Errorf("evicted %q, want %d", w.evicted, tc.want)
				}
			})
		})
	}
}

func TestRestartFinishesATornGang(t *testing.T) {
	pods := gangPods("g", 4, 4, "100")
	boundTo := func(k *kit, i int) *corev1.Pod {
		pod := pods[i].DeepCopy()
		pod.Spec.SchedulingGates = nil
		pod = fixture.Bound(k, pod, "a", one(fixture.GPU("a", i), 100))
		pod.Status.Phase = corev1.PodRunning
		return pod
	}
	t.Run("with room", func(t *testing.T) {
		runWorld(t, 1, func(w *world) {
			w.create(boundTo(w.kit, 0), boundTo(w.kit, 1), pods[2], pods[3])
			w.goOn(2 * time.Second)
			w.wantBound("g", 4)
		})
	})
	t.Run("without room", func(t *testing.T) {
		runWorld(t, 1, func(w *world) {
			w.create(boundTo(w.kit, 0), boundTo(w.kit, 1))
			stranger := fixture.Bound(w.kit, fixture.Pod("x", "100"), "a", one(fixture.GPU("a", 2), 100))
			w.create(stranger, pods[2], pods[3])
			w.goOn(gangHoldTimeout)
			if len(w.evicted) > 0 {
				t.Errorf("evicted early: %q", w.evicted)
			}
			w.goOn(2 * gangHoldTimeout)
			if len(w.evicted) != 2 {
				t.Errorf("evicted %q, want the bound part of the gang", w.evicted)
			}
		})
	})
}

func TestScalingChangesWhatAGangWaitsFor(t *testing.T) {
	runWorld(t, 1, func(w *world) {
		pods := gangPods("g", 6, 6, "100")
		w.create(pods...)
		w.goOn(time.Second)
		w.wantWaits("g", "NoPlace", "4 places")
		// The owner is scaled down: its newest pods go, the others say so.
		w.remove(pods[4], pods[5])
		w.goOn(time.Second)
		w.wantWaits("g", "WaitingForMembers", "4 of 6")
		for _, pod := range pods[:4] {
			w.change(pod.UID, func(p *corev1.Pod) { p.Annotations["tranche.dev/gang-min-count"] = "4" })
		}
		w.goOn(time.Second)
		w.wantBound("g", 4)
	})
}

func TestWorkOfAnEarlierGangDoesNotCountForTheNext(t *testing.T) {
	for _, overlap := range []bool{false, true} {
		t.Run(fmt.Sprintf("overlap %t", overlap), func(t *testing.T) {
			runWorld(t, 1, func(w *world) {
				w.p.ObserveGang(w.Context(), &view.Gang{Namespace: "demo", Name: "g", MinCount: 3})
				var old, young []*corev1.Pod
				for i := range 3 {
					old = append(old, ownedBy(memberPod("g", fmt.Sprint("old-", i), 0, "100"), "Job", "train", "uid-1"))
					young = append(young, fixture.Created(ownedBy(memberPod("g", fmt.Sprint("young-", i), 0, "100"), "Job", "train", "uid-2"), time.Hour))
				}
				w.create(old...)
				w.goOn(time.Second)
				for _, pod := range old {
					w.change(pod.UID, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
				}
				w.goOn(time.Second)
				if overlap {
					w.remove(old[0])
				} else {
					w.remove(old...)
				}
				w.create(fixture.Pod("filler", "2 GPU"))
				w.goOn(time.Second)
				w.create(young...)
				w.goOn(time.Second)
				for _, pod := range young {
					if w.pod(pod.UID).Spec.NodeName != "" {
						t.Errorf("%s is bound, though there is room for two of three", pod.Name)
					}
				}
				if word, _ := w.why("g"); word != "NoPlace" {
					t.Errorf("reason %q, want NoPlace", word)
				}
			})
		})
	}
}

// TestNextRunOfACronJobIsANewGang: its Jobs have different names, one gang label,
// and the finished ones stay.
func TestNextRunOfACronJobIsANewGang(t *testing.T) {
	owners := map[string]func(pod *corev1.Pod, run string) *corev1.Pod{
		"jobs":      func(pod *corev1.Pod, run string) *corev1.Pod { return ownedBy(pod, "Job", "train-"+run, "uid-"+run) },
		"bare pods": func(pod *corev1.Pod, _ string) *corev1.Pod { return pod },
	}
	for name, own := range owners {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restart %t", name, restart), func(t *testing.T) {
				runWorld(t, 1, func(w *world) {
					var first, second []*corev1.Pod
					for i := range 3 {
						first = append(first, own(memberPod("g", fmt.Sprint("first-", i), 3, "100"), "1"))
						second = append(second, fixture.Created(own(memberPod("g", fmt.Sprint("second-", i), 3, "100"), "2"), time.Hour))
					}
					w.create(first...)
					w.goOn(time.Second)
					for _, pod := range first {
						w.change(pod.UID, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
					}
					w.create(fixture.Pod("filler", "2 GPU"))
					w.goOn(time.Second)
					if restart {
						w.restart()
					}
					w.create(second...)
					w.goOn(time.Second)
					w.wantBound("g", 0)
					if word, _ := w.why("g"); word != "NoPlace" {
						t.Errorf("reason %q, want NoPlace", word)
					}
					w.remove(w.pod("uid-filler"))
					w.goOn(2 * time.Second)
					w.wantBound("g", 3)
				})
			})
		}
	}
}

// TestJobWithMoreCompletionsThanMembersGoesOn: when all of its pods have ended at
// once, those to come are fewer than the minimum.
func TestJobWithMoreCompletionsThanMembersGoesOn(t *testing.T) {
	runWorld(t, 1, func(w *world) {
		job := func(i int) *corev1.Pod {
			return ownedBy(memberPod("g", fmt.Sprint("p-", i), 4, "100"), "Job", "train", "uid-1")
		}
		w.create(job(0), job(1), job(2), job(3))
		w.goOn(time.Second)
		w.wantBound("g", 4)
		for i := range 4 {
			w.change(job(i).UID, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
		}
		w.goOn(time.Second)
		w.create(job(4), job(5))
		w.goOn(time.Second)
		w.wantBound("g", 2)
	})
}

// TestManyLostMembersAreReplacedAtOnce is a rolling update on full nodes.
func TestManyLostMembersAreReplacedAtOnce(t *testing.T) {
	runWorld(t, 3, func(w *world) {
		pods := gangPods("g", 24, 20, "50")
		w.create(pods...)
		w.goOn(2 * time.Second)
		w.wantBound("g", 24)
		for round := range 4 {
			for i := range 6 {
				w.remove(w.pod(pods[round*6+i].UID))
			}
			for i := range 6 {
				w.create(memberPod("g", fmt.Sprintf("new-%d-%d", round, i), 20, "50"))
			}
			w.goOn(2 * time.Second)
			w.wantBound("g", 24)
		}
		if got := testutil.ToFloat64(w.metrics.HoldReleases.WithLabelValues("gang_displaced")); got > 0 {
			t.Errorf("%v places were found that the ledger refused", got)
		}
	})
}

func TestLoweredMinimumLetsThoseWhoWaitInBindGoOn(t *testing.T) {
	runWorld(t, 1, func(w *world) {
		w.refuses = func(pod *corev1.Pod, _ string) bool { return pod.Name == "g-3" }
		w.p.ObserveGang(w.Context(), &view.Gang{Namespace: "demo", Name: "g", MinCount: 4})
		w.create(gangPods("g", 4, 4, "100")...)
		w.goOn(time.Second)
		w.wantBound("g", 0)
		w.p.ObserveGang(w.Context(), &view.Gang{Namespace: "demo", Name: "g", MinCount: 3})
		w.goOn(time.Second)
		w.wantBound("g", 3)
	})
}
