package e2e

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
)

// A queue that moves takes its pods along: they count below the new parent, and
// nobody is evicted for it.
func testQueueMovesBelowAnother(p *plot) {
	p.queue("a", under(p.q("dept"))) // in any order
	first := p.submit("a", 1)[0]
	p.wantEvent(first, "QueueWaiting", "parent", "does not exist")
	p.wantCondition("a", v1alpha1.QueueReady, metav1.ConditionFalse, v1alpha1.ReasonParentUnknown)
	p.queue("dept", limit("2"))
	p.submit("a", 2)
	p.wantRunning(map[string]int{"a": 2})
	third := p.diary.pods(waiting)[0]
	p.wantEvent(&third, "QueueWaiting", "ueue "+p.q("dept")+", above "+p.q("a")+", uses 2 GPUs of its limit of 2 GPUs")

	p.change("a", under(""))
	p.wantRunning(map[string]int{"a": 3})
	p.wantStatus("dept", "has nothing any more", func(s *v1alpha1.QueueStatus) bool { return gpus(s.Allocated) == 0 })

	p.change("a", under(p.q("dept")))
	p.wantCondition("dept", v1alpha1.QueueOverLimit, metav1.ConditionTrue, v1alpha1.ReasonLimitExceeded)
	fourth := p.submit("a", 1)[0]
	p.wantEvent(fourth, "QueueWaiting", "uses 3 GPUs of its limit of 2 GPUs")

	// Above itself: nothing starts, and nothing ends.
	p.change("dept", under(p.q("a")))
	p.wantCondition("a", v1alpha1.QueueReady, metav1.ConditionFalse, v1alpha1.ReasonParentCycle)
	p.wantRunning(map[string]int{"a": 3})
	p.change("dept", under(""), limit("4"))
	p.wantRunning(map[string]int{"a": 4})
	p.wantEvicted("a", 0)
}

// A queue that is deleted stays until its last pod has gone, and takes no more.
func testQueueOutlivesItsPods(p *plot) {
	p.queue("a")
	p.submit("a", 2)
	p.wantRunning(map[string]int{"a": 2})
	p.deleteQueue("a")
	late := p.submit("a", 1)[0]
	p.wantEvent(late, "QueueWaiting", "it is being deleted; use another queue")
	p.wantCondition("a", v1alpha1.QueueReady, metav1.ConditionFalse, v1alpha1.ReasonDeleting)
	steadily(p.T, "the queue stays while it has pods", func(context.Context) error {
		p.get("a")
		return p.isRunning(map[string]int{"a": 2})
	})
	p.remove("a")
	p.wantGone("a")

	// Its name is free again.
	p.queue("a")
	p.submit("a", 1)
	p.wantRunning(map[string]int{"a": 1})
}

func (p *plot) deleteQueue(name string) {
	p.Helper()
	if err := p.objects.Delete(p.Context(), &v1alpha1.Queue{ObjectMeta: metav1.ObjectMeta{Name: p.q(name)}}); err != nil {
		p.Fatal(err)
	}
}

func (p *plot) wantGone(name string) {
	p.Helper()
	eventually(p.T, "queue "+name+" is gone", func(ctx context.Context) error {
		var q v1alpha1.Queue
		err := p.objects.Get(ctx, ctrlclient.ObjectKey{Name: p.q(name)}, &q)
		switch {
		case err == nil:
			return fmt.Errorf("it is there, with finalizers %v and status %+v", q.Finalizers, q.Status)
		case apierrors.IsNotFound(err):
			return nil
		default:
			return err
		}
	})
}

// Pods may come before their queue.
func testUnknownQueueIsWaitedFor(p *plot) {
	pods := p.submit("later", 2)
	for _, pod := range pods {
		p.wantEvent(pod, "QueueWaiting", "There is no queue "+p.q("later"), "use one of", "or create a Queue of that name")
	}
	p.queue("later", limit("1"))
	p.wantRunning(map[string]int{"later": 1})
	p.change("later", limit("2"))
	p.wantRunning(map[string]int{"later": 2})
}

