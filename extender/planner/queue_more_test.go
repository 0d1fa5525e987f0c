package planner

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/extender/internal/fixture"
	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/placement"
)

// A driver without GPUs and two workers start together or not at all.
func TestGangWithAMemberWithoutGPUs(t *testing.T) {
	runQueues(t, 1, func(w *world) {
		w.size = 3
		w.queue(aQueue("a", "", limited(2)))
		pods := gangPods("g", 2, 3, "100")
		driver := memberPod("g", "g-driver", 3, "")
		driver.Spec.Containers[0].Resources.Limits = corev1.ResourceList{contract.MemberResource: resource.MustParse("0")}
		driver.Spec.Containers[0].Resources.Requests = corev1.ResourceList{contract.MemberResource: resource.MustParse("0"), corev1.ResourceCPU: resource.MustParse("63")}
		for _, pod := range append(pods, driver) {
			pod.Labels[contract.QueueLabel] = "a"
		}
		hog := queued("a", "hog", "")
		hog.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}
		w.create(hog)
		w.goOn(time.Second)
		w.create(append(pods, driver)...)
		w.goOn(2 * time.Second)
		w.wantBound("g", 0)
		w.wantWaits("g", v1alpha1.ReasonNoPlace, "63 cpu")
		w.remove(w.pod(hog.UID))
		w.goOn(2 * time.Second)
		w.wantBound("g", 3)
	})
}

func TestSchedulersPreemptionSparesGangsAndGuarantees(t *testing.T) {
	runQueues(t, 2, func(w *world) {
		w.size = 4
		w.queue(aQueue("a", "", deserves(4)))
		w.queue(aQueue("b", "", deserves(4)))
		pods := gangPods("g", 4, 4, "100")
		for _, pod := range pods {
			pod.Labels[contract.QueueLabel] = "a"
		}
		w.create(pods...)
		w.submit("b", 4, "100")
		w.goOn(2 * time.Second)
		w.wantBound("g", 4)
		w.wantRunning("b", 4)
		uid := func(name string) types.UID { return fixture.Identify(fixture.Pod(name)).UID }
		at := func(name string) string { return w.pod(uid(name)).Spec.NodeName }
		preempt := func(pod *corev1.Pod, victims ...string) bool {
			uids := make([]types.UID, 0, len(victims))
			for _, name := range victims {
				uids = append(uids, uid(name))
			}
			return w.p.Preempt(w.Context(), pod, map[string][]types.UID{at(victims[0]): uids})[at(victims[0])]
		}
		urgentA, urgentB := withPriority(open(queued("a", "urgent-a", "100")), 10), withPriority(open(queued("b", "urgent-b", "100")), 10)
		if preempt(urgentA, "g-0") {
			t.Error("a member of a whole gang may go")
		}
		if preempt(urgentA, "b-1-0") {
			t.Error("a pod of another queue that has what it deserves may go")
		}
		if !preempt(urgentB, "b-1-0") {
			t.Error("a pod of the same queue may not go")
		}
		w.queue(aQueue("b", "", deserves(3)))
		if !preempt(urgentA, "b-1-0") {
			t.Error("a pod beyond what its queue deserves may not go")
		}
		if preempt(urgentA, "b-1-0", "b-1-1") && at("b-1-0") == at("b-1-1") {
			t.Error("two pods may go, which leaves the queue with less than it deserves")
		}
	})
}

func TestOnlyTheFirstOfAFullQueueIsExposed(t *testing.T) {
	runQueues(t, 1, func(w *world) {
		w.queue(aQueue("a", "", func(q *view.Queue) { q.WhenFull = v1alpha1.WhenFullExpose }))
		w.submit("a", 7, "100")
		w.goOn(2 * time.Second)
		w.wantRunning("a", 4)
		seen := 0
		w.mu.Lock()
		for _, pod := range w.pods {
			if pod.Spec.NodeName == "" && len(pod.Spec.SchedulingGates) == 0 {
				seen++
			}
		}
		w.mu.Unlock()
		if seen != 1 {
			t.Errorf("%d waiting pods have no gate, want the first only", seen)
		}
	})
}

// A pod without GPUs that the scheduler cannot place does not keep its queue's
// quota for ever.
func TestQuotaOfAnUnschedulablePodLapses(t *testing.T) {
	runQueues(t, 1, func(w *world) {
		cpu := int64(2000)
		w.queue(aQueue("a", "", func(q *view.Queue) { q.Limit.CPU = &cpu }))
		pod := func(name string) *corev1.Pod {
			p := queued("a", name, "")
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}
			return p
		}
		nowhere := pod("nowhere")
		w.create(nowhere)
		w.goOnWithoutScheduling(time.Second)
		w.change(nowhere.UID, func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
		})
		next := pod("next")
		w.create(next)
		w.goOnWithoutScheduling(time.Minute)
		if len(w.pod(next.UID).Spec.SchedulingGates) == 0 {
			t.Error("the next pod was let in beside one that holds all quota")
		}
		w.goOnWithoutScheduling(lapseAfter)
		if len(w.pod(next.UID).Spec.SchedulingGates) != 0 {
			t.Error("the next pod waits for quota of a pod that will never run")
		}
	})
}

func (w *world) goOnWithoutScheduling(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		w.admit()
		w.after(time.Second)
	}
}

// Everything about queues can be switched off: nobody waits at a gate.
func TestQueuesSwitchedOff(t *testing.T) {
	runWorld(t, 1, func(w *world) {
		w.queue(aQueue("a", "", limited(1)))
		w.submit("a", 3, "100")
		pod := queued("a", "cpu", "")
		w.create(pod)
		w.goOn(2 * time.Second)
		w.wantRunning("a", 4)
	})
}

