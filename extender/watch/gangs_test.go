package watch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/tranche-dev/tranche/extender/internal/fixture"
	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/contract"
)

func (h *heard) ObserveUsage(_ context.Context, u *view.Usage) {
	h.note("usage %s on %s cpu=%d", u.UID, u.Node, u.Needs.MilliCPU)
}
func (h *heard) ForgetUsage(_ context.Context, uid types.UID) { h.note("usage %s gone", uid) }
func (h *heard) ObserveGang(_ context.Context, g *view.Gang) {
	h.note("gang %s/%s min=%d managed=%v started=%v", g.Namespace, g.Name, g.MinCount, g.Managed, g.Started)
}

func (h *heard) ForgetGang(_ context.Context, namespace, name string) {
	h.note("gang %s/%s gone", namespace, name)
}

func (h *heard) ObserveGroup(_ context.Context, g *view.Group) {
	h.note("group %s/%s min=%d", g.Namespace, g.Name, g.MinCount)
}

func (h *heard) ForgetGroup(_ context.Context, namespace, name string) {
	h.note("group %s/%s gone", namespace, name)
}

// all is an audience for everything.
func all(h *heard) Audience {
	return Audience{Pods: h, Nodes: h, Usages: h, Gangs: h, Groups: h, Queues: h, Namespaces: h}
}

// watching runs a watcher in a bubble of its own.
type watching struct {
	*testing.T
	*heard
	client *fake.Clientset
	gangs  *fixture.GangAPI
	// lacks says that the API server has no Gangs, or fails.
	lacks atomic.Pointer[error]
}

var errNoKind error = apierrors.NewGenericServerResponse(404, "get", schema.GroupResource{Group: "tranche.dev", Resource: "gangs"}, "", "", 0, true)

func (w *watching) answer() error {
	if err := w.lacks.Load(); err != nil {
		return *err
	}
	return nil
}

func watchAll(t *testing.T, before func(*watching), f func(*watching)) {
	synctest.Test(t, func(t *testing.T) {
		w := &watching{T: t, heard: &heard{}, client: fake.NewClientset()}
		w.gangs = fixture.Gangs(t, interceptor.Funcs{
			List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, o ...client.ListOption) error {
				if err := w.answer(); err != nil {
					return err
				}
				return c.List(ctx, list, o...)
			},
			Watch: func(ctx context.Context, c client.WithWatch, list client.ObjectList, o ...client.ListOption) (apiwatch.Interface, error) {
				if err := w.answer(); err != nil {
					return nil, err
				}
				return c.Watch(ctx, list, o...)
			},
		})
		if before != nil {
			before(w)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- New(w.client, w.gangs, resources, all(w.heard)).Run(ctx, func(context.Context) error {
				w.note("synced")
				return nil
			})
		}()
		synctest.Wait()
		f(w)
		cancel()
		if err := <-done; err != nil && !errors.Is(err, ErrNotSynced) {
			t.Error(err)
		}
	})
}

