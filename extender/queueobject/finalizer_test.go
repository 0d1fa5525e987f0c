package queueobject

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"

	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
)

// recorderFunc hears what events are about.
type recorderFunc func(*corev1.ObjectReference)

var _ record.EventRecorder = recorderFunc(nil)

func (f recorderFunc) Event(o runtime.Object, _, _, _ string) { f(o.(*corev1.ObjectReference)) }

func (f recorderFunc) Eventf(o runtime.Object, kind, reason, _ string, _ ...any) {
	f.Event(o, kind, reason, "")
}

func (f recorderFunc) AnnotatedEventf(o runtime.Object, _ map[string]string, kind, reason, _ string, _ ...any) {
	f.Event(o, kind, reason, "")
}

func TestAQueueInUseStaysUntilItIsNot(t *testing.T) {
	run(t, func(k *kit) {
		k.report(reportOf("q", 1))
		k.settle()
		k.Must(k.API.Delete(t.Context(), k.queue("q")))
		if got := k.queue("q"); got == nil || got.DeletionTimestamp == nil {
			t.Fatalf("a queue in use was deleted: %+v", got)
		}
		// Its status is written all the while.
		k.report(reportOf("q", 2))
		k.settle()
		if got := k.queue("q").Status.PendingGangs; got != 2 {
			t.Errorf("%d pending gangs, want 2", got)
		}
		k.Take()
		r := reportOf("q", 0)
		r.InUse = false
		k.report(r)
		k.WantCalls("patch q")
		if got := k.queue("q"); got != nil {
			t.Errorf("still there: %+v", got)
		}
		// Reports of a queue that is gone are nothing.
		k.report(r)
		k.settle()
		k.WantCalls("get q")
		k.report(reportOf("q", 1))
		k.settle()
		k.WantCalls("get q")
		if n := k.writer.objects.Len(); n != 0 {
			t.Errorf("%d queues remembered", n)
		}
	}, made("q"))
}

func TestAQueueBeingDeletedGetsNoFinalizer(t *testing.T) {
	run(t, func(k *kit) {
		k.Must(k.API.Delete(t.Context(), k.queue("q")))
		k.report(reportOf("q", 1))
		k.settle()
		k.WantCalls("get q", "patch q status")
		if diff := cmp.Diff([]string{"example.com/theirs"}, k.queue("q").Finalizers); diff != "" {
			t.Errorf("finalizers (-want +got):\n%s", diff)
		}
	}, made("q", "example.com/theirs"))
}

func TestAQueueThatIsNotInUseLosesTheFinalizer(t *testing.T) {
	run(t, func(k *kit) {
		r := reportOf("q", 0)
		r.InUse = false
		k.report(r)
		k.settle()
		k.WantCalls("get q", "patch q", "patch q status")
		if got := k.queue("q").Finalizers; len(got) != 0 {
			t.Errorf("finalizers %v", got)
		}
	}, made("q", v1alpha1.QueueFinalizer))
}

func TestAFinalizerThatSomebodyRemovedComesBack(t *testing.T) {
	run(t, func(k *kit) {
		observe := func() {
			k.writer.ObserveQueue(t.Context(), view.QueueOf(k.queue("q"), 100))
			k.settle()
		}
		observe() // before any report
		k.report(reportOf("q", 1))
		k.settle()
		k.Take()
		observe() // our own write comes back
		k.WantCalls()
		queue := k.queue("q")
		queue.Finalizers = nil // as "kubectl replace" does
		k.Must(k.API.Update(t.Context(), queue))
		observe()
		k.WantCalls("get q", "patch q")
		if diff := cmp.Diff([]string{v1alpha1.QueueFinalizer}, k.queue("q").Finalizers); diff != "" {
			t.Errorf("finalizers (-want +got):\n%s", diff)
		}
	}, made("q"))
}