// Weights divide what nobody deserves, and a change of them takes effect on
// what is running.
func testWeightsDivideWhatNobodyDeserves(p *plot) {
	p.queue("a")
	p.queue("b")
	p.replicas("a", 8)
	p.wantRunning(map[string]int{"a": 8})
	p.replicas("b", 8)
	p.wantRunning(map[string]int{"a": 4, "b": 4})
	p.wantEvicted("a", 4)
	p.change("b", weight(3))
	p.wantRunning(map[string]int{"a": 2, "b": 6})
	p.wantStatus("b", "is entitled to 6", func(s *v1alpha1.QueueStatus) bool { return gpus(s.FairShare) == 6 })
	p.wantEvicted("a", 6)
	p.wantEvicted("b", 0)
}

// Only pods of selected namespaces may use a queue.
func testNamespaceSelectorKeepsOthersOut(p *plot) {
	p.queue("a", func(s *v1alpha1.QueueSpec) {
		s.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "x"}}
	})
	pod := p.submit("a", 1)[0]
	p.wantEvent(pod, "QueueWaiting", "does not take pods of namespace "+p.ns, "spec.namespaceSelector")
	friends := p.namespace(map[string]string{"team": "x"})
	guest := p.pod("a", "guest").Obj()
	guest.Namespace = friends
	guest = p.create(guest)
	eventually(p.T, "the pod of a selected namespace runs", func(ctx context.Context) error {
		got, err := p.client.CoreV1().Pods(friends).Get(ctx, guest.Name, metav1.GetOptions{})
		if err == nil && got.Spec.NodeName == "" {
			err = errors.New("it has no node")
		}
		return err
	})
	if err := p.isRunning(map[string]int{"a": 0}); err != nil {
		p.Error(err)
	}
	// The namespace gets the label, and the pod goes on.
	ns, err := p.client.CoreV1().Namespaces().Get(p.Context(), p.ns, metav1.GetOptions{})
	if err != nil {
		p.Fatal(err)
	}
	ns.Labels["team"] = "x"
	if _, err := p.client.CoreV1().Namespaces().Update(p.Context(), ns, metav1.UpdateOptions{}); err != nil {
		p.Fatal(err)
	}
	p.wantRunning(map[string]int{"a": 1})
}

// Hold lets pods run and admits none; HoldAndDrain evicts them too, also in the
// queues below.
func testStoppedQueueHoldsAndDrains(p *plot) {
	p.queue("dept")
	p.queue("a", under(p.q("dept")))
	p.queue("other")
	p.replicas("a", 2)
	p.submit("other", 1)
	p.wantRunning(map[string]int{"a": 2, "other": 1})
	p.change("dept", stop(v1alpha1.StopHold))
	p.wantCondition("a", v1alpha1.QueueReady, metav1.ConditionFalse, v1alpha1.ReasonStopped)
	held := p.submit("a", 1)[0]
	p.wantEvent(held, "QueueWaiting", "ueue "+p.q("dept")+", above "+p.q("a")+", admits nobody", "stopPolicy")
	steadily(p.T, "what runs goes on", func(context.Context) error {
		return p.isRunning(map[string]int{"a": 2, "other": 1})
	})
	p.change("dept", stop(v1alpha1.StopNone))
	p.wantRunning(map[string]int{"a": 3, "other": 1})

	p.change("dept", stop(v1alpha1.StopHoldAndDrain))
	p.wantRunning(map[string]int{"a": 0, "other": 1})
	p.wantEvicted("a", 3)
	p.wantEvicted("other", 0)
	victim := p.diary.pods(evicted)[0]
	p.wantEvent(&victim, "QueueDrained", "stopPolicy HoldAndDrain")
	p.change("dept", stop(v1alpha1.StopNone))
	p.wantRunning(map[string]int{"a": 2, "other": 1}) // the two that were made anew
}
