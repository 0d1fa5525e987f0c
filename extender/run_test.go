package extender

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	"k8s.io/utils/clock"
	crclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/tranche-dev/tranche/extender/internal/fixture"
	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/contract"
)

// replica is one running process.
type replica struct {
	*testing.T
	ca            *fixture.CA
	scheduler     *http.Client
	plain         *http.Client
	url, observer string
	stop          context.CancelFunc
	ended         chan error
}

// fakeAPI is an API server that binds, and can be made to fail while in use.
type fakeAPI struct {
	*fake.Clientset
	// fail holds a func() error by "verb resource"; its error is the answer.
	fail  sync.Map
	gangs *fixture.GangAPI
}

func (f *fakeAPI) on(call string, answer func() error) { f.fail.Store(call, answer) }

func apiServer(t *testing.T, objects ...runtime.Object) *fakeAPI {
	t.Helper()
	client := &fakeAPI{Clientset: fake.NewClientset(objects...), gangs: fixture.Gangs(t, interceptor.Funcs{})}
	client.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		create, ok := action.(clienttesting.CreateActionImpl)
		if !ok || action.GetSubresource() != "binding" {
			return false, nil, nil
		}
		binding := create.GetObject().(*corev1.Binding)
		pods := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
		object, err := client.Tracker().Get(pods, binding.Namespace, binding.Name)
		if err != nil {
			return true, nil, err
		}
		pod := object.(*corev1.Pod).DeepCopy()
		pod.Spec.NodeName = binding.Target.Name
		maps.Copy(pod.Annotations, binding.Annotations)
		return true, binding, client.Tracker().Update(pods, pod, pod.Namespace)
	})
	client.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		answer, ok := client.fail.Load(action.GetVerb() + " " + action.GetResource().Resource)
		if !ok {
			return false, nil, nil
		}
		err := answer.(func() error)()
		return err != nil, nil, err
	})
	return client
}

var errEtcd = errors.New("etcd has no leader")

// start runs a replica on free ports.
func start(t *testing.T, client *fakeAPI, change func(*Options)) *replica {
	t.Helper()
	dir := t.TempDir()
	r := &replica{T: t, ca: fixture.NewCA(t, "ca"), plain: &http.Client{Transport: &http.Transport{}}, ended: make(chan error, 1)}
	cert, key := r.ca.Issue(t, "extender", "localhost")
	o := NewOptions()
	o.BindAddress, o.MetricsBindAddress = "127.0.0.1:0", "127.0.0.1:0"
	o.TLSCertFile, o.TLSPrivateKeyFile, o.ClientCAFile = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"), filepath.Join(dir, "ca.crt")
	o.LeaseDuration, o.RenewDeadline, o.RetryPeriod = 1500*time.Millisecond, time.Second, 100*time.Millisecond
	fixture.Write(t, o.TLSCertFile, cert)
	fixture.Write(t, o.TLSPrivateKeyFile, key)
	fixture.Write(t, o.ClientCAFile, r.ca.PEM)
	if change != nil {
		change(o)
	}
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	l, err := listen(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r.stop = cancel
	p, err := newProcess(ctx, o, clients{client, client, client, client, client.gangs, client.gangs}, clock.RealClock{})
	if err != nil {
		t.Fatal(err)
	}
	r.scheduler = &http.Client{Transport: &http.Transport{TLSClientConfig: r.ca.Client(t, "system:kube-scheduler", r.ca.PEM), ForceAttemptHTTP2: true}}
	r.url, r.observer = "https://"+l.scheduler.Addr().String(), "http://"+l.observer.Addr().String()
	go func() { r.ended <- p.run(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		r.scheduler.CloseIdleConnections()
		r.plain.CloseIdleConnections()
	})
	return r
}

// wait returns how the process ended.
func (r *replica) wait() error {
	r.Helper()
	select {
	case err := <-r.ended:
		return err
	case <-time.After(30 * time.Second):
		r.Fatal("did not end")
		return nil
	}
}

func (r *replica) get(url string) (int, string) {
	r.Helper()
	request, err := http.NewRequestWithContext(r.Context(), http.MethodGet, url, nil)
	if err != nil {
		r.Fatal(err)
	}
	response, err := r.plain.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		r.Fatal(err)
	}
	return response.StatusCode, string(body)
}

// until asks until the answer is right.
func until(t *testing.T, what string, f func() (string, bool)) {
	t.Helper()
	deadline, retry := time.NewTimer(30*time.Second), time.NewTicker(10*time.Millisecond)
	defer deadline.Stop()
	defer retry.Stop()
	for {
		got, ok := f()
		if ok {
			return
		}
		select {
		case <-deadline.C:
			t.Fatalf("not %s: %s", what, got)
		case <-retry.C:
		}
	}
}

