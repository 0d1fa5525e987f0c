package planner

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tranche-dev/tranche/extender/internal/fixture"
	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/placement"
)

func (k *kit) record(pod *corev1.Pod) (*ledger.Record, bool) {
	k.Helper()
	for n := range k.p.Snapshot().Ledger.Nodes() {
		for _, r := range n.Claims() {
			if r.Pod.UID == pod.UID {
				return r, true
			}
		}
	}
	return nil, false
}

// woken lets the planner's tick pass and returns whom it woke.
func (k *kit) woken() []string {
	k.after(2 * tick)
	return k.effects.take(&k.effects.woken)
}

func TestEventOncePerChangeOfReason(t *testing.T) {
	run(t, func(k *kit) {
		k.node("a", 1)
		k.place(fixture.Pod("x", "60"), "a")
		pod := fixture.Pod("p", "50")
		for range 3 {
			k.filter(pod, "a")
		}
		want := []string{"p: GPUUnavailable: " + Message(placement.NotEnoughFree)}
		if diff := cmp.Diff(want, k.effects.take(&k.effects.warned)); diff != "" {
			k.Errorf("events (-want +got):\n%s", diff)
		}
		// The API server has forgotten it, though the pod still waits.
		k.observe(pod)
		k.after(time.Hour)
		k.filter(pod, "a")
		if diff := cmp.Diff(want, k.effects.take(&k.effects.warned)); diff != "" {
			k.Errorf("events (-want +got):\n%s", diff)
		}
		pod.Annotations[contract.ModelAnnotation] = "B200"
		pod.ResourceVersion = "2"
		for range 3 {
			k.filter(pod, "a")
		}
		want = []string{"p: GPUUnavailable: " + Message(placement.NoSuchModel)}
		if diff := cmp.Diff(want, k.effects.take(&k.effects.warned)); diff != "" {
			k.Errorf("events (-want +got):\n%s", diff)
		}
	})
}

func TestEventOfABrokenRequestSaysWhatToWrite(t *testing.T) {
	run(t, func(k *kit) {
		k.node("a", 1)
		k.filter(fixture.Pod("p", "101"), "a")
		got := k.effects.take(&k.effects.warned)
		if len(got) != 1 || !strings.HasPrefix(got[0], "p: InvalidGPURequest: ") || !strings.Contains(got[0], "write at most 100") {
			k.Errorf("events %q", got)
		}
	})
}

func TestWakesOldestFirstAndNoMoreThanFit(t *testing.T) {
	run(t, func(k *kit) {
		k.node("a", 1)
		full := fixture.Bound(k, fixture.Pod("x", "100"), "a", one(fixture.GPU("a", 0), 100))
		k.observe(full)
		var pods []*corev1.Pod
		for i, name := range []string{"third", "second", "big", "first"} {
			limit := "40"
			if name == "big" {
				limit = "70"
			}
			pods = append(pods, fixture.Created(fixture.Pod(name, limit), time.Duration(10-i)*time.Second))
		}
		for _, pod := range pods {
			k.filter(pod, "a")
		}
		if got := k.woken(); got != nil {
			k.Errorf("woken without reason: %v", got)
		}
		k.gone(full)
		if diff := cmp.Diff([]string{"first", "second"}, k.woken()); diff != "" {
			k.Errorf("woken (-want +got):\n%s", diff)
		}
		// More room for more pods; who was woken is not woken again.
		k.node("b", 1)
		if diff := cmp.Diff([]string{"big"}, k.woken()); diff != "" {
			k.Errorf("woken (-want +got):\n%s", diff)
		}
	})
}