func TestPlacementOfTheQueue(t *testing.T) {
	runQueues(t, 2, func(w *world) {
		w.queue(aQueue("spread", "", func(q *view.Queue) { q.Placement = contract.PlacementSpread }))
		w.submit("spread", 2, "50")
		w.goOnWithoutScheduling(2 * time.Second)
		nodes := map[string]bool{}
		w.mu.Lock()
		for _, pod := range w.pods {
			nodes[pod.Status.NominatedNodeName] = true
		}
		w.mu.Unlock()
		if len(nodes) != 2 {
			t.Errorf("pods are nominated to %v, want them spread", nodes)
		}
	})
}

// Prioritize and rounds agree on the queue of a pod without a label.
func TestPlacementOfTheDefaultQueueIsForPodsWithoutALabel(t *testing.T) {
	runQueues(t, 2, func(w *world) {
		w.queue(aQueue("default", "", func(q *view.Queue) { q.Placement = contract.PlacementSpread }))
		w.observe(fixture.Bound(w, fixture.Pod("x", "50"), "a", one(fixture.GPU("a", 0), 50)))
		if got := w.prioritize(fixture.Pod("p", "25"), "a", "b"); got[1] != placement.MaxPriority {
			t.Errorf("priorities %v, want the empty node first", got)
		}
	})
}

// What is found for a pod holds for others like it, but not for those that are to
// be placed another way.
func TestPodWithoutAWishIsNotPlacedLikeOneThatWishesForBinpack(t *testing.T) {
	runQueues(t, 2, func(w *world) {
		w.queue(aQueue("q", "", held))
		w.observe(fixture.Bound(w, fixture.Pod("x", "50"), "a", one(fixture.GPU("a", 0), 50)))
		packed := withPriority(annotated(queued("q", "packed", "25"), contract.PlacementAnnotation, string(contract.PlacementBinpack)), 10)
		w.create(packed, queued("q", "other", "25"))
		w.goOnWithoutScheduling(time.Second)
		w.queue(aQueue("q", ""))
		w.goOnWithoutScheduling(2 * time.Second)
		for name, want := range map[string]string{"packed": "a", "other": "b"} {
			if got := w.pod(uidOf(name)).Status.NominatedNodeName; got != want {
				t.Errorf("%s is nominated to %q, want %q", name, got, want)
			}
		}
	}, func(o *Options) { o.Placement = contract.PlacementSpread })
}

// The controller of an evicted gang makes its pods anew at once, while some of
// the old ones still run: these are no repair, and wait as a whole.
func TestEvictedGangComesBackAsAWhole(t *testing.T) {
	runQueues(t, 1, func(w *world) {
		w.size = 4
		w.queue(aQueue("a", "", deserves(2)))
		w.queue(aQueue("b", "", deserves(2)))
		mine := func(generation string) []*corev1.Pod {
			pods := gangPods("g", 4, 4, "100")
			for _, pod := range pods {
				pod.Name += generation
				pod.Labels[contract.QueueLabel] = "a"
				fixture.Identify(pod)
				ownedBy(pod, "Job", "g", "uid-job")
			}
			return pods
		}
		old := mine("-old")
		w.create(old...)
		w.goOn(2 * time.Second)
		w.wantBound("g", 4)
		w.submit("b", 1, "100")
		w.goOnWithoutEvicting(2 * time.Second)
		victims := w.effects.take(&w.effects.evicted)
		if len(victims) != 4 {
			t.Fatalf("victims %q, want the whole gang", victims)
		}
		for _, pod := range old {
			w.change(pod.UID, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} })
		}
		w.create(mine("-new")...)
		for _, pod := range old {
			w.goOnWithoutEvicting(time.Second)
			w.remove(w.pod(pod.UID))
		}
		w.goOn(5 * time.Second)
		w.wantRunning("b", 1)
		w.wantBound("g", 0)
		w.wantWaits("g", v1alpha1.ReasonNoPlace, "queue a has 0 of its present fair share")
		w.remove(w.pod(fixture.Identify(fixture.Pod("b-1-0")).UID))
		w.goOn(5 * time.Second)
		w.wantBound("g", 4)
	})
}

// Places are remembered from round to round; why a node is none is not.
func TestReasonIsOfTheNodesAsTheyAre(t *testing.T) {
	runQueues(t, 2, func(w *world) {
		w.queue(aQueue("q", "", func(q *view.Queue) { q.Placement = contract.PlacementBinpack }))
		hog := withCPU(queued("q", "hog", ""), "63")
		w.create(hog)
		w.goOn(time.Second)
		hogged := w.pod(hog.UID).Spec.NodeName
		like := func(name string) {
			w.create(withCPU(queued("q", name, "1 GPU"), "2"))
			w.goOn(time.Second)
		}
		for i := range 3 {
			like(fmt.Sprint("p", i)) // on the other node, and the hog's lacks cpu
		}
		w.remove(w.pod(hog.UID))
		w.submit("q", 4, "4 GPU")
		w.goOn(2 * time.Second)
		if got := w.p.Snapshot().Ledger.Node(hogged).WhollyFree(); got != 0 {
			t.Fatalf("%d GPUs of node %s are free, want none", got, hogged)
		}
		like("p3")
		like("p4")
		w.wantTold("p4", "none has a GPU that is wholly free")
	})
}