// want checks what was told since the last time.
func (w *watching) want(what string, lines ...string) {
	w.Helper()
	synctest.Wait()
	if diff := cmp.Diff(lines, w.take()); diff != "" {
		w.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func (w *watching) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *watching) gang(name string) *v1alpha1.Gang {
	w.Helper()
	gang := &v1alpha1.Gang{}
	w.must(w.gangs.Get(w.Context(), client.ObjectKey{Namespace: "demo", Name: name}, gang))
	return gang
}

func TestTellsOfGangsBeforePods(t *testing.T) {
	watchAll(t, func(w *watching) {
		w.must(w.gangs.Create(w.Context(), fixture.Gang("g", 4)))
		w.must(w.client.Tracker().Add(&schedulingv1beta1.PodGroup{
			ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "pg"},
			Spec:       schedulingv1beta1.PodGroupSpec{SchedulingPolicy: schedulingv1beta1.PodGroupSchedulingPolicy{Gang: &schedulingv1beta1.GangSchedulingPolicy{MinCount: 3}}},
		}))
		w.must(w.client.Tracker().Add(fixture.Pod("p", "50")))
	}, func(w *watching) {
		got := w.take()
		if len(got) == 4 {
			slices.Sort(got[:2]) // the two kinds are read at the same time
		}
		want := []string{"gang demo/g min=4 managed=false started=false", "group demo/pg min=3", `pod uid-p on "" ended=false`, "synced"}
		if diff := cmp.Diff(want, got); diff != "" {
			w.Errorf("at the start (-want +got):\n%s", diff)
		}

		gang := w.gang("g")
		gang.Status.Phase, gang.Status.Members = v1alpha1.GangPending, 3
		w.must(w.gangs.Status().Update(w.Context(), gang))
		w.want("a status that we wrote")
		gang.Status.Conditions = []metav1.Condition{{Type: v1alpha1.GangStarted, Status: metav1.ConditionTrue, Reason: "X"}}
		w.must(w.gangs.Status().Update(w.Context(), gang))
		w.want("started", "gang demo/g min=4 managed=false started=true")
		gang = w.gang("g")
		gang.Spec.MinCount = 5
		gang.Labels = map[string]string{contract.ManagedByLabel: contract.ManagedByTranche}
		w.must(w.gangs.Update(w.Context(), gang))
		w.want("changed", "gang demo/g min=5 managed=true started=true")
		w.must(w.gangs.Delete(w.Context(), gang))
		w.want("gone", "gang demo/g gone")

		groups := w.client.SchedulingV1beta1().PodGroups("demo")
		group, err := groups.Get(w.Context(), "pg", metav1.GetOptions{})
		w.must(err)
		group.Annotations = map[string]string{"a": "b"}
		group, err = groups.Update(w.Context(), group, metav1.UpdateOptions{})
		w.must(err)
		w.want("nothing that matters")
		group.Spec.SchedulingPolicy.Gang = nil
		_, err = groups.Update(w.Context(), group, metav1.UpdateOptions{})
		w.must(err)
		w.want("no gang", "group demo/pg min=0")
		w.must(groups.Delete(w.Context(), "pg", metav1.DeleteOptions{}))
		w.want("group gone", "group demo/pg gone")
	})
}

func TestGangsComeAndGoWithTheirDefinition(t *testing.T) {
	watchAll(t, func(w *watching) { w.lacks.Store(&errNoKind) }, func(w *watching) {
		w.want("at the start", "synced")
		w.lacks.Store(nil)
		w.must(w.gangs.Create(w.Context(), fixture.Gang("g", 4)))
		time.Sleep(gangsAgain)
		w.want("served at last", "gang demo/g min=4 managed=false started=false")
	})
}

func TestGangsAreForgottenWhenTheyAreNoLongerServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &heard{}
		var served atomic.Bool
		var watched atomic.Pointer[apiwatch.FakeWatcher]
		served.Store(true)
		watched.Store(apiwatch.NewFake())
		k := gangKind(nil, h)
		k.client = &fixture.GangAPI{}
		k.lw = fresh(func(context.Context, metav1.ListOptions) (*v1alpha1.GangList, error) {
			if !served.Load() {
				return nil, errNoKind
			}
			return &v1alpha1.GangList{Items: []v1alpha1.Gang{*fixture.Gang("g", 4)}}, nil
		}, func(context.Context, metav1.ListOptions) (apiwatch.Interface, error) {
			if !served.Load() {
				return nil, errNoKind
			}
			return watched.Load(), nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			k.follow(ctx, func() { h.note("known") })
			close(done)
		}()
		time.Sleep(time.Second)
		if diff := cmp.Diff([]string{"gang demo/g min=4 managed=false started=false", "known"}, h.take()); diff != "" {
			t.Errorf("served (-want +got):\n%s", diff)
		}
		served.Store(false)
		watched.Load().Stop()
		time.Sleep(time.Minute + time.Second/2) // not when it is looked at again
		if diff := cmp.Diff([]string{"gang demo/g gone", "known"}, slices.Compact(h.take())); diff != "" {
			t.Errorf("no longer served (-want +got):\n%s", diff)
		}
		watched.Store(apiwatch.NewFake())
		served.Store(true)
		time.Sleep(time.Minute)
		if diff := cmp.Diff([]string{"gang demo/g min=4 managed=false started=false", "known"}, h.take()); diff != "" {
			t.Errorf("served again (-want +got):\n%s", diff)
		}
		cancel()
		<-done
	})
}

func TestPodsDoNotWaitForeverForGangs(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "gangs"}, "", errors.New("no role"))
	var err error = forbidden
	watchAll(t, func(w *watching) { w.lacks.Store(&err) }, func(w *watching) {
		time.Sleep(patience - time.Second)
		w.want("still hoping")
		time.Sleep(2 * time.Second)
		w.want("going on", "synced")
		w.lacks.Store(nil)
		w.must(w.gangs.Create(w.Context(), fixture.Gang("g", 4)))
		time.Sleep(gangsAgain)
		w.want("allowed at last", "gang demo/g min=4 managed=false started=false")
	})
}

