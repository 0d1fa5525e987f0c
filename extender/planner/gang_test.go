package planner

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tranche-dev/tranche/extender/internal/fixture"
	"github.com/tranche-dev/tranche/extender/view"
)

// runWorld runs f in a world of nodes a, b, ... with four GPUs each.
func runWorld(t *testing.T, nodes int, f func(w *world), set ...func(o *Options)) {
	t.Helper()
	run(t, func(k *kit) {
		names := make([]string, 0, nodes)
		for i := range nodes {
			names = append(names, string(rune('a'+i)))
		}
		w := newWorld(k, names...)
		for _, name := range names {
			w.bigNode(name, 4)
		}
		f(w)
		w.finish()
	}, set...)
}

func (w *world) wantBound(gang string, want int) {
	w.Helper()
	if got := w.bound(gang); got != want {
		word, message := w.why(gang)
		w.Errorf("gang %s: %d bound, want %d (%s: %s)", gang, got, want, word, message)
	}
}

func (w *world) wantWaits(gang, word, part string) {
	w.Helper()
	gotWord, message := w.why(gang)
	if gotWord != word || !strings.Contains(message, part) {
		w.Errorf("gang %s waits for %q: %q, want %q with %q", gang, gotWord, message, word, part)
	}
	if held := w.held(); held != 0 {
		w.Errorf("%d shares are held for gangs that wait", held)
	}
}

func TestGangStartsWhole(t *testing.T) {
	for _, n := range []int{1, 2, 8, 32} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			runWorld(t, 8, func(w *world) {
				w.create(gangPods("g", n, n, "100")...)
				w.goOn(2 * time.Second)
				w.wantBound("g", n)
				if got := w.phase("g"); got != "Running" {
					t.Errorf("phase %q, want Running", got)
				}
				if w.held() != 0 || w.overcommitted() != 0 {
					t.Errorf("held %d, overcommitted %d", w.held(), w.overcommitted())
				}
			})
		})
	}
}

func TestGangThatLacksRoomForOneHoldsNothingAndSaysWhy(t *testing.T) {
	runWorld(t, 2, func(w *world) {
		w.create(gangPods("g", 9, 9, "100")...)
		w.goOn(time.Second)
		w.wantBound("g", 0)
		w.wantWaits("g", "NoPlace", "8 places")
		w.bigNode("c", 4)
		w.nodes = append(w.nodes, "c")
		w.goOn(2 * time.Second)
		w.wantBound("g", 9)
	})
}

func TestGangWaitsForItsMembers(t *testing.T) {
	runWorld(t, 1, func(w *world) {
		pods := gangPods("g", 4, 4, "50")
		w.create(pods[:3]...)
		w.goOn(time.Second)
		w.wantWaits("g", "WaitingForMembers", "3 of 4 members are there")
		w.create(pods[3])
		w.goOn(time.Second)
		w.wantBound("g", 4)
	})
}

