package bind

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/tranche-dev/tranche/extender/internal/fixture"
	"github.com/tranche-dev/tranche/extender/metrics"
	"github.com/tranche-dev/tranche/extender/planner"
	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

// kit is a Binder and an API server that can be made to fail.
type kit struct {
	*testing.T
	client  *fake.Clientset
	planner *planner.Planner
	binder  *Binder
	metrics *metrics.Metrics
	effects *Effects
	// bindings counts calls that reached the API server.
	bindings int
	// onBind and onGet run before a call is carried out. handled: their error
	// is the answer.
	onBind func(*corev1.Binding) (handled bool, err error)
	onGet  func() error
	events *record.FakeRecorder
	// reports are what the planner says of gangs.
	reports []planner.GangReport
}

func (k *kit) Report(report planner.GangReport) { k.reports = append(k.reports, report) }

func (*kit) ReportQueue(planner.QueueReport) {}

var resources = contract.DefaultResources()

const holdTimeout = 15 * time.Second

func run(t *testing.T, f func(k *kit)) {
	synctest.Test(t, func(t *testing.T) {
		k := &kit{T: t, client: fake.NewClientset(), events: record.NewFakeRecorder(100)}
		k.metrics = metrics.New(prometheus.NewRegistry())
		k.client.PrependReactor("create", "pods", k.create)
		k.client.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			if k.onGet == nil {
				return false, nil, nil
			}
			err := k.onGet()
			return err != nil, nil, err
		})
		var err error
		k.effects, err = NewEffects(EffectsClients{k.client, k.client}, k.events, k, k, k.metrics, EffectsOptions{
			Resources: resources, RetryQPS: 10, EventQPS: 10, AdmissionQPS: 100, Run: "r1", Clock: clock.RealClock{},
		})
		if err != nil {
			t.Fatal(err)
		}
		k.planner, err = planner.New(planner.Options{Resources: resources, Placement: contract.PlacementBinpack, HoldTimeout: holdTimeout, Clock: clock.RealClock{}}, k.metrics, k.effects)
		if err != nil {
			t.Fatal(err)
		}
		k.binder = New(k.client, resources, k.planner, k.metrics, 5*time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { k.planner.Run(ctx) })
		running.Go(func() { k.effects.Run(ctx, k.planner) })
		for _, node := range []string{"a", "b"} {
			k.planner.ObserveNode(ctx, view.NodeOf(fixture.Node(t, node, fixture.Inventory(node, 1)), resources))
		}
		f(k)
		cancel()
		running.Wait()
		synctest.Wait()
	})
}

// create is pods/binding: node and annotations in one step, if the pod is what
// the caller thinks it is.
func (k *kit) create(action clienttesting.Action) (bool, runtime.Object, error) {
	create, ok := action.(clienttesting.CreateActionImpl)
	if !ok || action.GetSubresource() != "binding" {
		return false, nil, nil
	}
	binding, ok := create.GetObject().(*corev1.Binding)
	if !ok {
		k.Errorf("binding is a %T", create.GetObject())
		return true, nil, nil
	}
	k.bindings++
	if k.onBind != nil {
		if handled, err := k.onBind(binding); handled {
			return true, nil, err
		}
	}
	return true, nil, k.carryOut(binding)
}

func (k *kit) carryOut(binding *corev1.Binding) error {
	pods := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	object, err := k.client.Tracker().Get(pods, binding.Namespace, binding.Name)
	if err != nil {
		return err
	}
	pod := object.(*corev1.Pod).DeepCopy()
	switch {
	case binding.UID != pod.UID:
		return conflicting("the UID in the precondition does not match the UID in record")
	case pod.Spec.NodeName != "":
		return conflicting("pod is already assigned to node " + pod.Spec.NodeName)
	}
	pod.Spec.NodeName = binding.Target.Name
	maps.Copy(pod.Annotations, binding.Annotations)
	return k.client.Tracker().Update(pods, pod, pod.Namespace)
}

func conflicting(text string) error {
	return apierrors.NewConflict(schema.GroupResource{Resource: "pods/binding"}, "p", errors.New(text))
}

func (k *kit) exists(pod *corev1.Pod) {
	k.Helper()
	if err := k.client.Tracker().Add(pod); err != nil {
		k.Fatal(err)
	}
}

func (k *kit) stored(name string) *corev1.Pod {
	k.Helper()
	onGet := k.onGet
	k.onGet = nil
	defer func() { k.onGet = onGet }()
	pod, err := k.client.CoreV1().Pods("demo").Get(k.Context(), name, metav1.GetOptions{})
	if err != nil {
		k.Fatal(err)
	}
	return pod
}

