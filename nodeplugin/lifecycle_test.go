package nodeplugin_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/tranche-dev/tranche/nodeplugin"
	"github.com/tranche-dev/tranche/nodeplugin/nvml/simulation"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/tests/testkit"
)

// healthyAre waits until kubelet and Node agree that exactly these GPUs take
// pods.
func (n *node) healthyAre(want ...int) {
	n.t.Helper()
	var got []string
	n.eventually(func() bool {
		shares, _ := n.kubelet.Healthy(share)
		gpus, _ := n.kubelet.Healthy(whole)
		healthy := map[contract.GPUUUID]bool{}
		got = nil
		for _, g := range n.inventory().GPUs {
			healthy[g.UUID] = g.Healthy
			got = append(got, fmt.Sprintf("%s %v %s", g.UUID, g.Healthy, g.Reason))
		}
		count := 0
		for _, ok := range healthy {
			if ok {
				count++
			}
		}
		for _, w := range want {
			if !healthy[gpu(w)] {
				return false
			}
		}
		return count == len(want) && gpus == len(want) && shares == 100*len(want)
	}, func() string {
		shares, all := n.kubelet.Healthy(share)
		return fmt.Sprintf("only %v healthy; inventory %v, kubelet %d of %d", want, got, shares, all)
	})
}

// reason reads why a GPU is unfit.
func (n *node) reason(g int) string {
	n.t.Helper()
	for _, one := range n.inventory().GPUs {
		if one.UUID == gpu(g) {
			return one.Reason
		}
	}
	return "not in the inventory"
}

func TestTheInventoryIsWrittenBeforeDevicesAreOffered(t *testing.T) {
	n := newNode(t, "A100-80GB", "A30-24GB")
	fail := true
	n.client.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		return fail, nil, errors.New("no API server today")
	})
	n.startKubelet()
	n.start()
	n.eventually(func() bool {
		err := n.plugin.Ready()
		return err != nil && strings.Contains(err.Error(), "no API server today")
	}, says("not ready because of the API server"))
	if _, all := n.kubelet.Healthy(share); all != 0 {
		t.Errorf("%d devices are offered", all)
	}
	if code, body := n.get("/readyz"); code != 503 || !strings.Contains(body, "no API server today") {
		t.Errorf("readyz: %d %s", code, body)
	}
	fail = false
	n.ready()
	want := contract.Inventory{Version: 1, SharesPerGPU: 100, GPUs: []contract.GPU{
		{UUID: gpu(0), Index: 0, Model: "NVIDIA-A100-SXM4-80GB", MemoryMiB: 81920, Driver: "575.51.03", Healthy: true, NUMA: -1, Isolation: "none", Links: []contract.Link{{To: 1, Type: "system"}}},
		{UUID: gpu(1), Index: 1, Model: "NVIDIA-A30", MemoryMiB: 24576, Driver: "575.51.03", Healthy: true, NUMA: -1, Isolation: "none", Links: []contract.Link{{To: 0, Type: "system"}}},
	}}
	if diff := cmp.Diff(want, n.inventory()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if code, body := n.get("/readyz"); code != 200 {
		t.Errorf("readyz: %d %s", code, body)
	}
	if code, _ := n.get("/healthz"); code != 200 {
		t.Errorf("healthz: %d", code)
	}
}

