package server

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllertest"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/webhook/mutate"
)

// queueObject is a Queue with a spec and status; change may be nil.
func queueObject(name string, change func(*v1alpha1.Queue)) *v1alpha1.Queue {
	q := &v1alpha1.Queue{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "7"}}
	if change != nil {
		change(q)
	}
	return q
}

func TestQueueKeepsWhatGatesDependOn(t *testing.T) {
	amount := func() *resource.Quantity { q := resource.MustParse("0"); return &q }
	now := metav1.Now()
	cases := map[string]struct {
		change func(*v1alpha1.Queue)
		want   mutate.Queue
	}{
		"nothing":                {nil, mutate.Queue{}},
		"a parent":               {func(q *v1alpha1.Queue) { q.Spec.Parent = "p" }, mutate.Queue{Parent: "p"}},
		"admission":              {func(q *v1alpha1.Queue) { q.Spec.Admission = v1alpha1.AdmissionGated }, mutate.Queue{Admission: v1alpha1.AdmissionGated}},
		"open":                   {func(q *v1alpha1.Queue) { q.Status.Open = true }, mutate.Queue{Open: true}},
		"not stopped":            {func(q *v1alpha1.Queue) { q.Spec.StopPolicy = v1alpha1.StopNone }, mutate.Queue{}},
		"on hold":                {func(q *v1alpha1.Queue) { q.Spec.StopPolicy = v1alpha1.StopHold }, mutate.Queue{Stopped: true}},
		"drained":                {func(q *v1alpha1.Queue) { q.Spec.StopPolicy = v1alpha1.StopHoldAndDrain }, mutate.Queue{Stopped: true}},
		"being deleted":          {func(q *v1alpha1.Queue) { q.DeletionTimestamp = &now }, mutate.Queue{Stopped: true}},
		"GPUs alone":             {func(q *v1alpha1.Queue) { q.Spec.Limit.GPU, q.Spec.Deserved.GPU = amount(), amount() }, mutate.Queue{}},
		"cpu that is deserved":   {func(q *v1alpha1.Queue) { q.Spec.Deserved.CPU = amount() }, mutate.Queue{Compute: true}},
		"memory deserved":        {func(q *v1alpha1.Queue) { q.Spec.Deserved.Memory = amount() }, mutate.Queue{Compute: true}},
		"cpu that is limited":    {func(q *v1alpha1.Queue) { q.Spec.Limit.CPU = amount() }, mutate.Queue{Compute: true}},
		"memory that is limited": {func(q *v1alpha1.Queue) { q.Spec.Limit.Memory = amount() }, mutate.Queue{Compute: true}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			full := queueObject("q", tc.change)
			full.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
			full.Status.Conditions = []metav1.Condition{{Type: "Ready"}}
			before := full.DeepCopy()
			stripped, err := stripQueue(full)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before, full); diff != "" {
				t.Errorf("the original was changed (-before +after):\n%s", diff)
			}
			kept := stripped.(*v1alpha1.Queue)
			if kept.Name != "q" || kept.ResourceVersion != "7" || len(kept.ManagedFields)+len(kept.Status.Conditions) > 0 {
				t.Errorf("kept %+v", kept)
			}
			for _, o := range []*v1alpha1.Queue{full, kept} {
				if diff := cmp.Diff(tc.want, queueOf(o)); diff != "" {
					t.Errorf("queue (-want +got):\n%s", diff)
				}
			}
		})
	}
	secret := &metav1.PartialObjectMetadata{}
	if other, err := stripQueue(secret); other != any(secret) || err != nil {
		t.Errorf("another object became %v, %v", other, err)
	}
}

// unseen is an informer that can have missed an end.
type unseen struct {
	*controllertest.FakeInformer
	handler toolscache.ResourceEventHandler
}

func (u *unseen) AddEventHandler(h toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	u.handler = h
	return u.FakeInformer.AddEventHandler(h)
}

func (u *unseen) deleteUnseen(gone toolscache.DeletedFinalStateUnknown) { u.handler.OnDelete(gone) }

func TestQueuesFollowTheInformer(t *testing.T) {
	informer := &unseen{FakeInformer: controllertest.NewFakeInformer(controllertest.Synced)}
	q := newQueues()
	if err := q.follow(informer); err != nil {
		t.Fatal(err)
	}
	check := func(step string, want mutate.Queues) mutate.Queues {
		t.Helper()
		got := q.Queues(t.Context())
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step, diff)
		}
		return got
	}
	open := queueObject("a", func(q *v1alpha1.Queue) { q.Status.Open = true })
	check("no queue at all, but there could be some", mutate.Queues{})
	informer.Add(queueObject("a", nil))
	informer.Add(queueObject("b", nil))
	first := check("two", mutate.Queues{"a": {}, "b": {}})
	informer.Update(queueObject("a", nil), open)
	check("one opens", mutate.Queues{"a": {Open: true}, "b": {}})
	if diff := cmp.Diff(mutate.Queues{"a": {}, "b": {}}, first); diff != "" {
		t.Errorf("what was handed out has changed since:\n%s", diff)
	}
	informer.Delete(queueObject("b", nil))
	check("one is gone", mutate.Queues{"a": {Open: true}})
	informer.deleteUnseen(toolscache.DeletedFinalStateUnknown{Key: "a", Obj: open})
	check("none, the last of which went unseen", mutate.Queues{})
	q.without()
	check("there is no such kind any more", nil)
}