func TestWhatKeepsAGangWaiting(t *testing.T) {
	cases := map[string]struct {
		pods       func() []*corev1.Pod
		word, part string
	}{
		"nobody says how many": {func() []*corev1.Pod { return gangPods("g", 2, 0, "50") }, "MinCountUnknown", "gang-min-count"},
		"priorities differ": {func() []*corev1.Pod {
			pods := gangPods("g", 2, 2, "50")
			high := int32(100)
			pods[1].Spec.Priority = &high
			return pods
		}, "MembersDisagree", "priorityClassName"},
		"queues differ": {func() []*corev1.Pod {
			pods := gangPods("g", 2, 2, "50")
			pods[1].Labels["tranche.dev/queue"] = "other"
			return pods
		}, "MembersDisagree", "tranche.dev/queue"},
		"foreign gate": {func() []*corev1.Pod {
			pods := gangPods("g", 2, 2, "50")
			pods[1].Spec.SchedulingGates = append(pods[1].Spec.SchedulingGates, corev1.PodSchedulingGate{Name: "example.com/quota"})
			return pods
		}, "ForeignGate", "example.com/quota"},
		"two namespaces": {func() []*corev1.Pod {
			pods := gangPods("g", 2, 2, "50")
			pods[1].Namespace = "other"
			return pods
		}, "WaitingForMembers", "a gang of the same name in namespace other"},
		"invalid member": {func() []*corev1.Pod {
			pods := gangPods("g", 2, 2, "50")
			pods[1] = memberPod("g", "g-1", 2, "101")
			return pods
		}, "InvalidMember", "g-1"},
		"never enough GPUs": {func() []*corev1.Pod { return gangPods("g", 2, 2, "5 GPU") }, "NoPlace", ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			runWorld(t, 1, func(w *world) {
				w.create(tc.pods()...)
				w.goOn(3 * time.Second)
				w.wantBound("g", 0)
				w.wantWaits("g", tc.word, tc.part)
				warned := w.effects.take(&w.effects.warned)
				for _, text := range warned {
					if !strings.Contains(text, "GangWaiting") {
						t.Errorf("event %q", text)
					}
				}
				if len(warned) == 0 || len(warned) > 2 {
					t.Errorf("%d events, want one per member: %q", len(warned), warned)
				}
			})
		})
	}
}

func TestTwoGangsNeverHoldHalfEach(t *testing.T) {
	for seed := range 20 {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			runWorld(t, 3, func(w *world) {
				a, b := gangPods("a", 8, 8, "100"), gangPods("b", 8, 8, "100")
				for i := range a {
					w.create(a[i], b[i])
					if (i+seed)%3 == 0 {
						w.goOn(time.Duration(seed) * 10 * time.Millisecond)
					}
				}
				w.goOn(2 * time.Second)
				first, second, pods := "a", "b", a
				if w.bound("b") > 0 {
					first, second, pods = "b", "a", b
				}
				w.wantBound(first, 8)
				w.wantBound(second, 0)
				w.wantWaits(second, "NoPlace", "4 places")
				w.remove(pods...)
				w.goOn(2 * time.Second)
				w.wantBound(second, 8)
			})
		})
	}
}

func TestSchedulerRefusesTheHeldNode(t *testing.T) {
	runWorld(t, 3, func(w *world) {
		w.refuses = func(pod *corev1.Pod, node string) bool { return pod.Name == "g-0" && node != "c" }
		w.create(gangPods("g", 4, 4, "100")...)
		w.goOn(5 * time.Second)
		w.wantBound("g", 4)
		if got := w.pod("uid-g-0").Spec.NodeName; got != "c" {
			t.Errorf("g-0 is on %q, want c", got)
		}
	})
}

func TestNobodyIsBoundWhileTheSchedulerRefusesOne(t *testing.T) {
	runWorld(t, 2, func(w *world) {
		w.refuses = func(pod *corev1.Pod, _ string) bool { return pod.Name == "g-2" }
		w.create(gangPods("g", 4, 4, "100")...)
		w.goOn(3 * time.Minute)
		w.wantBound("g", 0)
		if len(w.posted) != 0 {
			t.Errorf("bound: %q, want nobody", w.posted)
		}
		word, _ := w.why("g")
		if word != "SchedulerRefuses" {
			t.Errorf("reason %q, want SchedulerRefuses", word)
		}
		w.refuses = nil
		w.goOn(6 * time.Minute)
		w.wantBound("g", 4)
	})
}