func (r *replica) untilReady() {
	r.Helper()
	until(r.T, "ready", func() (string, bool) {
		status, body := r.get(r.observer + "/readyz")
		return body, status == http.StatusOK
	})
}

func (r *replica) call(verb string, args, result any) {
	r.Helper()
	body, err := json.Marshal(args)
	if err != nil {
		r.Fatal(err)
	}
	request, err := http.NewRequestWithContext(r.Context(), http.MethodPost, r.url+"/v1/"+verb, bytes.NewReader(body))
	if err != nil {
		r.Fatal(err)
	}
	response, err := r.scheduler.Do(request)
	if err != nil {
		r.Fatal(err)
	}
	defer response.Body.Close()
	if err := json.NewDecoder(response.Body).Decode(result); err != nil {
		r.Fatal(err)
	}
}

func (r *replica) filter(pod *corev1.Pod, nodes ...string) extenderv1.ExtenderFilterResult {
	r.Helper()
	var result extenderv1.ExtenderFilterResult
	r.call("filter", extenderv1.ExtenderArgs{Pod: pod, NodeNames: &nodes}, &result)
	return result
}

func (r *replica) bind(pod *corev1.Pod, node string) string {
	r.Helper()
	var result extenderv1.ExtenderBindingResult
	r.call("bind", extenderv1.ExtenderBindingArgs{PodName: pod.Name, PodNamespace: pod.Namespace, PodUID: pod.UID, Node: node}, &result)
	return result.Error
}

func TestFromStartToStop(t *testing.T) {
	first := fixture.Bound(t, fixture.Pod("first", "60"), "a", map[string]contract.Grant{"c0": {GPU: fixture.GPU("a", 0), Shares: 60}})
	pod := fixture.Pod("p", "40")
	client := apiServer(t, fixture.Node(t, "a", fixture.Inventory("a", 1)), first, pod, fixture.Pod("q", "50"))
	r := start(t, client, nil)
	r.untilReady()
	if got := r.filter(pod, "a"); got.Error != "" || len(*got.NodeNames) != 1 {
		t.Errorf("filter: %+v", got)
	}
	if got := r.bind(pod, "a"); got != "" {
		t.Errorf("bind: %s", got)
	}
	if got := r.filter(fixture.Pod("q", "50"), "a"); len(got.FailedAndUnresolvableNodes) != 1 {
		t.Errorf("filter of one too many: %+v", got)
	}
	until(t, "woken after the first pod has gone", func() (string, bool) {
		_ = client.Tracker().Delete(schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "demo", "first")
		q, err := client.CoreV1().Pods("demo").Get(t.Context(), "q", metav1.GetOptions{})
		if err != nil {
			return err.Error(), false
		}
		return fmt.Sprint(q.Annotations), q.Annotations[contract.RetryAnnotation] != ""
	})
	until(t, "told in an event", func() (string, bool) {
		events, err := client.CoreV1().Events("demo").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err.Error(), false
		}
		return fmt.Sprint(events.Items), len(events.Items) == 1 && events.Items[0].InvolvedObject.Name == "q" && events.Items[0].Reason == "GPUUnavailable"
	})
	if status, body := r.get(r.observer + "/v1/state"); status != http.StatusOK || !strings.Contains(body, `"leader":true,"ready":true`) || !strings.Contains(body, `"name":"p"`) {
		t.Errorf("state %d %s", status, body)
	}
	if status, body := r.get(r.observer + "/metrics"); status != http.StatusOK || !strings.Contains(body, "tranche_extender_overcommitted_gpus 0") {
		t.Errorf("metrics %d %s", status, body)
	}
	r.stop()
	if err := r.wait(); err != nil {
		t.Errorf("ended with %v", err)
	}
	lease, err := client.CoordinationV1().Leases("tranche-system").Get(t.Context(), leaseName, metav1.GetOptions{})
	if err != nil || lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity != "" {
		t.Errorf("the lease was not given back: %+v, %v", lease.Spec, err)
	}
}

// member returns a gated member of the gang g.
func member(name string) *corev1.Pod {
	pod := fixture.Pod(name, "60")
	pod.Labels = map[string]string{contract.GangLabel: "g"}
	pod.Annotations[contract.GangMinCountAnnotation] = "2"
	pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: contract.AdmissionGate}}
	return pod
}

