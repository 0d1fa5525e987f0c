package watch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/tranche-dev/tranche/extender/internal/fixture"
	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/contract"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var resources = contract.DefaultResources()

// heard writes down what it is told.
type heard struct {
	mu    sync.Mutex
	lines []string
}

func (h *heard) note(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lines = append(h.lines, fmt.Sprintf(format, args...))
}

func (h *heard) Observe(_ context.Context, p *view.Pod) {
	h.note("pod %s on %q ended=%v", p.UID, p.Node, p.Ended)
}
func (h *heard) Forget(_ context.Context, last *view.Pod) { h.note("pod %s gone", last.UID) }
func (h *heard) ObserveNode(_ context.Context, n *view.Node) {
	gpus := 0
	if n.Inventory != nil {
		gpus = len(n.Inventory.GPUs)
	}
	h.note("node %s gpus=%d foreign=%v broken=%v", n.Name, gpus, n.Foreign(), n.Problem != "")
}
func (h *heard) ForgetNode(_ context.Context, name string) { h.note("node %s gone", name) }

func (h *heard) take() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	lines := h.lines
	h.lines = nil
	return lines
}

func TestTellsOfNodesThenPodsThenChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := fixture.Node(t, "a", fixture.Inventory("a", 2))
		pod := fixture.Pod("p", "50")
		client := fake.NewClientset(node, fixture.ForeignNode("f"), pod, fixture.Pod("ordinary", ""))
		h := &heard{}
		w := New(client, fixture.Gangs(t, interceptor.Funcs{}), resources, Audience{Pods: h, Nodes: h})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- w.Run(ctx, func(context.Context) error {
				h.note("synced")
				return nil
			})
		}()
		synctest.Wait()
		step := func(what string, want ...string) {
			t.Helper()
			synctest.Wait()
			if diff := cmp.Diff(want, h.take()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", what, diff)
			}
		}
		got := h.take()
		if len(got) != 4 || got[2] != `pod uid-p on "" ended=false` || got[3] != "synced" {
			t.Errorf("at the start: %q", got)
		}

		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		nodes, pods := client.CoreV1().Nodes(), client.CoreV1().Pods("demo")
		// A heartbeat is no news.
		node = node.DeepCopy()
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, LastHeartbeatTime: metav1.Now()}}
		_, err := nodes.Update(ctx, node, metav1.UpdateOptions{})
		must(err)
		step("heartbeat")
		delete(node.Annotations, contract.InventoryAnnotation)
		node.Status.Allocatable = nil // of GPUs, or it would be somebody else's
		_, err = nodes.Update(ctx, node, metav1.UpdateOptions{})
		must(err)
		step("no inventory", "node a gpus=0 foreign=false broken=false")
		must(nodes.Delete(ctx, "a", metav1.DeleteOptions{}))
		step("node gone", "node a gone")

		bound := fixture.Bound(t, pod, "f", map[string]contract.Grant{"c0": {GPU: "g", Shares: 50}})
		_, err = pods.Update(ctx, bound, metav1.UpdateOptions{})
		must(err)
		step("bound", `pod uid-p on "f" ended=false`)
		bound = bound.DeepCopy()
		bound.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady}}
		_, err = pods.Update(ctx, bound, metav1.UpdateOptions{})
		must(err)
		step("another condition")
		_, err = pods.Update(ctx, fixture.Reported(bound, "c0", resources.Share, 50, "GPU-x"), metav1.UpdateOptions{})
		must(err)
		step("devices", `pod uid-p on "f" ended=false`)
		bound.Status.Phase = corev1.PodFailed
		_, err = pods.Update(ctx, bound, metav1.UpdateOptions{})
		must(err)
		step("ended", `pod uid-p on "f" ended=true`)
		must(pods.Delete(ctx, "p", metav1.DeleteOptions{}))
		step("gone", "pod uid-p gone")
		must(pods.Delete(ctx, "ordinary", metav1.DeleteOptions{}))
		step("a pod without GPUs")

		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestMissedDeletionsAreNoticed(t *testing.T) {
	h := &heard{}
	w := New(fake.NewClientset(), nil, resources, Audience{Pods: h, Nodes: h})
	entry := func(pod *corev1.Pod) any {
		t.Helper()
		e, err := w.cutPod(pod)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	pods := &podHandler{t.Context(), w}
	first := fixture.Pod("p", "50")
	second := first.DeepCopy()
	second.UID = "uid-second"
	ordinary := fixture.Pod("p", "")
	ordinary.UID = "uid-ordinary"

	cases := map[string]struct {
		event func()
		want  []string
	}{
		"another pod of the name":           {func() { pods.OnUpdate(entry(first), entry(second)) }, []string{"pod uid-p gone", `pod uid-second on "" ended=false`}},
		"another pod that uses no GPU":      {func() { pods.OnUpdate(entry(first), entry(ordinary)) }, []string{"pod uid-p gone"}},
		"after a pod that used no GPU":      {func() { pods.OnUpdate(entry(ordinary), entry(second)) }, []string{`pod uid-second on "" ended=false`}},
		"a tombstone":                       {func() { pods.OnDelete(cache.DeletedFinalStateUnknown{Key: "demo/p", Obj: entry(first)}) }, []string{"pod uid-p gone"}},
		"a tombstone of an ordinary pod":    {func() { pods.OnDelete(cache.DeletedFinalStateUnknown{Key: "demo/p", Obj: entry(ordinary)}) }, nil},
		"a tombstone of which no one knows": {func() { pods.OnDelete(cache.DeletedFinalStateUnknown{Key: "demo/p"}) }, nil},
		"a node's tombstone": {func() {
			(&nodeHandler{t.Context(), w}).OnDelete(cache.DeletedFinalStateUnknown{Key: "a", Obj: fixture.ForeignNode("a")})
		}, []string{"node a gone"}},
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

// A running pod's status changes often, and nobody is told of most of that.
func TestWhatDidNotChangeIsKeptOnce(t *testing.T) {
	w := New(fake.NewClientset(), nil, resources, Audience{Pods: &heard{}, Nodes: &heard{}, Usages: usages{}})
	entry := func(pod *corev1.Pod) *podEntry {
		t.Helper()
		e, err := w.cutPod(pod)
		if err != nil {
			t.Fatal(err)
		}
		return e.(*podEntry)
	}
	bound := fixture.Bound(t, fixture.Pod("p", "50"), "a", map[string]contract.Grant{"c0": {GPU: fixture.GPU("a", 0), Shares: 50}})
	restarted := bound.DeepCopy()
	restarted.ResourceVersion, restarted.Status.ContainerStatuses = "99", []corev1.ContainerStatus{{Name: "c0", RestartCount: 1}}
	ended := restarted.DeepCopy()
	ended.Status.Phase = corev1.PodSucceeded
	first, second, third := entry(bound), entry(restarted), entry(ended)
	h := &podHandler{t.Context(), w}
	h.OnAdd(first, true)
	h.OnUpdate(first, second)
	if second.pod != first.pod || second.usage != first.usage || second.GetObjectMeta().GetResourceVersion() != "99" {
		t.Errorf("entry %+v, want what the first has: %+v", second, first)
	}
	h.OnUpdate(second, third)
	if third.pod == first.pod || third.usage != nil {
		t.Errorf("entry %+v, want the pod's end in it", third)
	}
}

// usages hears and forgets.
type usages struct{}

func (usages) ObserveUsage(context.Context, *view.Usage) {}
func (usages) ForgetUsage(context.Context, types.UID)    {}

func TestTransformsAreIdempotentAndForgetful(t *testing.T) {
	w := New(fake.NewClientset(), nil, resources, Audience{Pods: &heard{}, Nodes: &heard{}})
	pod := fixture.Pod("p", "50")
	pod.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "x"}}
	once, err := w.cutPod(pod)
	if err != nil {
		t.Fatal(err)
	}
	twice, err := w.cutPod(once)
	if err != nil || twice != once {
		t.Errorf("second cut: %v, %v", twice, err)
	}
	want := &metav1.ObjectMeta{Namespace: pod.Namespace, Name: "p", UID: pod.UID, ResourceVersion: pod.ResourceVersion}
	if diff := cmp.Diff(want, once.(*podEntry).GetObjectMeta()); diff != "" {
		t.Errorf("entry (-want +got):\n%s", diff)
	}
	node := fixture.Node(t, "a", fixture.Inventory("a", 1))
	node.Labels, node.Finalizers = map[string]string{"x": "y"}, []string{"f"}
	node.Annotations["other"] = "long"
	node.Status.Images = []corev1.ContainerImage{{}}
	cut, err := w.cutNode(node)
	if err != nil {
		t.Fatal(err)
	}
	again, err := w.cutNode(cut)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(cut, again); diff != "" {
		t.Errorf("second cut (-first +second):\n%s", diff)
	}
	if n := cut.(*corev1.Node); n.Labels["x"] != "y" || n.Finalizers != nil || len(n.Annotations) != 1 || n.Status.Images != nil {
		t.Errorf("node %+v", n)
	}
	for _, cut := range []cache.TransformFunc{w.cutPod, w.cutNode} {
		if _, err := cut("text"); err == nil {
			t.Error("no error for an object of another kind")
		}
	}
}

func TestFirstListIsNeverFromAStaleCache(t *testing.T) {
	var asked []string
	lw := fresh(func(_ context.Context, o metav1.ListOptions) (*corev1.PodList, error) {
		asked = append(asked, o.ResourceVersion)
		return &corev1.PodList{}, nil
	}, func(context.Context, metav1.ListOptions) (apiwatch.Interface, error) { return nil, errors.New("none") })
	for _, version := range []string{"0", "", "17"} {
		if _, err := lw.ListWithContext(t.Context(), metav1.ListOptions{ResourceVersion: version}); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"", "", "17"}, asked); diff != "" {
		t.Errorf("versions asked for (-want +got):\n%s", diff)
	}
}

func TestRunEndsWhileItStillReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		client.PrependReactor("list", "pods", failing)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		h := &heard{}
		err := New(client, fixture.Gangs(t, interceptor.Funcs{}), resources, Audience{Pods: h, Nodes: h}).Run(ctx, func(context.Context) error {
			t.Error("synced without a list")
			return nil
		})
		if !errors.Is(err, ErrNotSynced) {
			t.Errorf("error %v, want %v", err, ErrNotSynced)
		}
	})
}