func TestEveryMemberMayFailToBind(t *testing.T) {
	const n = 6
	for k := range n {
		t.Run(fmt.Sprint(k), func(t *testing.T) {
			runWorld(t, 2, func(w *world) {
				left := 2
				w.failBind = func(pod *corev1.Pod) error {
					w.mu.Lock()
					defer w.mu.Unlock()
					if pod.Name == fmt.Sprintf("g-%d", k) && left > 0 {
						left--
						return errConflict
					}
					return nil
				}
				w.create(gangPods("g", n, n, "100")...)
				w.goOn(10 * time.Second)
				w.wantBound("g", n)
				if w.held() != 0 {
					t.Errorf("%d shares are still held", w.held())
				}
				w.create(fixture.Pod("neighbour", "2 GPU"))
				w.goOn(time.Second)
				if w.pod("uid-neighbour").Spec.NodeName == "" {
					t.Error("the neighbour finds no room")
				}
			})
		})
	}
}

func TestMemberDeletedWhileWaiting(t *testing.T) {
	runWorld(t, 2, func(w *world) {
		pods := gangPods("g", 4, 4, "100")
		w.refuses = func(pod *corev1.Pod, _ string) bool { return pod.Name == "g-3" }
		w.create(pods...)
		w.goOn(time.Second) // three wait in Bind
		w.remove(pods[3])
		w.goOn(time.Second)
		w.wantBound("g", 0)
		w.wantWaits("g", "WaitingForMembers", "3 of 4")
		w.refuses = nil
		w.create(memberPod("g", "g-4", 4, "100"))
		w.goOn(5 * time.Second)
		w.wantBound("g", 4)
	})
}

func TestHandMadeGangRulesItsSize(t *testing.T) {
	runWorld(t, 1, func(w *world) {
		w.p.ObserveGang(w.Context(), &view.Gang{Namespace: "demo", Name: "g", MinCount: 3})
		w.create(gangPods("g", 2, 2, "50")...)
		w.goOn(time.Second)
		w.wantWaits("g", "WaitingForMembers", "2 of 3")
		w.p.ObserveGang(w.Context(), &view.Gang{Namespace: "demo", Name: "g", MinCount: 2})
		w.goOn(time.Second)
		w.wantBound("g", 2)
	})
}

func TestNativeGroupRulesItsSize(t *testing.T) {
	runWorld(t, 1, func(w *world) {
		var pods []*corev1.Pod
		for i := range 2 {
			pod := memberPod("x", fmt.Sprint("n-", i), 0, "50")
			delete(pod.Labels, "tranche.dev/gang")
			name := "g"
			pod.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &name}
			pods = append(pods, pod)
		}
		w.p.ObserveGroup(w.Context(), &view.Group{Namespace: "demo", Name: "g", MinCount: 2})
		w.create(pods[0])
		w.goOn(time.Second)
		w.wantWaits("g", "WaitingForMembers", "1 of 2")
		w.create(pods[1])
		w.goOn(time.Second)
		if len(w.posted) != 2 {
			t.Errorf("bound: %q, want both", w.posted)
		}
	})
}

func TestHoldsOfAGangThatTheSchedulerNeverTakesEnd(t *testing.T) {
	runWorld(t, 1, func(w *world) {
		w.create(gangPods("g", 4, 4, "100")...)
		w.after(time.Second)
		if w.held() != 400 {
			t.Fatalf("held %d, want all four GPUs", w.held())
		}
		w.after(gangHoldTimeout - time.Second/2)
		if word, _ := w.why("g"); word != "SchedulerRefuses" {
			t.Errorf("reason %q, want SchedulerRefuses", word)
		}
	})
}

func TestGangsSwitchedOffLiftAllGates(t *testing.T) {
	run(t, func(k *kit) {
		k.p.opts.Gangs = false
		w := newWorld(k, "a")
		w.bigNode("a", 4)
		pods := gangPods("g", 6, 6, "100")
		pods[1].Spec.SchedulingGates = append(pods[1].Spec.SchedulingGates, corev1.PodSchedulingGate{Name: "example.com/quota"})
		w.create(pods...)
		w.goOn(time.Second)
		w.wantBound("g", 4) // placed one by one
		if got := w.pod("uid-g-1").Spec.SchedulingGates; len(got) != 1 || got[0].Name != "example.com/quota" {
			t.Errorf("gates of g-1: %v, want the foreign one alone", got)
		}
		w.finish()
	})
}