func TestPodGroupsAreFoundWhenTheyAreSwitchedOn(t *testing.T) {
	var off atomic.Bool
	off.Store(true)
	watchAll(t, func(w *watching) {
		w.must(w.client.Tracker().Add(&schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "pg"}}))
		w.client.PrependReactor("list", "podgroups", func(clienttesting.Action) (bool, runtime.Object, error) {
			return off.Load(), nil, apierrors.NewGenericServerResponse(404, "list", schema.GroupResource{Resource: "podgroups"}, "", "", 0, true)
		})
	}, func(w *watching) {
		w.want("off", "synced")
		off.Store(false)
		time.Sleep(groupsAgain)
		w.want("on", "group demo/pg min=0")
	})
}

func TestUsageOfAllPodsIsToldFirstAndOnlyWhenItChanges(t *testing.T) {
	h := &heard{}
	w := New(fake.NewClientset(), nil, resources, all(h))
	handler := &podHandler{t.Context(), w}
	entry := func(pod *corev1.Pod) any {
		t.Helper()
		e, err := w.cutPod(pod)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	change := func(pod *corev1.Pod, f func(*corev1.Pod)) *corev1.Pod {
		pod = pod.DeepCopy()
		f(pod)
		return pod
	}
	cpu := func(n string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(n)}
	}
	ordinary := change(fixture.Pod("o", ""), func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests = cpu("1") })
	bound := change(ordinary, func(p *corev1.Pod) { p.Spec.NodeName = "a" })
	ready := change(bound, func(p *corev1.Pod) { p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady}} })
	ended := change(bound, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
	again := change(bound, func(p *corev1.Pod) { p.UID = "uid-again" })
	pending := fixture.Pod("g", "50")
	gpu := change(pending, func(p *corev1.Pod) { p.Spec.NodeName = "a" })
	other := change(pending, func(p *corev1.Pod) { p.UID = "uid-other" })

	cases := map[string]struct {
		event func()
		want  []string
	}{
		"not bound":               {func() { handler.OnAdd(entry(ordinary), true) }, nil},
		"bound when first seen":   {func() { handler.OnAdd(entry(bound), true) }, []string{"usage uid-o on a cpu=1000"}},
		"bound":                   {func() { handler.OnUpdate(entry(ordinary), entry(bound)) }, []string{"usage uid-o on a cpu=1000"}},
		"nothing new":             {func() { handler.OnUpdate(entry(bound), entry(ready)) }, nil},
		"ended":                   {func() { handler.OnUpdate(entry(ready), entry(ended)) }, []string{"usage uid-o gone"}},
		"deleted":                 {func() { handler.OnDelete(entry(bound)) }, []string{"usage uid-o gone"}},
		"deleted after its end":   {func() { handler.OnDelete(entry(ended)) }, nil},
		"another pod of its name": {func() { handler.OnUpdate(entry(bound), entry(again)) }, []string{"usage uid-o gone", "usage uid-again on a cpu=1000"}},
		"with GPUs":               {func() { handler.OnUpdate(entry(pending), entry(gpu)) }, []string{"usage uid-g on a cpu=0", `pod uid-g on "a" ended=false`}},
		"with GPUs, replaced by one that waits": {
			func() { handler.OnUpdate(entry(gpu), entry(other)) },
			[]string{"usage uid-g gone", "pod uid-g gone", `pod uid-other on "" ended=false`},
		},
		"with GPUs, deleted": {func() { handler.OnDelete(entry(gpu)) }, []string{"usage uid-g gone", "pod uid-g gone"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			tc.event()
			if diff := cmp.Diff(tc.want, h.take()); diff != "" {
				t.Errorf("told (-want +got):\n%s", diff)
			}
		})
	}
}

func TestUsageIsNotKeptWhenGangsAreOff(t *testing.T) {
	w := New(fake.NewClientset(), nil, resources, Audience{Pods: &heard{}, Nodes: &heard{}})
	pod := fixture.Pod("o", "")
	pod.Spec.NodeName = "a"
	e, err := w.cutPod(pod)
	if err != nil || e.(*podEntry).usage != nil {
		t.Errorf("entry %+v, %v", e, err)
	}
}

