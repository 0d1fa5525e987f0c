package planner

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/contract"
)

// Its member without GPUs was not counted, and the planner panicked over that
// when the others had their places and it had lost its own.
func TestMixedGangOfANamespaceWithoutTheLabelIsPlanned(t *testing.T) {
	runQueues(t, 1, func(w *world) {
		w.queue(aQueue("a", "", limited(4)))
		pods := gangPods("g", 2, 3, "100")
		driver := memberPod("g", "g-driver", 3, "")
		for _, list := range []*corev1.ResourceList{&driver.Spec.Containers[0].Resources.Limits, &driver.Spec.Containers[0].Resources.Requests} {
			*list = corev1.ResourceList{contract.MemberResource: resource.MustParse("0")}
		}
		withCPU(driver, "1")
		w.namespace("demo", false)
		w.refuses = func(pod *corev1.Pod, node string) bool {
			return pod == driver || pod.Name == driver.Name && node == "a"
		}
		w.nodes = append(w.nodes, "unknown")
		w.create(inQueue("a", append(pods, driver)...)...)
		w.goOn(20 * time.Second)
		w.wantWaits("g", v1alpha1.ReasonNoPlace, "the scheduler does not accept the node for the pod")
		w.refuses = nil
		w.nodes = w.nodes[:1]
		w.goOn(3 * time.Minute)
		w.wantBound("g", 3)
	})
}

// Pods and namespaces are watched each for itself: a pod with our gate was let go
// past its queue when it was seen first.
func TestGatedPodIsOfItsQueueBeforeItsNamespaceIsKnown(t *testing.T) {
	runWorld(t, 1, func(w *world) {
		w.queue(aQueue("a", "", cpuLimited(1)))
		for i := range 3 {
			w.create(withCPU(queued("a", fmt.Sprint("p", i), ""), "1"))
		}
		w.after(300 * time.Millisecond)
		w.namespace("demo", true)
		w.goOn(2 * time.Second)
		w.wantRunning("a", 1)
	}, withQueues)
}

// The pod was struck off the queue's list and never put on it again.
func TestPodIsServedAfterItsNamespaceLostTheLabelForAWhile(t *testing.T) {
	runQueues(t, 1, func(w *world) {
		w.create(queued("later", "p", ""))
		w.goOn(2 * time.Second)
		w.wantRunning("later", 0)
		w.namespace("demo", false)
		w.goOn(2 * time.Second)
		w.namespace("demo", true)
		w.goOn(2 * time.Second)
		w.queue(aQueue("later", ""))
		w.goOn(2 * time.Second)
		w.wantRunning("later", 1)
	})
}

// Pods that ask for the same may be of different namespaces.
func TestPodOfAForbiddenNamespaceIsToldSoBehindOthersOfItsShape(t *testing.T) {
	runQueues(t, 1, func(w *world) {
		w.namespace("other", true)
		w.p.ObserveNamespace(w.Context(), &view.Namespace{Name: "demo", Labels: map[string]string{"team": "x", contract.InjectLabel: contract.InjectEnabled}})
		w.queue(aQueue("a", "", func(q *view.Queue) { q.Selector = labels.SelectorFromSet(labels.Set{"team": "x"}) }))
		w.create(queued("a", "hog", "4 GPU"))
		w.goOn(time.Second)
		w.create(queued("a", "p", "100"))
		foreign := queued("a", "z", "100")
		foreign.Namespace = "other"
		w.create(foreign)
		w.goOnBy(20*time.Minute, time.Second)
		told := 0
		for _, text := range w.effects.take(&w.effects.warned) {
			if !strings.HasPrefix(text, "z: ") {
				continue
			}
			if told++; !strings.Contains(text, "does not take pods of namespace other") {
				t.Errorf("told %q, want the truth alone", text)
			}
		}
		if told == 0 {
			t.Error("nothing was told")
		}
	})
}

// Pods of a namespace that a queue does not take took its sibling's share.
func TestForbiddenPodsAreNoDemand(t *testing.T) {
	runQueues(t, 2, func(w *world) {
		mine := func(q *view.Queue) { q.Selector = labels.SelectorFromSet(labels.Set{"team": "mine"}) }
		w.queue(aQueue("served", "", deserves(4), mine))
		w.queue(aQueue("batch", ""))
		w.submit("batch", 8, "100")
		w.submit("served", 4, "100")
		w.goOn(10 * time.Second)
		w.wantRunning("batch", 8)
		if got := w.status("served").Demand.GPU; got != "0" {
			t.Errorf("pods that may not use the queue count as a demand of %s GPUs", got)
		}
		// Until they may.
		w.queue(aQueue("served", "", deserves(4)))
		w.goOn(20 * time.Second)
		w.wantRunning("served", 4)
		w.wantRunning("batch", 4)
		w.queue(aQueue("served", "", deserves(4), mine))
		w.goOn(20 * time.Second)
		w.wantRunning("served", 4) // who runs stays
		w.submit("served", 2, "100")
		w.goOn(20 * time.Second)
		if got := w.status("served").Demand.GPU; got != "4" {
			t.Errorf("demand is %s GPUs, want those of the pods that run", got)
		}
	})
}

// What a queue's limit can never allow took its siblings' shares.
func TestPodsBeyondALimitAreNoDemandUntilItIsRaised(t *testing.T) {
	runQueues(t, 2, func(w *world) {
		w.queue(aQueue("small", "", deserves(4), limited(2)))
		w.queue(aQueue("batch", ""))
		w.submit("batch", 8, "100")
		w.goOn(2 * time.Second)
		w.create(queued("small", "huge", "3 GPU"), queued("small", "one", "100"))
		w.goOn(20 * time.Second)
		w.wantRunning("small", 1)
		if s := w.status("small"); s.Demand.GPU != "1" || s.FairShare.GPU != "1" {
			t.Errorf("demand %s, fair share %s, want 1 GPU, without what can never start", s.Demand.GPU, s.FairShare.GPU)
		}
		w.queue(aQueue("small", "", deserves(4), limited(4)))
		w.goOn(20 * time.Second)
		w.wantRunning("small", 2)
	})
}