func TestRequiredTopologyKeepsAGangInOneDomain(t *testing.T) {
	cases := map[string]struct {
		required bool
		n, want  int
		word     string
	}{
		"fits a rack":                  {true, 8, 8, ""},
		"no rack has room":             {true, 9, 0, "NoDomain"},
		"leaves the rack if preferred": {false, 9, 9, ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			run(t, func(k *kit) {
				w := newWorld(k, "a", "b", "c", "d")
				for i, name := range w.nodes {
					w.labelledNode(name, 4, map[string]string{"rack": fmt.Sprint("r", i/2)})
				}
				w.p.ObserveGang(w.Context(), &view.Gang{Namespace: "demo", Name: "g", MinCount: int32(tc.n), NodeLabel: "rack", Required: tc.required})
				w.create(fixture.Pod("single", "100")) // so that racks differ
				w.goOn(time.Second)
				w.create(gangPods("g", tc.n, tc.n, "100")...)
				w.goOn(2 * time.Second)
				w.wantBound("g", tc.want)
				if word, message := w.why("g"); word != tc.word {
					t.Errorf("reason %q: %q, want %q", word, message, tc.word)
				}
				racks := map[string]bool{}
				for _, pod := range gangPods("g", tc.n, tc.n) {
					if node := w.pod(pod.UID).Spec.NodeName; node != "" {
						racks[map[string]string{"a": "r0", "b": "r0", "c": "r1", "d": "r1"}[node]] = true
					}
				}
				if tc.required && tc.want > 0 && len(racks) != 1 {
					t.Errorf("racks %v, want one", racks)
				}
				w.finish()
			})
		})
	}
}

func TestOnlyBoundMembersOfAGangThatStartsCount(t *testing.T) {
	runWorld(t, 1, func(w *world) {
		w.create(gangPods("g", 4, 4, "100")...)
		w.after(300 * time.Millisecond) // held, not yet ungated
		report := w.effects.reports[GangKey{"demo", "g"}]
		if got := report.Status; got.Phase != "Held" || got.Held != 4 || got.Bound != 0 || got.Ready != "0/4" {
			t.Errorf("status %+v, want Held with 4 held", got)
		}
		if len(report.Status.Placement) != 1 || len(report.Status.Placement[0].Pods) != 4 {
			t.Errorf("placement %+v, want all four on the one node", report.Status.Placement)
		}
		state, err := w.p.State(w.Context())
		if err != nil || len(state.Gangs) != 1 || state.Gangs[0].MinCount != 4 {
			t.Errorf("state %+v, %v", state.Gangs, err)
		}
	})
}

func TestAllThatFitsStartsAtOnce(t *testing.T) {
	cases := map[string]func(w *world){
		"members beyond the minimum": func(w *world) { w.create(gangPods("g", 12, 2, "100")...) },
		"several gangs": func(w *world) {
			for i := range 4 {
				w.create(gangPods(fmt.Sprint("g", i), 3, 3, "100")...)
			}
		},
	}
	for name, make := range cases {
		t.Run(name, func(t *testing.T) {
			runWorld(t, 3, func(w *world) {
				full := fixture.Pod("full", "4 GPU")
				for _, node := range w.nodes {
					pod := full.DeepCopy()
					pod.Name, pod.Spec.NodeSelector = pod.Name+node, nil
					w.create(fixture.Identify(pod))
				}
				w.goOn(time.Second)
				make(w)
				w.goOn(time.Second)
				for _, node := range w.nodes {
					w.remove(w.pod(fixture.Identify(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "full" + node}}).UID))
				}
				w.goOn(time.Second)
				if len(w.posted) != 3+12 {
					t.Errorf("%d are bound, want the 3 that were in the way and all 12", len(w.posted))
				}
			})
		})
	}
}