func TestWhatIsHeardWhileItIsReadIsReadAgain(t *testing.T) {
	run(t, func(k *kit) {
		heard := false
		k.Answer = func(call string) error {
			if call == "get q" && !heard {
				heard = true
				k.writer.ObserveQueue(t.Context(), view.QueueOf(made("q"), 100))
			}
			return nil
		}
		k.report(reportOf("q", 1))
		k.settle()
		k.WantCalls("get q", "get q", "patch q", "patch q status")
	}, made("q"))
}

func TestDeletedQueuesAreForgotten(t *testing.T) {
	run(t, func(k *kit) {
		r := reportOf("q", 0)
		r.InUse = false
		k.report(r)
		k.settle()
		k.Must(k.API.Delete(t.Context(), k.queue("q")))
		k.writer.ForgetQueue(t.Context(), "q")
		k.settle()
		if n := k.writer.objects.Len(); n != 0 {
			t.Errorf("%d queues remembered", n)
		}
		// Another of its name begins anew.
		next := made("q")
		next.UID = "uid-next"
		k.Must(k.API.Create(t.Context(), next))
		k.Take()
		k.report(reportOf("q", 1))
		k.settle()
		k.WantCalls("get q", "patch q", "patch q status")
	}, made("q"))
}

func TestAQueueMadeAnewUnnoticedIsReadAgain(t *testing.T) {
	run(t, func(k *kit) {
		r := reportOf("q", 0)
		r.InUse = false
		k.report(r)
		k.settle()
		k.Must(k.API.Delete(t.Context(), k.queue("q")))
		k.Take()
		k.report(reportOf("q", 1))
		time.Sleep(time.Minute)
		k.WantCalls("patch q", "get q")
		if n := k.writer.objects.Len(); n != 0 {
			t.Errorf("%d queues remembered", n)
		}
	}, made("q"))
}

func TestAQueueThatComesWhileItsEndIsLearntIsWritten(t *testing.T) {
	run(t, func(k *kit) {
		came := false
		k.Answer = func(call string) error {
			if call != "get q" || came {
				return nil
			}
			came = true
			k.Must(k.API.Create(t.Context(), made("q")))
			k.writer.ReportQueue(reportOf("q", 2))
			return apierrors.NewNotFound(resource, "q")
		}
		k.report(reportOf("q", 1))
		k.settle()
		if got := k.queue("q"); got.Status.PendingGangs != 2 || len(got.Finalizers) != 1 {
			t.Errorf("queue %+v", got)
		}
	})
}

func TestNoKindOfThatNameIsNoTrouble(t *testing.T) {
	run(t, func(k *kit) {
		k.Answer = func(string) error {
			return apierrors.NewGenericServerResponse(404, "get", resource, "", "", 0, true)
		}
		k.report(reportOf("q", 1))
		time.Sleep(time.Hour)
		k.WantCalls("get q")
	}, made("q"))
}

func TestWithoutQueuesNoneIsInUse(t *testing.T) {
	run(t, func(k *kit) {
		k.Must(k.API.Delete(t.Context(), k.queue("ending")))
		r := Releaser{Writer: k.writer}
		for _, name := range []string{"q", "ending"} {
			r.ObserveQueue(t.Context(), view.QueueOf(k.queue(name), 100))
		}
		k.settle()
		if got := k.queue("q"); len(got.Finalizers) != 0 || !got.Status.Open || len(got.Status.Conditions) != 0 {
			t.Errorf("queue %+v", got)
		}
		if got := k.queue("ending"); got != nil {
			t.Errorf("still there: %+v", got)
		}
		r.ForgetQueue(t.Context(), "q")
		if n := k.writer.objects.Len(); n != 0 {
			t.Errorf("%d queues remembered", n)
		}
	}, closed("q"), closed("ending"))
}

func closed(name string) *v1alpha1.Queue {
	queue := made(name, v1alpha1.QueueFinalizer)
	queue.Status.Conditions = []metav1.Condition{condition(v1alpha1.QueueReady, metav1.ConditionFalse, v1alpha1.ReasonStopped)}
	return queue
}
