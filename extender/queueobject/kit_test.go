package queueobject

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/tranche-dev/tranche/extender/planner"
	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
)

// kit is a Writer and an API server that can be made to fail.
type kit struct {
	*testing.T
	api    client.Client // without interception
	writer *Writer
	events *record.FakeRecorder

	mu sync.Mutex
	// calls are what the Writer asked for, such as "patch q".
	calls []string
	// answer is asked before each call; its error is the answer.
	answer func(call string) error
}

func (k *kit) called(call string) error {
	k.mu.Lock()
	answer := k.answer
	k.calls = append(k.calls, call)
	k.mu.Unlock()
	if answer != nil {
		return answer(call)
	}
	return nil
}

// take returns the calls since the last time.
func (k *kit) take() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	calls := k.calls
	k.calls = nil
	return calls
}

func run(t *testing.T, f func(*kit), queues ...*v1alpha1.Queue) {
	synctest.Test(t, func(t *testing.T) {
		k := &kit{T: t, events: record.NewFakeRecorder(100)}
		scheme := runtime.NewScheme()
		if err := v1alpha1.AddToScheme(scheme); err != nil {
			t.Fatal(err)
		}
		builder := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.Queue{})
		for _, queue := range queues {
			builder.WithObjects(queue)
		}
		api := builder.Build()
		k.api = api
		intercepted := interceptor.NewClient(api, interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				if err := k.called("get " + key.Name); err != nil {
					return err
				}
				return c.Get(ctx, key, o, opts...)
			},
			Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
				if err := k.called("patch " + o.GetName()); err != nil {
					return err
				}
				return c.Patch(ctx, o, p, opts...)
			},
			SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
				if err := k.called("patch " + o.GetName() + " " + sub); err != nil {
					return err
				}
				return c.SubResource(sub).Patch(ctx, o, p, opts...)
			},
		})
		writes := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "writes_total", Help: "Writes."}, []string{"verb", "result"})
		k.writer = New(intercepted, k.events, writes, clock.RealClock{})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { k.writer.Run(ctx) })
		f(k)
		cancel()
		running.Wait()
		synctest.Wait()
	})
}

// queue returns the object, nil if there is none.
func (k *kit) queue(name string) *v1alpha1.Queue {
	k.Helper()
	queue := &v1alpha1.Queue{}
	err := k.api.Get(k.Context(), client.ObjectKey{Name: name}, queue)
	if apierrors.IsNotFound(err) {
		return nil
	}
	k.must(err)
	return queue
}

func (k *kit) must(err error) {
	k.Helper()
	if err != nil {
		k.Fatal(err)
	}
}

// report reports and waits until all that is due at once is done.
func (k *kit) report(r planner.QueueReport) {
	k.Helper()
	k.writer.ReportQueue(r)
	synctest.Wait()
}

// settle lets all intervals pass.
func (k *kit) settle() {
	time.Sleep(2 * time.Second)
	synctest.Wait()
}

func (k *kit) wantCalls(want ...string) {
	k.Helper()
	if diff := cmp.Diff(want, k.take()); diff != "" {
		k.Errorf("calls (-want +got):\n%s", diff)
	}
}

func (k *kit) wantEvents(want ...string) {
	k.Helper()
	var got []string
	for len(k.events.Events) > 0 {
		got = append(got, <-k.events.Events)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		k.Errorf("events (-want +got):\n%s", diff)
	}
}

// writes counts the calls that change something.
func writes(calls []string) int {
	return len(slices.DeleteFunc(slices.Clone(calls), func(c string) bool { return strings.HasPrefix(c, "get ") }))
}

// made returns a Queue as a person writes it.
func made(name string, finalizers ...string) *v1alpha1.Queue {
	return &v1alpha1.Queue{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Generation: 1, Finalizers: finalizers}}
}

// reportOf is of a queue in use that is ready and has so many pending gangs.
func reportOf(name string, pending int32) planner.QueueReport {
	return planner.QueueReport{Name: name, InUse: true, Status: v1alpha1.QueueStatus{
		Open: true, PendingGangs: pending, Allocated: v1alpha1.QueueUsage{GPU: "3.5"},
		Conditions: []metav1.Condition{condition(v1alpha1.QueueReady, metav1.ConditionTrue, v1alpha1.ReasonReady)},
	}}
}

func condition(kind string, status metav1.ConditionStatus, reason string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: "because of " + reason, ObservedGeneration: 1}
}