func TestNodesAreToldOfWhenSchedulingDependsOnIt(t *testing.T) {
	h := &heard{}
	w := New(fake.NewClientset(), nil, resources, all(h))
	handler := &nodeHandler{t.Context(), w}
	base := fixture.ForeignNode("f")
	base.Labels = map[string]string{"zone": "1"}
	base.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}
	cases := map[string]struct {
		change func(*corev1.Node)
		told   bool
	}{
		"heartbeat": {func(n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, LastHeartbeatTime: metav1.Now()}}
			n.Status.Allocatable = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8000m")}
			n.Spec.Taints[0].TimeAdded = &metav1.Time{Time: time.Unix(1, 0)}
		}, false},
		"annotation":  {func(n *corev1.Node) { n.Annotations = map[string]string{"x": "y"} }, false},
		"label":       {func(n *corev1.Node) { n.Labels["zone"] = "2" }, true},
		"no label":    {func(n *corev1.Node) { n.Labels = nil }, true},
		"taint":       {func(n *corev1.Node) { n.Spec.Taints[0].Effect = corev1.TaintEffectNoExecute }, true},
		"cordoned":    {func(n *corev1.Node) { n.Spec.Unschedulable = true }, true},
		"allocatable": {func(n *corev1.Node) { n.Status.Allocatable["cpu"] = resource.MustParse("1") }, true},
		"inventory":   {func(n *corev1.Node) { n.Annotations = map[string]string{contract.InventoryAnnotation: "{}"} }, true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			changed := base.DeepCopy()
			tc.change(changed)
			cut := func(n *corev1.Node) any {
				c, err := w.cutNode(n)
				if err != nil {
					t.Fatal(err)
				}
				return c
			}
			handler.OnUpdate(cut(base), cut(changed))
			if got := h.take(); (len(got) > 0) != tc.told {
				t.Errorf("told %q, want told: %v", got, tc.told)
			}
		})
	}
}

func TestGangViewHasTheWholeSpec(t *testing.T) {
	gang := fixture.Gang("g", 4)
	gang.Labels = map[string]string{contract.ManagedByLabel: "somebody"}
	gang.Spec.DisruptionMode = v1alpha1.DisruptAll
	gang.Spec.StalenessGracePeriod = &metav1.Duration{Duration: time.Minute}
	gang.Spec.Topology = &v1alpha1.GangTopology{NodeLabel: "zone", Mode: v1alpha1.TopologyRequired}
	want := &view.Gang{
		Namespace: "demo", Name: "g", UID: "uid-g", Generation: 1, MinCount: 4,
		DisruptAll: true, Staleness: new(time.Minute), NodeLabel: "zone", Required: true,
	}
	if diff := cmp.Diff(want, gangOf(gang)); diff != "" {
		t.Errorf("view (-want +got):\n%s", diff)
	}
	if !sameGang(want, gangOf(gang)) {
		t.Error("equal gangs differ")
	}
	for i, change := range []func(*v1alpha1.Gang){
		func(g *v1alpha1.Gang) { g.Spec.StalenessGracePeriod.Duration++ },
		func(g *v1alpha1.Gang) { g.Spec.StalenessGracePeriod = nil },
		func(g *v1alpha1.Gang) { g.Spec.Topology.Mode = v1alpha1.TopologyPreferred },
		func(g *v1alpha1.Gang) { g.Spec.Topology = nil },
		func(g *v1alpha1.Gang) { g.Generation++ },
		func(g *v1alpha1.Gang) { g.UID = "x" },
	} {
		changed := gang.DeepCopy()
		change(changed)
		if sameGang(want, gangOf(changed)) {
			t.Errorf("change %d is not seen", i)
		}
	}
}

func TestKindsRefuseOthersObjects(t *testing.T) {
	gangs, groups := gangKind(nil, &heard{}), groupKind(fake.NewClientset(), &heard{})
	for _, cut := range []cache.TransformFunc{gangs.cut, groups.cut} {
		if got, err := cut(&corev1.Pod{}); err == nil {
			t.Errorf("%v for a pod", got)
		}
	}
	once, err := gangs.cut(fixture.Gang("g", 4))
	if err != nil {
		t.Fatal(err)
	}
	if twice, err := gangs.cut(once); err != nil || twice != once {
		t.Errorf("second cut: %v, %v", twice, err)
	}
	h := &heard{}
	handler := &optionalHandler[*view.Gang]{ctx: t.Context(), k: gangKind(nil, h), told: map[cache.ObjectName]struct{}{}}
	handler.OnAdd(once, false)
	handler.OnDelete(cache.DeletedFinalStateUnknown{Key: "demo/g", Obj: once})
	if got := fmt.Sprint(h.take()); got != "[gang demo/g min=4 managed=false started=false gang demo/g gone]" || len(handler.told) != 0 {
		t.Errorf("told %s", got)
	}
}