func gates(t *testing.T, client *fakeAPI, name string) int {
	t.Helper()
	pod, err := client.CoreV1().Pods("demo").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return len(pod.Spec.SchedulingGates)
}

func TestAGangWaitsThenStartsWhole(t *testing.T) {
	node := fixture.Node(t, "a", fixture.Inventory("a", 2))
	node.Status.Allocatable = corev1.ResourceList{
		corev1.ResourcePods: resource.MustParse("10"), corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("8Gi"),
		"nvidia.com/gpu-share": resource.MustParse("200"),
	}
	client := apiServer(t, node, member("m0"))
	r := start(t, client, nil)
	r.untilReady()
	phase := func(want v1alpha1.GangPhase) func() (string, bool) {
		return func() (string, bool) {
			gang := &v1alpha1.Gang{}
			if err := client.gangs.Get(t.Context(), crclient.ObjectKey{Namespace: "demo", Name: "g"}, gang); err != nil {
				return err.Error(), false
			}
			return fmt.Sprintf("%+v", gang.Status), gang.Status.Phase == want
		}
	}
	until(t, "waiting", phase(v1alpha1.GangPending))
	if gates(t, client, "m0") != 1 {
		t.Error("the gate of a lone member was lifted")
	}
	if _, err := client.CoreV1().Pods("demo").Create(t.Context(), member("m1"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "held", phase(v1alpha1.GangHeld))
	until(t, "admitted", func() (string, bool) {
		m0, m1 := gates(t, client, "m0"), gates(t, client, "m1")
		return fmt.Sprint(m0, " and ", m1, " gates"), m0 == 0 && m1 == 0
	})
	answers := make(chan string)
	for _, name := range []string{"m0", "m1"} {
		pod, err := client.CoreV1().Pods("demo").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got := r.filter(pod, "a"); got.Error != "" || got.NodeNames == nil || len(*got.NodeNames) != 1 {
			t.Errorf("filter: %+v", got)
		}
		go func() { answers <- r.bind(pod, "a") }()
	}
	for range 2 {
		if got := <-answers; got != "" {
			t.Errorf("bind: %s", got)
		}
	}
	until(t, "bound", phase(v1alpha1.GangBound))
	r.stop()
	if err := r.wait(); err != nil {
		t.Errorf("ended with %v", err)
	}
}

func TestGatesAreLiftedWhenGangsAreOff(t *testing.T) {
	client := apiServer(t, fixture.Node(t, "a", fixture.Inventory("a", 1)), member("m0"))
	r := start(t, client, func(o *Options) { o.Gangs = false })
	r.untilReady()
	until(t, "let go", func() (string, bool) { return "still gated", gates(t, client, "m0") == 0 })
	r.stop()
	if err := r.wait(); err != nil {
		t.Errorf("ended with %v", err)
	}
}

func TestReadyWithoutTheDefinitionOfGangs(t *testing.T) {
	client := apiServer(t, fixture.Node(t, "a", fixture.Inventory("a", 1)))
	missing := apierrors.NewGenericServerResponse(http.StatusNotFound, "get", schema.GroupResource{Group: "tranche.dev", Resource: "gangs"}, "", "", 0, true)
	client.gangs = fixture.Gangs(t, interceptor.Funcs{
		List: func(context.Context, crclient.WithWatch, crclient.ObjectList, ...crclient.ListOption) error {
			return missing
		},
		Get: func(context.Context, crclient.WithWatch, crclient.ObjectKey, crclient.Object, ...crclient.GetOption) error {
			return missing
		},
		Create: func(context.Context, crclient.WithWatch, crclient.Object, ...crclient.CreateOption) error {
			return missing
		},
	})
	r := start(t, client, nil)
	r.untilReady()
	r.stop()
	if err := r.wait(); err != nil {
		t.Errorf("ended with %v", err)
	}
}

func TestOnlyTheLeaderAnswers(t *testing.T) {
	pod := fixture.Pod("p", "60")
	client := apiServer(t, fixture.Node(t, "a", fixture.Inventory("a", 1)), pod, fixture.Pod("q", "60"))
	leader := start(t, client, nil)
	leader.untilReady()
	standby := start(t, client, nil)
	until(t, "alive", func() (string, bool) {
		status, body := standby.get(standby.observer + "/healthz")
		return body, status == http.StatusOK
	})
	if status, body := standby.get(standby.observer + "/readyz"); status != http.StatusServiceUnavailable || !strings.Contains(body, "lease") {
		t.Errorf("standby: %d %s", status, body)
	}
	if got := standby.filter(pod, "a"); !strings.Contains(got.Error, "does not hold the lease") || got.NodeNames != nil {
		t.Errorf("standby: %+v", got)
	}
	leader.filter(pod, "a")
	if got := leader.bind(pod, "a"); got != "" {
		t.Fatal(got)
	}
	leader.stop()
	if err := leader.wait(); err != nil {
		t.Error(err)
	}
	standby.untilReady()
	// What the first one bound is counted by the second.
	if got := standby.filter(fixture.Pod("q", "60"), "a"); len(got.FailedAndUnresolvableNodes) != 1 {
		t.Errorf("the new leader: %+v", got)
	}
	standby.stop()
	if err := standby.wait(); err != nil {
		t.Error(err)
	}
}

func TestALostLeaseEndsTheProcess(t *testing.T) {
	client := apiServer(t, fixture.Node(t, "a", fixture.Inventory("a", 1)))
	r := start(t, client, nil)
	r.untilReady()
	client.on("update leases", func() error { return errEtcd })
	if err := r.wait(); !errors.Is(err, errLostLease) {
		t.Errorf("ended with %v, want %v", err, errLostLease)
	}
}

func TestNotReadyWhileItReads(t *testing.T) {
	client := apiServer(t, fixture.Node(t, "a", fixture.Inventory("a", 1)))
	broken := make(chan struct{})
	client.on("list pods", func() error {
		select {
		case <-broken:
			return nil
		default:
			return errEtcd
		}
	})
	r := start(t, client, func(o *Options) { o.LeaderElect = false })
	until(t, "known why", func() (string, bool) {
		status, body := r.get(r.observer + "/readyz")
		return body, status == http.StatusServiceUnavailable && strings.Contains(body, "still being read")
	})
	if got := r.filter(fixture.Pod("p", "60"), "a"); !strings.Contains(got.Error, "still being read") {
		t.Errorf("filter: %+v", got)
	}
	close(broken)
	r.untilReady()
	r.stop()
	if err := r.wait(); err != nil {
		t.Error(err)
	}
}

func TestRunningCallsAreFinishedAtTheEnd(t *testing.T) {
	pod := fixture.Pod("p", "60")
	client := apiServer(t, fixture.Node(t, "a", fixture.Inventory("a", 1)), pod)
	r := start(t, client, nil)
	r.untilReady()
	entered, leave := make(chan struct{}), make(chan struct{})
	client.on("create pods", func() error {
		close(entered)
		<-leave
		return nil
	})
	r.filter(pod, "a")
	answer := make(chan string, 1)
	go func() { answer <- r.bind(pod, "a") }()
	<-entered
	r.stop()
	until(t, "draining", func() (string, bool) {
		status, body := r.get(r.observer + "/readyz")
		return body, status == http.StatusServiceUnavailable && strings.Contains(body, "shutting down")
	})
	close(leave)
	if got := <-answer; got != "" {
		t.Errorf("bind: %s", got)
	}
	if err := r.wait(); err != nil {
		t.Error(err)
	}
}

func TestCertificateFromASecret(t *testing.T) {
	client := apiServer(t)
	r := start(t, client, func(o *Options) {
		o.TLSCertFile, o.TLSPrivateKeyFile, o.TLSSecretName = "", "", "tranche-extender-tls"
		o.LeaderElect = false
	})
	secret, err := client.CoreV1().Secrets("tranche-system").Get(t.Context(), "tranche-extender-tls", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config := r.ca.Client(t, "system:kube-scheduler", secret.Data["ca.crt"])
	config.ServerName = "tranche-extender.tranche-system.svc"
	r.scheduler = &http.Client{Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}}
	defer r.scheduler.CloseIdleConnections()
	r.untilReady()
	if got := r.filter(fixture.Pod("p", ""), "a"); got.Error != "" || len(*got.NodeNames) != 1 {
		t.Errorf("filter: %+v", got)
	}
	r.stop()
	if err := r.wait(); err != nil {
		t.Error(err)
	}
}

func TestATakenPortIsSaid(t *testing.T) {
	o := NewOptions()
	o.BindAddress, o.MetricsBindAddress = "127.0.0.1:0", "127.0.0.1:0"
	l, err := listen(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	o.MetricsBindAddress = l.observer.Addr().String()
	if _, err := listen(t.Context(), o); err == nil || !strings.Contains(err.Error(), "--metrics-bind-address") {
		t.Errorf("error %v", err)
	}
	if err := l.close(); err != nil {
		t.Error(err)
	}
}