func TestTheInventoryIsRestoredAndNothingElseIsTouched(t *testing.T) {
	n := newNode(t, "A30-24GB").up()
	before := n.inventory()
	patch := []byte(`{"metadata":{"annotations":{"tranche.dev/gpus":null}}}`)
	if _, err := n.client.CoreV1().Nodes().Patch(t.Context(), nodeName, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	n.eventually(func() bool { return cmp.Equal(before, n.inventory()) }, says("restored"))
	obj, err := n.client.CoreV1().Nodes().Get(t.Context(), nodeName, metav1.GetOptions{})
	if err != nil || obj.Annotations["other"] != "kept" {
		t.Errorf("annotations: %v %v", obj.Annotations, err)
	}
}

func TestTheKubeletMayRestartAtAnyTime(t *testing.T) {
	n := newNode(t, "A100-80GB", "A30-24GB").up()
	old := n.admit(n.simple("old", 0, 50))
	for i := range 5 {
		n.kubelet.Stop()
		n.eventually(func() bool { return n.plugin.Ready() != nil }, says("not ready without a kubelet"))
		n.startKubelet()
		n.ready()
		n.healthyAre(0, 1)
		if got := n.kubelet.Plugins(share); got != 1 {
			t.Errorf("%d plugins are registered", got)
		}
		p := n.admit(n.simple(fmt.Sprintf("p%d", i), 1, 10))
		if diff := cmp.Diff(on{gpu(1): 10}, n.on(p, "main", share)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	if err := n.kubelet.Admit(t.Context(), old); err != nil { // as every pod is after a restart
		t.Error(err)
	}
	left, err := filepath.Glob(filepath.Join(n.kubelet.PluginDir, "tranche-*.sock"))
	if err != nil || len(left) != 2 {
		t.Errorf("sockets: %v %v", left, err)
	}
}

func TestTheKubeletsFolderMayBeReplaced(t *testing.T) {
	n := newNode(t, "A30-24GB").up()
	n.kubelet.Stop()
	// At once, since the plugin may be about to make sockets in it.
	if err := os.Rename(n.kubelet.PluginDir, n.kubelet.PluginDir+"-before"); err != nil {
		t.Fatal(err)
	}
	n.startKubelet()
	n.ready()
	n.healthyAre(0)
}

func TestThePluginMayStartBeforeTheKubelet(t *testing.T) {
	n := newNode(t, "A30-24GB")
	n.start()
	n.eventually(func() bool {
		err := n.plugin.Ready()
		return err != nil && strings.Contains(err.Error(), "is it running?")
	}, says("not ready because there is no kubelet"))
	n.startKubelet()
	n.ready()
}

func TestARemovedSocketAndAHangUpAreRepaired(t *testing.T) {
	n := newNode(t, "A30-24GB").up()
	sockets, err := filepath.Glob(filepath.Join(n.kubelet.PluginDir, "tranche-gpu-share-*.sock"))
	if err != nil || len(sockets) != 1 {
		t.Fatal(sockets, err)
	}
	if err := os.Remove(sockets[0]); err != nil {
		t.Fatal(err)
	}
	n.eventually(func() bool {
		now, err := filepath.Glob(filepath.Join(n.kubelet.PluginDir, "tranche-gpu-share-*.sock"))
		return err == nil && len(now) == 1 && now[0] != sockets[0] && n.plugin.Ready() == nil && n.kubelet.Plugins(share) == 1
	}, says("another socket is registered"))
	n.healthyAre(0)
	before := n.metric("tranche_nodeplugin_registrations_total", "resource", whole, "result", "ok")
	n.kubelet.CloseStreams(whole)
	n.eventually(func() bool {
		return n.metric("tranche_nodeplugin_registrations_total", "resource", whole, "result", "ok") > before && n.plugin.Ready() == nil
	}, says("registered again after a hang-up"))
	n.healthyAre(0)
}

func TestLeftOverSocketsOfAKilledProcessAreRemoved(t *testing.T) {
	n := newNode(t, "A30-24GB")
	n.startKubelet()
	stale := filepath.Join(n.kubelet.PluginDir, "tranche-gpu-share-0123456789ab.sock")
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", stale)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	n.start()
	n.ready()
	if _, err := os.Lstat(stale); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left: %v", err)
	}
}

func TestARestartedPluginKnowsWhoHoldsWhat(t *testing.T) {
	n := newNode(t, "A100-80GB").up()
	n.admit(n.simple("p", 0, 60))
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	n.start()
	n.ready()
	n.refused(n.pod(testkit.MakePod("ns", "w").Container("main", testkit.GPUs("1")), plan{"main": {n.grant(0, 100)}}), "in use by ns/p")
	n.admit(n.simple("q", 0, 40))
}

func TestALostOrDamagedLedgerIsLearntFromTheKubelet(t *testing.T) {
	for name, damage := range map[string]func(string) error{
		"lost":    os.Remove,
		"damaged": func(path string) error { return os.WriteFile(path, []byte(`{"v":1,`), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "A100-80GB", "A30-24GB").up()
			// More than the kubelet answers in one burst.
			var pods []*corev1.Pod
			for i := range 15 {
				pods = append(pods, n.admit(n.simple(fmt.Sprintf("p%d", i), 0, 4)))
			}
			initOnly := n.pod(testkit.MakePod("ns", "i").InitContainer("i", testkit.Shares("30")), plan{"i": {n.grant(0, 30)}})
			n.admit(initOnly)
			if err := n.stop(); err != nil {
				t.Fatal(err)
			}
			if err := damage(filepath.Join(n.opts.StateDir, "ledger.json")); err != nil {
				t.Fatal(err)
			}
			n.start()
			n.ready()
			if got := n.metric("tranche_nodeplugin_gpu_allocated_shares", "gpu", string(gpu(0))); got != 90 {
				t.Errorf("%v shares are charged; want 15 × 4 and 30 of an init container", got)
			}
			for _, p := range pods {
				if got := n.metric("tranche_nodeplugin_container_allocated_shares", "pod", p.Name, "gpu", string(gpu(0))); got != 4 {
					t.Errorf("pod %s: %v", p.Name, got)
				}
			}
			n.refused(n.simple("big", 0, 11), "11 of 100 shares")
			n.admit(n.simple("fits", 0, 10))
			if got := n.kubelet.Lists(); got != 0 {
				t.Errorf("%d calls of pod-resources List", got)
			}
		})
	}
}

// The kubelet was killed after we had answered and before it wrote that down.
func TestAForgottenAnswerIsGivenAgain(t *testing.T) {
	n := newNode(t, "A100-80GB", "A30-24GB").up()
	p := n.simple("p", 1, 50)
	if err := n.kubelet.Admit(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	n.kubelet.Stop()
	n.kubelet.ForgetCheckpoint(p.UID)
	n.startKubelet()
	n.ready()
	n.admit(p)
	if diff := cmp.Diff(on{gpu(1): 50}, n.on(p, "main", share)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	n.refused(n.simple("q", 1, 51), "50 are in use by ns/p")
}

// asAPIServer puts a pod on the API server as well.
func (n *node) asAPIServer(pod *corev1.Pod) *corev1.Pod {
	n.t.Helper()
	if _, err := n.client.CoreV1().Pods(pod.Namespace).Create(n.t.Context(), pod, metav1.CreateOptions{}); err != nil {
		n.t.Fatal(err)
	}
	return pod
}

// admitSoon admits a pod of which the informer may not know yet; a pod that
// fails is tried again as another, as a controller would.
func (n *node) admitSoon(next func() *corev1.Pod) *corev1.Pod {
	n.t.Helper()
	var pod *corev1.Pod
	n.eventually(func() bool {
		pod = n.asAPIServer(next())
		err := n.kubelet.Admit(n.t.Context(), pod)
		if err != nil {
			n.report(pod, corev1.PodStatus{Phase: corev1.PodFailed})
		}
		return err == nil
	}, says("admitted"))
	n.kubelet.StartPod(pod.UID)
	n.report(pod, corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Name: "main"}}})
	return pod
}