func TestWakesWhenRoomAppears(t *testing.T) {
	pod := fixture.Pod("p", "60")
	cases := map[string]func(k *kit){
		"a hold expires": func(k *kit) { k.after(holdTimeout) },
		"a hold moves":   func(k *kit) { k.node("b", 1); k.filter(fixture.Pod("h", "60"), "b") },
		"a bind fails": func(k *kit) {
			h := fixture.Pod("h", "60")
			_, _ = k.reserve(h, "a")
			k.p.Abort(k.Context(), target(h, "a"))
		},
		"the holder goes":     func(k *kit) { k.gone(fixture.Pod("h", "50")) },
		"a node joins":        func(k *kit) { k.node("b", 1) },
		"a node gets more":    func(k *kit) { k.node("a", 2) },
		"a sick GPU recovers": func(k *kit) { k.inventory("s", fixture.Inventory("s", 1)) },
		"a pod of another end": func(k *kit) {
			k.observe(ended(fixture.Bound(k, fixture.Pod("y", "60"), "y", one(fixture.GPU("y", 0), 60)), corev1.PodSucceeded))
		},
	}
	for name, cause := range cases {
		t.Run(name, func(t *testing.T) {
			run(t, func(k *kit) {
				k.node("a", 1)
				k.node("y", 1)
				k.inventory("s", unhealthy("s"))
				k.observe(fixture.Bound(k, fixture.Pod("y", "60"), "y", one(fixture.GPU("y", 0), 60)))
				k.filter(fixture.Pod("h", "60"), "a")
				k.filter(pod, "a", "y", "s")
				if got := k.woken(); got != nil {
					k.Errorf("woken without reason: %v", got)
				}
				cause(k)
				if diff := cmp.Diff([]string{"p"}, k.woken()); diff != "" {
					k.Errorf("woken (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// A hold that is planned anew may move to another GPU of its node.
func TestWakesWhenAHoldMovesWithinItsNode(t *testing.T) {
	run(t, func(k *kit) {
		k.node("a", 2)
		first := fixture.Bound(k, fixture.Pod("first", "60"), "a", one(fixture.GPU("a", 0), 60))
		k.observe(first)
		holder := fixture.Pod("holder", "50")
		k.filter(holder, "a")
		k.wantCharged("a", 1, 0, 50)
		k.gone(first)
		k.observe(fixture.Bound(k, fixture.Pod("second", "50"), "a", one(fixture.GPU("a", 0), 50)))
		k.filter(fixture.Pod("p", "100"), "a")
		if got := k.woken(); got != nil {
			k.Errorf("woken without reason: %v", got)
		}
		k.filter(holder, "a")
		k.wantCharged("a", 0, 50, 50)
		if diff := cmp.Diff([]string{"p"}, k.woken()); diff != "" {
			k.Errorf("woken (-want +got):\n%s", diff)
		}
	})
}

func TestWakesWhoWasRefusedByAnOldSnapshot(t *testing.T) {
	run(t, func(k *kit) {
		k.node("a", 1)
		full := fixture.Bound(k, fixture.Pod("x", "100"), "a", one(fixture.GPU("a", 0), 100))
		k.observe(full)
		seen := k.p.Snapshot().Ledger.Version()
		k.gone(full)
		k.woken() // nobody waits yet
		pod := k.p.view(fixture.Pod("p", "60"))
		_, err := ask(k.Context(), k.p, refusedAt(pod, seen))
		if err != nil {
			k.Fatal(err)
		}
		if diff := cmp.Diff([]string{"p"}, k.woken()); diff != "" {
			k.Errorf("woken (-want +got):\n%s", diff)
		}
	})
}

func TestPodsWokenInVainAreLeftAlone(t *testing.T) {
	run(t, func(k *kit) {
		k.node("a", 1)
		full := fixture.Bound(k, fixture.Pod("x", "100"), "a", one(fixture.GPU("a", 0), 100))
		k.observe(full)
		stubborn := fixture.Pod("stubborn", "100")
		next := fixture.Created(fixture.Pod("next", "100"), time.Second)
		k.filter(stubborn, "a")
		k.filter(next, "a")
		k.gone(full)
		if diff := cmp.Diff([]string{"stubborn"}, k.woken()); diff != "" {
			k.Errorf("woken (-want +got):\n%s", diff)
		}
		// The scheduler does not offer the node: its taints, say.
		k.filter(stubborn, "elsewhere")
		if diff := cmp.Diff([]string{"next"}, k.woken()); diff != "" {
			k.Errorf("woken (-want +got):\n%s", diff)
		}
		// Nor does the next one come back. Then it is the first one's turn
		// again, but not at once.
		k.after(answerWithin)
		if diff := cmp.Diff([]string{"stubborn"}, k.woken()); diff != "" {
			k.Errorf("woken (-want +got):\n%s", diff)
		}
	})
}

// The scheduler asks about the node that the pod is nominated to alone, before it
// asks about all.
func TestWokenPodKeepsItsRoomWhileOnlyItsNominatedNodeIsAskedAbout(t *testing.T) {
	run(t, func(k *kit) {
		k.node("a", 1)
		k.node("b", 1)
		k.place(fixture.Pod("x", "60"), "a")
		other := fixture.Pod("y", "60")
		k.place(other, "b")
		pod := fixture.Pod("p", "50")
		pod.Status.NominatedNodeName = "a"
		k.filter(pod, "a", "b")
		k.gone(other)
		if woken := k.woken(); !slices.Equal(woken, []string{"p"}) {
			k.Fatalf("woken: %q, want the pod that waits", woken)
		}
		k.filter(pod, "a")
		k.wantCharged("b", 0, 0, 50)
		k.filter(pod, "a", "b")
		k.wantCharged("b", 0, 0, 50)
	})
}

func TestPodThatHasAPlaceIsNotSaidToWait(t *testing.T) {
	run(t, func(k *kit) {
		k.node("a", 1)
		other := fixture.Pod("x", "60")
		k.place(other, "a")
		pod := fixture.Pod("p", "50")
		k.observe(pod)
		k.filter(pod, "a")
		k.after(time.Second) // a round finds no room for it
		k.gone(other)
		k.filter(pod, "a")
		k.wantCharged("a", 0, 0, 50)
		k.effects.take(&k.effects.warned)
		k.after(sweepEvery + tick)
		k.wantCharged("a", 0, 0, 50)
		state, err := k.p.State(k.Context())
		if warned := k.effects.take(&k.effects.warned); err != nil || len(state.Waiting) > 0 || len(warned) > 0 {
			k.Errorf("waiting %+v, told %q, want nobody: %v", state.Waiting, warned, err)
		}
	})
}

// A pod may be refused though it holds a GPU: one that is sick now. It is not
// served as long as it holds that, and must not be forgotten when it does not.
func TestPodThatWaitsIsServedWhenItsHoldIsDisplaced(t *testing.T) {
	run(t, func(k *kit) {
		k.node("a", 1)
		pod := fixture.Pod("p", "50")
		k.observe(pod)
		k.filter(pod, "a")
		sick := fixture.Inventory("a", 1)
		sick.GPUs[0].Healthy = false
		k.inventory("a", sick)
		k.filter(pod, "a")
		k.wantCharged("a", 0, 0, 50)
		k.node("b", 1)
		k.observe(fixture.Bound(k, fixture.Pod("x", "100"), "a", one(fixture.GPU("a", 0), 100)))
		k.wantCharged("a", 0, 100, 0)
		k.wantCharged("b", 0, 0, 50)
	})
}

func TestNobodyIsWokenForAHopelessPod(t *testing.T) {
	run(t, func(k *kit) {
		k.node("a", 1)
		k.filter(fixture.Pod("broken", "101"), "a")
		deleting := fixture.Pod("deleting", "50")
		k.place(fixture.Pod("x", "100"), "a")
		k.filter(deleting, "a")
		deleting = deleting.DeepCopy()
		deleting.DeletionTimestamp = &deleting.CreationTimestamp
		k.observe(deleting)
		k.node("b", 1)
		if got := k.woken(); got != nil {
			k.Errorf("woken: %v", got)
		}
	})
}

func TestEveryReasonHasALabelAndASentence(t *testing.T) {
	labels := map[string]bool{}
	for _, r := range append(placement.Reasons(), Invalid, Deleting, Decided) {
		label := Label(r)
		if label == "Other" || labels[label] {
			t.Errorf("reason %q has label %q", r, label)
		}
		labels[label] = true
		// An event is about all nodes, and names none.
		if m := Message(r); !strings.HasSuffix(m, ".") || strings.Contains(m, "this node") || strings.Contains(m, ": .") {
			t.Errorf("reason %q has message %q", r, m)
		}
	}
}

// unschedulable returns the pod as the scheduler marks one for which it found
// no node.
func unschedulable(pod *corev1.Pod) *corev1.Pod {
	pod = pod.DeepCopy()
	pod.ResourceVersion += "1"
	pod.Status.Conditions = []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/1 nodes are available: 1 Insufficient nvidia.com/gpu-share.",
	}}
	return pod
}

func TestPodsRefusedByTheSchedulersOwnCountHaveAReason(t *testing.T) {
	cases := map[string]struct {
		pod  *corev1.Pod
		want string
	}{
		"full":                 {fixture.Pod("p", "50"), "p: GPUUnavailable: No node can take the pod: none has a GPU with enough free shares. " + comesFree},
		"too many":             {fixture.Pod("p", "3 GPU"), "p: GPUUnavailable: No node can take the pod: it asks for more GPUs than any of them has of the asked kind. Waiting will not help: ask for fewer GPUs."},
		"full where it may go": {onNode(fixture.Pod("p", "50"), "a"), "p: GPUUnavailable: No node can take the pod: none has a GPU with enough free shares. " + comesFree},
		"other grounds":        {fixture.Pod("p", "40"), ""},
		"uses no GPU":          {fixture.Pod("p", ""), ""},
		"not understood":       {fixture.Pod("p", "101"), "p: InvalidGPURequest: "},
	}
	for name, tc := range cases {
		for _, when := range []string{"before the rebuild", "after it"} {
			t.Run(name+" "+when, func(t *testing.T) {
				run(t, func(k *kit) {
					k.node("a", 1)
					k.place(fixture.Pod("x", "60"), "a")
					if tc.pod.Spec.Affinity != nil {
						k.node("b", 1) // has room, but is not selected
					}
					rebuild := func() {
						if err := k.p.Rebuilt(k.Context()); err != nil {
							t.Fatal(err)
						}
					}
					if when == "after it" {
						rebuild()
					}
					if v := view.PodOf(unschedulable(tc.pod), k.p.opts.Resources); v != nil {
						k.p.Observe(k.Context(), v)
					}
					if when != "after it" {
						rebuild()
					}
					k.settled()
					warned := k.effects.take(&k.effects.warned)
					if tc.want == "" && len(warned) > 0 || tc.want != "" && (len(warned) != 1 || !strings.HasPrefix(warned[0], tc.want)) {
						t.Errorf("events: %q, want %q", warned, tc.want)
					}
				})
			})
		}
	}
}

// TestRoomMadeByPreemptionGoesToItsPreemptor: between the victim's end and the
// preemptor's next try, others of lower priority are asked about.
func TestRoomMadeByPreemptionGoesToItsPreemptor(t *testing.T) {
	nominated := func(node string) *corev1.Pod {
		pod := fixture.Pod("high", "100")
		priority := int32(1000)
		pod.Spec.Priority, pod.Status.NominatedNodeName = &priority, node
		return pod
	}
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprintf("nomination lost %t", lost), func(t *testing.T) {
			run(t, func(k *kit) {
				k.node("a", 1)
				victim := fixture.Pod("victim", "100")
				k.place(victim, "a")
				bound := fixture.Bound(k, victim, "a", one(fixture.GPU("a", 0), 100))
				k.observe(bound, nominated("a"))
				k.filter(fixture.Pod("low", "50"), "a")
				if lost {
					// The scheduler has heard of the victim's end and asks before we have.
					k.filter(nominated("a"), "a")
					k.observe(nominated(""))
				}
				k.gone(bound)
				if got := k.filter(fixture.Pod("low", "50"), "a"); got[0] != placement.NotEnoughFree {
					t.Errorf("low: %q, want it to wait", got[0])
				}
				k.after(2 * tick)
				woken := k.effects.take(&k.effects.woken)
				if lost && !slices.Equal(woken, []string{"high"}) {
					t.Errorf("woken: %q, want high", woken)
				}
				if got := k.filter(nominated(""), "a"); got[0] != "" {
					t.Errorf("high: %q, want it to pass", got[0])
				}
				k.wantCharged("a", 0, 0, 100)
			})
		})
	}
}

func TestPodsOfHighPriorityAreWokenFirst(t *testing.T) {
	run(t, func(k *kit) {
		k.node("a", 1)
		full := fixture.Pod("full", "100")
		k.place(full, "a")
		old, high := fixture.Pod("old", "60"), fixture.Created(fixture.Pod("high", "60"), time.Hour)
		priority := int32(1000)
		high.Spec.Priority = &priority
		k.observe(fixture.Bound(k, full, "a", one(fixture.GPU("a", 0), 100)), old, high)
		k.filter(old, "a")
		k.filter(high, "a")
		k.gone(full)
		if got := k.woken(); !slices.Equal(got, []string{"high"}) {
			t.Errorf("woken: %q, want high alone", got)
		}
	})
}

// TestWaitingHelpsWhereOtherNodesWouldDo: the scheduler offers only the nodes
// that pass its own filters, so what those lack may be elsewhere.
func TestWaitingHelpsWhereOtherNodesWouldDo(t *testing.T) {
	cases := map[string]struct {
		pod        *corev1.Pod
		fill       string
		want, lack string
	}{
		"the model is on a full node":   {modelPod("p", "NVIDIA-H100", "50"), "100", "none has a GPU with enough free shares", "Waiting will not help"},
		"the model is on a closed node": {modelPod("p", "NVIDIA-H100", "50"), "", string(NotOffered), "Waiting will not help"},
		"nobody has the model":          {modelPod("p", "NVIDIA-X", "50"), "", "Waiting will not help", "offered"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			run(t, func(k *kit) {
				k.node("a", 1)
				inventory := fixture.Inventory("b", 1)
				inventory.GPUs[0].Model = "NVIDIA-H100"
				k.inventory("b", inventory)
				if tc.fill != "" {
					k.place(fixture.Pod("x", tc.fill), "b")
				}
				k.filter(tc.pod, "a")
				warned := strings.Join(k.effects.take(&k.effects.warned), "; ")
				if !strings.Contains(warned, tc.want) || strings.Contains(warned, tc.lack) {
					t.Errorf("event %q, want %q and not %q", warned, tc.want, tc.lack)
				}
			})
		})
	}
}

func onNode(pod *corev1.Pod, node string) *corev1.Pod {
	pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{
			Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node},
		}}}},
	}}}
	return pod
}

func modelPod(name, model string, limits ...string) *corev1.Pod {
	pod := fixture.Pod(name, limits...)
	pod.Annotations["tranche.dev/gpu-model"] = model
	return pod
}
