package watch

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/tranche-dev/tranche/extender/internal/fixture"
	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
)

func (h *heard) ObserveQueue(_ context.Context, q *view.Queue) {
	shares := int64(-1)
	if q.Deserved.GPU != nil {
		shares = int64(*q.Deserved.GPU)
	}
	h.note("queue %s under %q deserves=%d deleting=%v", q.Name, q.Parent, shares, q.Deleting)
}
func (h *heard) ForgetQueue(_ context.Context, name string) { h.note("queue %s gone", name) }
func (h *heard) ObserveNamespace(_ context.Context, n *view.Namespace) {
	h.note("namespace %s %v", n.Name, n.Labels)
}

func (h *heard) ForgetNamespace(_ context.Context, name string) { h.note("namespace %s gone", name) }

func queue(name, parent string) *v1alpha1.Queue {
	return &v1alpha1.Queue{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Generation: 1},
		Spec:       v1alpha1.QueueSpec{Parent: parent, Deserved: v1alpha1.QueueResources{GPU: new(resource.MustParse("1.5"))}},
	}
}

func namespace(name string, labels map[string]string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Labels: labels}}
}

func TestTellsOfQueuesAndNamespacesBeforePods(t *testing.T) {
	watchAll(t, func(w *watching) {
		w.must(w.gangs.Create(w.Context(), queue("child", "parent")))
		w.must(w.client.Tracker().Add(namespace("demo", map[string]string{"team": "a"})))
		w.must(w.client.Tracker().Add(fixture.Pod("p", "50")))
	}, func(w *watching) {
		got := w.take()
		if len(got) == 4 {
			slices.Sort(got[:2]) // the two kinds are read at the same time
		}
		want := []string{"namespace demo map[team:a]", `queue child under "parent" deserves=150 deleting=false`, `pod uid-p on "" ended=false`, "synced"}
		if diff := cmp.Diff(want, got); diff != "" {
			w.Errorf("at the start (-want +got):\n%s", diff)
		}

		w.must(w.gangs.Create(w.Context(), queue("parent", "")))
		w.want("a parent", `queue parent under "" deserves=150 deleting=false`)
		q := queue("parent", "")
		w.must(w.gangs.Get(w.Context(), types.NamespacedName{Name: "parent"}, q))
		q.Status.PendingGangs, q.Status.Open = 3, true
		w.must(w.gangs.Update(w.Context(), q))
		w.want("a status that we wrote")
		q.Spec.Deserved.GPU = nil
		w.must(w.gangs.Update(w.Context(), q))
		w.want("changed", `queue parent under "" deserves=-1 deleting=false`)
		q.Finalizers = []string{v1alpha1.QueueFinalizer}
		w.must(w.gangs.Update(w.Context(), q))
		w.want("our finalizer", `queue parent under "" deserves=-1 deleting=false`)
		w.must(w.gangs.Delete(w.Context(), q))
		w.want("to be deleted", `queue parent under "" deserves=-1 deleting=true`)
		w.must(w.gangs.Get(w.Context(), types.NamespacedName{Name: "parent"}, q))
		q.Finalizers = nil
		w.must(w.gangs.Update(w.Context(), q))
		w.want("gone", "queue parent gone")

		namespaces := w.client.CoreV1().Namespaces()
		n := namespace("demo", map[string]string{"team": "a"})
		n.Annotations = map[string]string{"a": "b"}
		_, err := namespaces.Update(w.Context(), n, metav1.UpdateOptions{})
		w.must(err)
		w.want("nothing that matters")
		n.Labels = map[string]string{"team": "b"}
		_, err = namespaces.Update(w.Context(), n, metav1.UpdateOptions{})
		w.must(err)
		w.want("other labels", "namespace demo map[team:b]")
		w.must(namespaces.Delete(w.Context(), "demo", metav1.DeleteOptions{}))
		w.want("namespace gone", "namespace demo gone")
	})
}

func TestQueuesComeWithTheirDefinition(t *testing.T) {
	watchAll(t, func(w *watching) { w.lacks.Store(&errNoKind) }, func(w *watching) {
		w.want("at the start", "synced")
		w.lacks.Store(nil)
		w.must(w.gangs.Create(w.Context(), queue("q", "")))
		time.Sleep(gangsAgain)
		w.want("served at last", `queue q under "" deserves=150 deleting=false`)
	})
}

func TestPodsDoNotWaitForeverForNamespaces(t *testing.T) {
	var forbidden atomic.Bool
	forbidden.Store(true)
	watchAll(t, func(w *watching) {
		w.must(w.client.Tracker().Add(namespace("demo", nil)))
		w.client.PrependReactor("list", "namespaces", func(clienttesting.Action) (bool, runtime.Object, error) {
			return forbidden.Load(), nil, apierrors.NewForbidden(schema.GroupResource{Resource: "namespaces"}, "", errors.New("no role"))
		})
	}, func(w *watching) {
		time.Sleep(patience - time.Second)
		w.want("still hoping")
		time.Sleep(2 * time.Second)
		w.want("going on", "synced")
		forbidden.Store(false)
		time.Sleep(namespacesAgain)
		w.want("allowed at last", "namespace demo map[]")
	})
}

func TestWithoutQueuesNeitherTheyNorNamespacesAreRead(t *testing.T) {
	h := &heard{}
	w := New(fake.NewClientset(), nil, resources, Audience{Pods: h, Nodes: h})
	if got := w.optional(); len(got) != 0 {
		t.Errorf("kinds %v", got)
	}
}