func (k *kit) filter(pod *corev1.Pod, nodes ...string) {
	k.Helper()
	if _, err := k.planner.Filter(k.Context(), pod, nodes); err != nil {
		k.Fatal(err)
	}
}

func (k *kit) bind(pod *corev1.Pod, node string) error {
	k.Helper()
	return k.binder.Bind(k.Context(), planner.Target{UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name, Node: node})
}

func (k *kit) wantCharged(node string, allocated, held units.Shares) {
	k.Helper()
	if err := k.planner.Ping(k.Context()); err != nil {
		k.Fatal(err)
	}
	g := k.planner.Snapshot().Ledger.Node(node).GPUs()[0]
	if g.Allocated != allocated || g.Held != held {
		k.Errorf("node %s: allocated %d, held %d, want %d and %d", node, g.Allocated, g.Held, allocated, held)
	}
}

func (k *kit) wantFailures(reason string, n float64) {
	k.Helper()
	if got := testutil.ToFloat64(k.metrics.BindFailures.WithLabelValues(reason)); got != n {
		k.Errorf("%v failures for reason %q counted, want %v", got, reason, n)
	}
}

func TestBindWritesNodeAndPlanTogether(t *testing.T) {
	run(t, func(k *kit) {
		pod := fixture.Pod("p", "60")
		k.exists(pod)
		k.filter(pod, "a")
		if err := k.bind(pod, "a"); err != nil {
			k.Fatal(err)
		}
		stored := k.stored("p")
		plan, err := contract.ParsePlan(stored.Annotations[contract.PlanAnnotation])
		if err != nil {
			k.Fatal(err)
		}
		want := contract.Plan{Version: 1, Node: "a", Containers: map[string][]contract.Grant{"c0": {{GPU: fixture.GPU("a", 0), Shares: 60, MemoryMiB: 49152}}}}
		if diff := cmp.Diff(want, plan); diff != "" || stored.Spec.NodeName != "a" {
			k.Errorf("node %q, plan (-want +got):\n%s", stored.Spec.NodeName, diff)
		}
		k.wantCharged("a", 60, 0)
		// The scheduler did not hear of it and asks again.
		if err := k.bind(pod, "a"); err != nil {
			k.Errorf("second bind: %v", err)
		}
		if k.bindings != 1 {
			k.Errorf("%d Bindings, want 1", k.bindings)
		}
	})
}

func TestBindReadsAPodThatNobodyToldOf(t *testing.T) {
	run(t, func(k *kit) {
		pod := fixture.Pod("p", "60")
		k.exists(pod)
		if err := k.bind(pod, "a"); err != nil {
			k.Fatal(err)
		}
		k.wantCharged("a", 60, 0)
	})
}

