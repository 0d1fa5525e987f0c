package nodeplugin_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"

	"github.com/tranche-dev/tranche/nodeplugin"
	"github.com/tranche-dev/tranche/nodeplugin/internal/fakekubelet"
	"github.com/tranche-dev/tranche/nodeplugin/nvml/models"
	"github.com/tranche-dev/tranche/nodeplugin/nvml/simulated"
	"github.com/tranche-dev/tranche/nodeplugin/nvml/simulation"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
	"github.com/tranche-dev/tranche/tests/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	nodeName = "node-1"
	share    = "nvidia.com/gpu-share"
	whole    = "nvidia.com/gpu"
)

// gpu returns the UUID of the n-th simulated GPU.
func gpu(n int) contract.GPUUUID { return models.UUID(nodeName, n) }

// node is a machine: a kubelet, an API server and a node plugin with simulated
// GPUs, each of which can be stopped and started.
type node struct {
	t       *testing.T
	opts    nodeplugin.Options
	kubelet *fakekubelet.Kubelet
	client  *fake.Clientset
	file    string

	mu      sync.Mutex
	machine simulation.File
	plugin  *nodeplugin.Plugin
	reg     *prometheus.Registry
	cancel  context.CancelFunc
	ended   chan error
	created time.Time
	pods    int
}