// What the extender writes into a status every second is no reason to copy.
func TestQueuesAreCopiedOnlyWhenTheyChange(t *testing.T) {
	informer := controllertest.NewFakeInformer(controllertest.Synced)
	q := newQueues()
	if err := q.follow(informer); err != nil {
		t.Fatal(err)
	}
	informer.Add(queueObject("a", nil))
	first := q.Queues(t.Context())
	informer.Update(nil, queueObject("a", func(q *v1alpha1.Queue) { q.Status.PendingGangs = 7 }))
	first["mark"] = mutate.Queue{}
	if _, same := q.Queues(t.Context())["mark"]; !same {
		t.Error("copied for a number that nobody reads")
	}
}

func TestQueuesAreWaitedForAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// 1. Nobody says whether there are any.
		q := newQueues()
		begin := time.Now()
		if got := q.Queues(t.Context()); got != nil || !errors.Is(q.Ready(), errNotReady) {
			t.Errorf("unknown: %v, %v", got, q.Ready())
		}
		if waited := time.Since(begin); waited < patience-patienceStep || waited > patience+patienceStep {
			t.Errorf("waited %s", waited)
		}

		// 2. There are, but the first list takes a while.
		informer := controllertest.NewFakeInformer()
		if err := q.follow(informer); err != nil {
			t.Fatal(err)
		}
		informer.Add(queueObject("a", nil))
		if got := q.Queues(t.Context()); got != nil || !errors.Is(q.Ready(), errNotReady) {
			t.Errorf("listing: %v, %v", got, q.Ready())
		}
		time.AfterFunc(patience/2, informer.Synced)
		if got := q.Queues(t.Context()); len(got) != 1 || q.Ready() != nil {
			t.Errorf("listed: %v, %v", got, q.Ready())
		}

		// 3. A client that gave up is not waited for.
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		begin = time.Now()
		if got := newQueues().Queues(ctx); got != nil || time.Since(begin) > patienceStep {
			t.Errorf("client gone: %v after %s", got, time.Since(begin))
		}
	})
}

// informersFunc makes informers.
type informersFunc func() (cache.Informer, error)

func (f informersFunc) GetInformer(context.Context, client.Object, ...cache.InformerGetOption) (cache.Informer, error) {
	return f()
}

func TestQueuesAreFollowedAsSoonAsTheyAreServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var served atomic.Pointer[controllertest.FakeInformer]
		var said []string
		log := funcr.New(func(_, args string) { said = append(said, args) }, funcr.Options{})
		q := newQueues()
		follower := queueFollower{to: q, informers: informersFunc(func() (cache.Informer, error) {
			if informer := served.Load(); informer != nil {
				return informer, nil
			}
			return nil, &meta.NoKindMatchError{}
		})}
		done := make(chan error, 1)
		go func() { done <- follower.Start(klog.NewContext(t.Context(), log)) }()

		// 1. There is no such kind, which is an answer.
		synctest.Wait()
		if err, got := q.Ready(), q.Queues(t.Context()); err != nil || got != nil {
			t.Errorf("not served: %v, %v", err, got)
		}
		time.Sleep(3 * queuesAgain)
		synctest.Wait()
		if len(said) != 1 || !strings.Contains(said[0], "Not served") {
			t.Errorf("logged %q", said)
		}

		// 2. It appears.
		informer := controllertest.NewFakeInformer(controllertest.Synced)
		served.Store(informer)
		time.Sleep(queuesAgain)
		synctest.Wait()
		informer.Add(queueObject("a", nil))
		if diff := cmp.Diff(mutate.Queues{"a": {}}, q.Queues(t.Context())); diff != "" {
			t.Errorf("served (-want +got):\n%s", diff)
		}
		if err := <-done; err != nil {
			t.Errorf("ended with %v", err)
		}
	})
}

// An API server that does not say leaves the webhook unready, until it does.
func TestQueuesAreAskedForUntilSomebodySays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), funcr.New(func(_, args string) {
			t.Errorf("logged %s", args)
		}, funcr.Options{})))
		var asked atomic.Int32
		q := newQueues()
		follower := queueFollower{to: q, informers: informersFunc(func() (cache.Informer, error) {
			asked.Add(1)
			return nil, errors.New("starting")
		})}
		done := make(chan error, 1)
		go func() { done <- follower.Start(ctx) }()
		time.Sleep(10 * time.Second)
		if !errors.Is(q.Ready(), errNotReady) {
			t.Errorf("ready: %v", q.Ready())
		}
		if n := asked.Load(); n != 4 { // at once, and after 1, 2 and 4 s more
			t.Errorf("asked %d times", n)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("ended with %v", err)
		}
	})
}