func TestBindFailures(t *testing.T) {
	gr := schema.GroupResource{Resource: "pods"}
	pod := fixture.Pod("p", "60")
	always := func(err error) func(*kit) {
		return func(k *kit) { k.onBind = func(*corev1.Binding) (bool, error) { return true, err } }
	}
	lost := errors.New("connection reset by peer")
	terminating := apierrors.NewForbidden(gr, "p", errors.New("because it is being terminated"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	cases := map[string]struct {
		before          func(k *kit)
		wantError       string // empty: success
		wantLabel       string
		allocated, held units.Shares
	}{
		"forbidden":               {always(apierrors.NewForbidden(gr, "p", errors.New("no"))), "grant the extender's service account create on pods/binding", "forbidden", 0, 0},
		"namespace going":         {always(terminating), "the pod's namespace is being deleted", "terminating", 0, 0},
		"invalid":                 {always(apierrors.NewInvalid(schema.GroupKind{Kind: "Binding"}, "p", nil)), "does not take this Binding", "invalid", 0, 0},
		"not found":               {always(apierrors.NewNotFound(gr, "p")), "the pod is gone", "gone", 0, 0},
		"overloaded":              {always(apierrors.NewTooManyRequests("slow down", 1)), "overloaded", "throttled", 0, 0},
		"conflict, and not bound": {always(conflicting("pod has scheduling gates")), "tried again if it still waits", "conflict", 0, 0},
		"conflict, since another has the name": {func(k *kit) {
			other := pod.DeepCopy()
			other.UID = "another"
			k.replace(other)
		}, "another one has its name", "gone", 0, 0},
		"conflict, since it is bound elsewhere": {func(k *kit) {
			k.replace(fixture.Bound(k, pod, "b", map[string]contract.Grant{"c0": {GPU: fixture.GPU("b", 0), Shares: 60}}))
		}, "already bound to another node", "bound_elsewhere", 0, 0},
		"conflict, since it is bound there, by another plan": {func(k *kit) {
			k.replace(fixture.Bound(k, pod, "a", map[string]contract.Grant{"c0": {GPU: fixture.GPU("a", 0), Shares: 70}}))
		}, "", "", 70, 0},
		"lost, and not bound": {always(lost), "tried again", "error", 0, 60},
		"lost, but bound": {func(k *kit) {
			k.onBind = func(b *corev1.Binding) (bool, error) { return true, errors.Join(lost, k.carryOut(b)) }
		}, "", "", 60, 0},
		"timeout, and not bound": {always(context.DeadlineExceeded), "did not answer in time", "timeout", 0, 60},
		"timeout of the server, but bound": {func(k *kit) {
			k.onBind = func(b *corev1.Binding) (bool, error) {
				if err := k.carryOut(b); err != nil {
					k.Error(err)
				}
				return true, apierrors.NewTimeoutError("etcd", 1)
			}
		}, "", "", 60, 0},
		"lost, and gone": {func(k *kit) {
			k.onBind = func(*corev1.Binding) (bool, error) {
				k.remove(pod)
				return true, lost
			}
		}, "the pod is gone", "gone", 0, 0},
		"lost, and nobody knows": {func(k *kit) {
			always(lost)(k)
			k.onGet = func() error { return lost }
		}, "keeps its GPUs until that is known", "unknown", 60, 0},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			run(t, func(k *kit) {
				k.exists(pod)
				k.filter(pod, "a")
				tc.before(k)
				err := k.bind(pod, "a")
				switch {
				case tc.wantError == "" && err != nil:
					k.Errorf("error %v, want success", err)
				case tc.wantError != "" && (err == nil || !strings.Contains(err.Error(), tc.wantError)):
					k.Errorf("error %v, want one with %q", err, tc.wantError)
				}
				if tc.wantLabel != "" {
					k.wantFailures(tc.wantLabel, 1)
				}
				k.wantCharged("a", tc.allocated, tc.held)
			})
		})
	}
}

func (k *kit) replace(pod *corev1.Pod) {
	k.Helper()
	k.remove(pod)
	k.exists(pod)
}

func (k *kit) remove(pod *corev1.Pod) {
	k.Helper()
	if err := k.client.Tracker().Delete(schema.GroupVersionResource{Version: "v1", Resource: "pods"}, pod.Namespace, pod.Name); err != nil {
		k.Fatal(err)
	}
}

func TestBindThatNobodyKnowsOfIsSettledLater(t *testing.T) {
	for name, bound := range map[string]bool{"it was bound": true, "it was not": false} {
		t.Run(name, func(t *testing.T) {
			run(t, func(k *kit) {
				pod := fixture.Pod("p", "60")
				k.exists(pod)
				k.filter(pod, "a")
				lost := errors.New("connection refused")
				k.onBind = func(b *corev1.Binding) (bool, error) {
					if bound {
						return true, errors.Join(lost, k.carryOut(b))
					}
					return true, lost
				}
				var down sync.Mutex
				isDown := true
				k.onGet = func() error {
					down.Lock()
					defer down.Unlock()
					if isDown {
						return lost
					}
					return nil
				}
				if err := k.bind(pod, "a"); err == nil {
					k.Fatal("no error")
				}
				// It stays charged for as long as the API server is away.
				time.Sleep(10 * holdTimeout)
				k.wantCharged("a", 60, 0)
				if err := k.bind(pod, "a"); !errors.Is(err, planner.ErrInProgress) {
					k.Errorf("second bind: %v, want %v", err, planner.ErrInProgress)
				}
				down.Lock()
				isDown = false
				down.Unlock()
				time.Sleep(40 * time.Second)
				if bound {
					k.wantCharged("a", 60, 0)
				} else {
					k.wantCharged("a", 0, 0)
				}
			})
		})
	}
}

func TestBindOutlivesTheSchedulersPatience(t *testing.T) {
	run(t, func(k *kit) {
		pod := fixture.Pod("p", "60")
		k.exists(pod)
		k.filter(pod, "a")
		ctx, cancel := context.WithCancel(k.Context())
		k.onBind = func(*corev1.Binding) (bool, error) {
			cancel()
			return false, nil
		}
		if err := k.binder.Bind(ctx, planner.Target{UID: pod.UID, Namespace: "demo", Name: "p", Node: "a"}); err != nil {
			k.Error(err)
		}
		k.wantCharged("a", 60, 0)
		if node := k.stored("p").Spec.NodeName; node != "a" {
			k.Errorf("bound to %q", node)
		}
	})
}