// report writes a pod's status to the API server, as the kubelet does.
func (n *node) report(pod *corev1.Pod, s corev1.PodStatus) {
	n.t.Helper()
	pod = pod.DeepCopy()
	pod.Status = s
	if _, err := n.client.CoreV1().Pods(pod.Namespace).UpdateStatus(n.t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		n.t.Fatal(err)
	}
}

// While the kubelet takes in its first pods it does not answer on its pods API.
func TestTheAPIServersPodsServeWhileTheKubeletStarts(t *testing.T) {
	n := newNode(t, "A100-80GB", "A30-24GB").up()
	n.kubelet.SetReady(false)
	i := 0
	p := n.admitSoon(func() *corev1.Pod { i++; return n.simple(fmt.Sprintf("p%d", i), 1, 50) })
	if diff := cmp.Diff(on{gpu(1): 50}, n.on(p, "main", share)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if n.metric("tranche_nodeplugin_pod_source_fallbacks_total") < 1 {
		t.Error("no fallback was counted")
	}
}

func TestAnOldKubeletWithoutPodsAPI(t *testing.T) {
	for _, source := range []string{nodeplugin.PodSourceAuto, nodeplugin.PodSourceAPIServer} {
		t.Run(source, func(t *testing.T) {
			n := newNode(t, "A100-80GB", "A30-24GB")
			n.kubelet.NoPodsAPI, n.opts.PodSource = true, source
			n.up()
			i := 0
			p := n.admitSoon(func() *corev1.Pod { i++; return n.simple(fmt.Sprintf("p%d", i), 1, 100) })
			if diff := cmp.Diff(on{gpu(1): 100}, n.on(p, "main", share)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			// It ends, and is deleted.
			n.report(p, corev1.PodStatus{Phase: corev1.PodSucceeded})
			n.kubelet.FinishPod(p.UID)
			n.eventually(func() bool { return n.metric("tranche_nodeplugin_gpu_allocated_shares", "gpu", string(gpu(1))) == 0 }, says("released"))
			n.admitSoon(func() *corev1.Pod { i++; return n.simple(fmt.Sprintf("p%d", i), 1, 100) })
		})
	}
}

func TestMetricsAreWellFormed(t *testing.T) {
	n := newNode(t, "A100-80GB").up()
	n.simulate(func(f *simulation.File) {
		f.GPUs[0].Processes = []simulation.Process{{PID: 7, MemoryMiB: 100}}
		f.GPUs[0].XIDs = []uint64{13}
	})
	n.admit(n.simple("p", 0, 60))
	n.refused(n.pod(testkit.MakePod("ns", "q").Container("main", testkit.GPUs("1")), plan{"main": {n.grant(0, 100)}}))
	n.eventually(func() bool {
		return n.metric("tranche_nodeplugin_gpu_memory_used_bytes", "gpu", string(gpu(0))) == 100<<20 && n.metric("tranche_nodeplugin_gpu_processes") == 1
	}, says("use is measured"))
	problems, err := testutil.GatherAndLint(n.reg)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
	code, body := n.get("/metrics")
	for _, want := range []string{
		`tranche_nodeplugin_allocations_total{resource="nvidia.com/gpu-share"} 1`,
		`tranche_nodeplugin_refusals_total{reason="over_capacity",resource="nvidia.com/gpu"} 1`,
		`tranche_nodeplugin_preferred_allocations_total{outcome="planned",resource="nvidia.com/gpu-share"} 1`,
		`tranche_nodeplugin_container_allocated_shares{container="main",gpu="` + string(gpu(0)) + `",namespace="ns",pod="p"} 60`,
		`tranche_nodeplugin_overcommitted_shares 0`,
		`tranche_nodeplugin_ready 1`,
		`tranche_nodeplugin_kubelet_request_duration_seconds_count{code="OK",method="ListPods"}`,
	} {
		if code != 200 || !strings.Contains(body, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
}

// The API server's list has the whole burst, the kubelet meets one pod after
// the other, some of which it refuses by itself.
func TestABurstThatMeetsAStartingKubelet(t *testing.T) {
	n := newNode(t, "A100-80GB", "A100-80GB", "A30-24GB", "A30-24GB").up()
	n.kubelet.SetReady(false)
	var pods []*corev1.Pod
	for i := range 12 {
		pods = append(pods, n.asAPIServer(n.simple(fmt.Sprintf("p%02d", i), 3-i%4, 25)))
	}
	// One of the same size in the kubelet's eyes that takes more in truth.
	exact := contract.Grant{GPU: gpu(3), Shares: 20, MemoryMiB: 4096}
	pods = append(pods, n.asAPIServer(n.pod(testkit.MakePod("ns", "memory").Container("main", testkit.Shares("25")), plan{"main": {exact}})))
	n.eventually(func() bool { return n.metric("tranche_nodeplugin_ready") == 1 }, says("ready"))
	for _, p := range pods {
		n.eventually(func() bool { return n.informed(p) }, says("the informer knows "+p.Name))
	}
	for i, p := range pods {
		if err := n.kubelet.Admit(t.Context(), p); err != nil {
			t.Fatalf("pod %s: %v", p.Name, err)
		}
		want := on{gpu(3 - i%4): 25}
		if p.Name == "memory" {
			want = on{gpu(3): 25}
		}
		if diff := cmp.Diff(want, n.on(p, "main", share)); diff != "" {
			t.Errorf("pod %s (-want +got):\n%s", p.Name, diff)
		}
	}
	if got := n.metric("tranche_nodeplugin_ambiguous_identifications_total", "resource", share); got != 0 {
		t.Errorf("%v ambiguous", got)
	}
}

// During a rolling update the new process starts beside the old one, and the
// old one goes when the new one is ready.
func TestAnUpdateLeavesNoGap(t *testing.T) {
	n := newNode(t, "A100-80GB", "A30-24GB").up()
	n.admit(n.simple("before", 0, 60))
	stopOld, oldEnded := n.cancel, n.ended
	n.start()
	n.ready()
	n.eventually(func() bool { return n.kubelet.Plugins(share) == 2 && n.kubelet.Plugins(whole) == 2 }, says("both are registered"))
	n.admit(n.simple("between", 0, 30))
	gap := make(chan bool, 1)
	done := make(chan struct{})
	go func() {
		for {
			if healthy, _ := n.kubelet.Healthy(share); healthy != 200 {
				gap <- true
				return
			}
			select {
			case <-done:
				gap <- false
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	stopOld()
	if err := <-oldEnded; err != nil {
		t.Error(err)
	}
	n.eventually(func() bool { return n.kubelet.Plugins(share) == 1 && n.kubelet.Plugins(whole) == 1 }, says("the old one is gone"))
	close(done)
	if <-gap {
		t.Error("the kubelet was without devices for a moment")
	}
	n.refused(n.pod(testkit.MakePod("ns", "toobig").Container("main", testkit.GPUs("1")), plan{"main": {n.grant(0, 100)}}), "90 are in use by", "ns/before", "ns/between")
	n.admit(n.simple("after", 0, 10))
	n.healthyAre(0, 1)
}