// newNode makes a machine with these GPUs, of which nothing runs yet.
func newNode(t *testing.T, gpus ...string) *node {
	t.Helper()
	root, err := os.MkdirTemp("", "np") //nolint:usetesting // the paths of sockets must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	n := &node{
		t: t, kubelet: fakekubelet.New(root), file: filepath.Join(root, "gpus.yaml"), created: time.Unix(1000, 0),
		client: fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, Annotations: map[string]string{"other": "kept"}}}),
	}
	o := nodeplugin.NewOptions()
	o.NodeName, o.NVML, o.SimulationFile = nodeName, nodeplugin.NVMLSimulated, n.file
	o.KubeletRootDir, o.DevicePluginDir = root, n.kubelet.PluginDir
	o.CDIDir, o.StateDir = filepath.Join(root, "cdi"), filepath.Join(root, "state")
	o.HealthCheckInterval, o.HealthRecoveryPeriod = 100*time.Millisecond, 300*time.Millisecond
	n.opts = *o
	n.simulate(func(f *simulation.File) { *f = simulation.Machine(gpus...) })
	t.Cleanup(n.kubelet.Stop)
	t.Cleanup(func() {
		if err := n.stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return n
}

// simulate changes the machine's GPUs.
func (n *node) simulate(change func(*simulation.File)) {
	n.t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	change(&n.machine)
	text, err := n.machine.Format()
	if err == nil {
		err = os.WriteFile(n.file+".new", text, 0o600)
	}
	if err == nil {
		err = os.Rename(n.file+".new", n.file)
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) startKubelet() {
	n.t.Helper()
	if err := n.kubelet.Start(n.t.Context()); err != nil {
		n.t.Fatal(err)
	}
}

// start runs the plugin.
func (n *node) start() {
	n.t.Helper()
	_, ctx := ktesting.NewTestContext(n.t)
	ctx, n.cancel = context.WithCancel(ctx)
	sim, err := simulated.Load(n.file, nodeName)
	if err != nil {
		n.t.Fatal(err)
	}
	if err := n.opts.Validate(); err != nil {
		n.t.Fatal(err)
	}
	n.reg = prometheus.NewRegistry()
	n.plugin, err = nodeplugin.New(ctx, n.opts, nodeplugin.Dependencies{
		Client: n.client, Library: sim.Library(), Registry: n.reg, Clock: clock.RealClock{}, Simulation: sim.Follow,
	})
	if err != nil {
		n.t.Fatal(err)
	}
	plugin, ended := n.plugin, make(chan error, 1)
	n.ended = ended
	go func() { ended <- plugin.Run(ctx) }()
}

// stop ends the plugin and returns what it returned.
func (n *node) stop() error {
	if n.cancel == nil {
		return nil
	}
	n.cancel()
	n.cancel = nil
	return <-n.ended
}

// up starts everything and waits until the plugin is ready.
func (n *node) up() *node {
	n.t.Helper()
	n.startKubelet()
	n.start()
	n.ready()
	return n
}

// ready waits until the plugin says so, and the kubelet has heard of healthy
// devices of both resources from it: it keeps those of an earlier plugin, as
// unhealthy ones.
func (n *node) ready() {
	n.t.Helper()
	var err error
	n.eventually(func() bool { err = n.plugin.Ready(); return err == nil }, func() string { return fmt.Sprintf("ready: %v", err) })
	n.eventually(func() bool {
		shares, _ := n.kubelet.Healthy(share)
		gpus, _ := n.kubelet.Healthy(whole)
		return shares > 0 && gpus > 0
	}, func() string { return "the kubelet has healthy devices" })
}

// eventually polls until f holds.
func (n *node) eventually(f func() bool, what func() string) {
	n.t.Helper()
	deadline := time.After(20 * time.Second)
	for !f() {
		select {
		case <-deadline:
			n.t.Fatalf("not within 20 s: %s", what())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func says(s string) func() string { return func() string { return s } }

// inventory reads the Node's annotation.
func (n *node) inventory() contract.Inventory {
	n.t.Helper()
	obj, err := n.client.CoreV1().Nodes().Get(n.t.Context(), nodeName, metav1.GetOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	inv, err := contract.ParseInventory(obj.Annotations[contract.InventoryAnnotation])
	if err != nil {
		return contract.Inventory{}
	}
	return inv
}

// grant is part of a GPU; MemoryMiB is what the shares stand for.
func (n *node) grant(g int, shares units.Shares) contract.Grant {
	m, err := models.Lookup(n.machine.GPUs[g].Model)
	if err != nil {
		n.t.Fatal(err)
	}
	return contract.Grant{GPU: gpu(g), Shares: shares, MemoryMiB: units.MemoryForShares(shares, m.Memory, 100)}
}

// plan is a pod's plan: what each of its containers gets.
type plan map[string][]contract.Grant

// pod finishes a pod as the API server and the extender would: UID, time of
// creation and plan. A nil plan is no plan.
func (n *node) pod(b *testkit.PodBuilder, p plan) *corev1.Pod {
	n.t.Helper()
	pod := b.Obj()
	n.pods++
	pod.UID = types.UID(fmt.Sprintf("uid-%d-%s", n.pods, pod.Name))
	pod.CreationTimestamp = metav1.NewTime(n.created.Add(time.Duration(n.pods) * time.Second))
	pod.Spec.NodeName = nodeName
	if p != nil {
		text, err := contract.Plan{Node: nodeName, Containers: p}.Format()
		if err != nil {
			n.t.Fatal(err)
		}
		pod.Annotations[contract.PlanAnnotation] = text
	}
	return pod
}

// simple is a pod of one container with so many shares of one GPU.
func (n *node) simple(name string, g int, shares units.Shares) *corev1.Pod {
	n.t.Helper()
	return n.pod(testkit.MakePod("ns", name).Container("main", testkit.Shares(fmt.Sprint(shares))), plan{"main": {n.grant(g, shares)}})
}

// admit makes the kubelet admit a pod, which must succeed, and start it.
func (n *node) admit(pod *corev1.Pod) *corev1.Pod {
	n.t.Helper()
	if err := n.kubelet.Admit(n.t.Context(), pod); err != nil {
		n.t.Fatalf("pod %s: %v", pod.Name, err)
	}
	n.kubelet.StartPod(pod.UID)
	return pod
}

// refused makes the kubelet admit a pod, which must fail with these words.
func (n *node) refused(pod *corev1.Pod, words ...string) {
	n.t.Helper()
	err := n.kubelet.Admit(n.t.Context(), pod)
	if err == nil {
		n.t.Fatalf("pod %s was admitted", pod.Name)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			n.t.Errorf("pod %s: %v; want %q in it", pod.Name, err, w)
		}
	}
}

// on returns the GPUs on which the kubelet recorded a container's devices.
func (n *node) on(pod *corev1.Pod, container, resource string) map[contract.GPUUUID]int {
	n.t.Helper()
	ids, _ := n.kubelet.Devices(pod.UID, container, resource)
	count := map[contract.GPUUUID]int{}
	for _, s := range ids {
		id, err := contract.ParseDeviceID(s)
		if err != nil {
			n.t.Fatal(err)
		}
		count[id.GPU]++
	}
	return count
}

// metric reads one sample; labels are pairs.
func (n *node) metric(name string, labels ...string) float64 {
	n.t.Helper()
	families, err := n.reg.Gather()
	if err != nil {
		n.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			match := true
			for i := 0; i < len(labels); i += 2 {
				match = match && slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetName() == labels[i] && l.GetValue() == labels[i+1] })
			}
			if match {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return -1
}

// get asks an HTTP server of the plugin for a page.
func (n *node) get(path string) (int, string) {
	n.t.Helper()
	l, err := (&net.ListenConfig{}).Listen(n.t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		n.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(klog.NewContext(n.t.Context(), klog.Background()))
	done := make(chan error, 1)
	go func() { done <- nodeplugin.Serve(ctx, l, n.reg, n.plugin.Ready) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			n.t.Error(err)
		}
	}()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(n.t.Context(), http.MethodGet, "http://"+l.Addr().String()+path, nil)
	if err != nil {
		n.t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		n.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		n.t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// podFolder makes the folder that the kubelet keeps for a pod.
func (n *node) podFolder(pod *corev1.Pod) string {
	n.t.Helper()
	dir := filepath.Join(n.opts.KubeletRootDir, "pods", string(pod.UID))
	if err := os.MkdirAll(dir, 0o750); err != nil {
		n.t.Fatal(err)
	}
	return dir
}

// informed says whether the plugin's informer knows a pod.
func (n *node) informed(pod *corev1.Pod) bool { return n.plugin.Informed(n.t.Context(), pod.UID) }
