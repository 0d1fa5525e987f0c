package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/tests/cluster"
)

// pollEvery is how often outcomes are looked for.
const pollEvery = 200 * time.Millisecond

// eventually polls until check returns nil, and fails the test with its last
// complaint.
func eventually(t *testing.T, what string, check func(ctx context.Context) error) {
	t.Helper()
	if err := poll(t.Context(), check); err != nil {
		t.Fatalf("%s: not within %s: %v", what, settle, err)
	}
}

// afterwards is eventually for what comes after the test's context.
func afterwards(t *testing.T, what string, check func(ctx context.Context) error) {
	t.Helper()
	if err := poll(context.WithoutCancel(t.Context()), check); err != nil {
		t.Errorf("%s: not within %s: %v", what, settle, err)
	}
}

// poll waits until check has no complaint, and returns the last one if it always
// has.
func poll(ctx context.Context, check func(ctx context.Context) error) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, pollEvery, settle, true, func(ctx context.Context) (bool, error) {
		err := check(ctx)
		if ctx.Err() == nil || last == nil {
			last = err // the complaint that the time ran out would say nothing
		}
		return err == nil, nil
	})
	if err != nil {
		return cmp.Or(last, err)
	}
	return nil
}

// steadily fails the test if check complains at any time during a short while.
// It is for "stays as it is" outcomes, which no single look can show.
func steadily(t *testing.T, what string, check func(ctx context.Context) error) {
	t.Helper()
	steadilyFor(t, 4*time.Second, what, check)
}

func steadilyFor(t *testing.T, d time.Duration, what string, check func(ctx context.Context) error) {
	t.Helper()
	_ = wait.PollUntilContextTimeout(t.Context(), pollEvery, d, true, func(ctx context.Context) (bool, error) {
		if err := check(ctx); err != nil && ctx.Err() == nil {
			t.Fatalf("%s: %v", what, err)
		}
		return false, nil
	})
}

// namespace makes a namespace that opts in, and removes it with all its pods
// when the test ends.
func namespace(t *testing.T, labels map[string]string) string {
	t.Helper()
	ns, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-", Labels: labels},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeNamespace(t, ns.Name) })
	return ns.Name
}

func optedIn(t *testing.T) string {
	t.Helper()
	return namespace(t, map[string]string{contract.InjectLabel: contract.InjectEnabled})
}

// removeNamespace deletes a namespace and waits until its pods are gone, so that
// the next test starts with free GPUs. In a namespace that is going nothing new
// can be created. It tries again on any error: the API server may be on its way
// back.
func removeNamespace(t *testing.T, name string) { removeNamespaceOf(t, client, name) }

func removeNamespaceOf(t *testing.T, client kubernetes.Interface, name string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), settle)
	defer cancel()
	var last error
	asked := false
	err := wait.PollUntilContextCancel(ctx, pollEvery, true, func(ctx context.Context) (bool, error) {
		if last = client.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{}); last != nil && !apierrors.IsNotFound(last) && !apierrors.IsConflict(last) {
			return false, nil
		}
		// The namespace controller would take five seconds more.
		if !asked {
			last = client.CoreV1().Pods(name).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
			asked = last == nil
			return false, nil
		}
		list, err := client.CoreV1().Pods(name).List(ctx, metav1.ListOptions{})
		last = err
		return err == nil && len(list.Items) == 0, nil
	})
	if err != nil {
		t.Errorf("removing namespace %s: %v", name, last)
	}
}

func create(t *testing.T, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	created, err := client.CoreV1().Pods(pod.Namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("creating pod %s: %v", pod.Name, err)
	}
	return created
}

// waitRunning waits until all containers of the pod run, and returns it.
func waitRunning(t *testing.T, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	var got *corev1.Pod
	eventually(t, "pod "+pod.Name+" runs", func(ctx context.Context) (err error) {
		if got, err = client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{}); err != nil {
			return err
		}
		if got.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("phase %s, %s %s", got.Status.Phase, got.Status.Reason, conditions(got))
		}
		return nil
	})
	return got
}

func conditions(pod *corev1.Pod) string {
	var b strings.Builder
	for _, c := range pod.Status.Conditions {
		if c.Status != corev1.ConditionTrue {
			fmt.Fprintf(&b, "[%s %s: %s]", c.Type, c.Reason, c.Message)
		}
	}
	return b.String() + pod.Status.Message
}

// waitEvent waits until an event of the pod has that reason and contains the
// text.
func waitEvent(t *testing.T, pod *corev1.Pod, reason, text string) {
	t.Helper()
	eventually(t, "event "+reason+" on "+pod.Name, func(ctx context.Context) error {
		events, err := podEvents(ctx, pod)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(events, func(e corev1.Event) bool {
			return e.Reason == reason && strings.Contains(e.Message, text)
		}) {
			return fmt.Errorf("events so far: %s", eventTexts(events))
		}
		return nil
	})
}

func podEvents(ctx context.Context, pod *corev1.Pod) ([]corev1.Event, error) {
	return podEventsOf(ctx, client, pod)
}

func podEventsOf(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod) ([]corev1.Event, error) {
	list, err := client.CoreV1().Events(pod.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod.Name})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

func eventTexts(events []corev1.Event) string {
	texts := make([]string, 0, len(events))
	for _, e := range events {
		texts = append(texts, fmt.Sprintf("%s (%s) ×%d: %s", e.Reason, e.Source.Component+e.ReportingController, e.Count, e.Message))
	}
	return strings.Join(texts, "\n")
}

// planOf reads the pod's plan.
func planOf(pod *corev1.Pod) (contract.Plan, error) {
	text, ok := pod.Annotations[contract.PlanAnnotation]
	if !ok {
		return contract.Plan{}, fmt.Errorf("pod %s has no plan", pod.Name)
	}
	return contract.ParsePlan(text)
}

// gpusOf returns the GPUs of one container by the pod's plan, sorted.
func gpusOf(t *testing.T, pod *corev1.Pod, container string) []string {
	t.Helper()
	plan, err := planOf(pod)
	if err != nil {
		t.Fatal(err)
	}
	return planGPUs(plan, container)
}

func planGPUs(plan contract.Plan, container string) []string {
	var gpus []string
	for _, g := range plan.Containers[container] {
		gpus = append(gpus, string(g.GPU))
	}
	slices.Sort(gpus)
	return gpus
}

// deviceGPUs returns the GPUs of the device IDs that the kubelet gave to one
// container, sorted, each once, and the IDs.
func deviceGPUs(pod *corev1.Pod, container string) (gpus, ids []string, err error) {
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if s.Name != container {
			continue
		}
		for _, r := range s.AllocatedResourcesStatus {
			for _, d := range r.Resources {
				id, err := contract.ParseDeviceID(string(d.ResourceID))
				if err != nil {
					return nil, nil, err
				}
				ids = append(ids, string(r.Name)+"/"+string(d.ResourceID))
				gpus = append(gpus, string(id.GPU))
			}
		}
	}
	slices.Sort(gpus)
	return slices.Compact(gpus), ids, nil
}

// visibleDevices reads NVIDIA_VISIBLE_DEVICES from inside a container, whose
// probe prints its environment, sorted as a list.
func visibleDevices(ctx context.Context, pod *corev1.Pod, container string) ([]string, error) {
	log, err := client.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{Container: container}).DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(log)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), contract.VisibleDevicesEnv+"="); ok {
			gpus := strings.Split(value, ",")
			slices.Sort(gpus)
			return gpus, nil
		}
	}
	return nil, fmt.Errorf("container %s printed no %s", container, contract.VisibleDevicesEnv)
}

// refused creates the pod and returns the API server's refusal.
func refused(t *testing.T, pod *corev1.Pod) string {
	t.Helper()
	created, err := client.CoreV1().Pods(pod.Namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	if err == nil {
		t.Fatalf("pod %s was created: %v", created.Name, created.Spec.Containers)
	}
	if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
		t.Fatalf("creating pod %s failed otherwise: %v", pod.Name, err)
	}
	return err.Error()
}

// state is what the extender says of the cluster at GET /v1/state.
type state struct {
	Nodes []struct {
		Name string `json:"name"`
		GPUs []struct {
			UUID   string `json:"uuid"`
			Shares struct {
				Total     int64 `json:"total"`
				Allocated int64 `json:"allocated"`
				Held      int64 `json:"held"`
				Free      int64 `json:"free"`
			} `json:"shares"`
			Pods []struct {
				Namespace string `json:"namespace"`
				Name      string `json:"name"`
				UID       string `json:"uid"`
				Shares    int64  `json:"shares"`
				State     string `json:"state"`
			} `json:"pods"`
		} `json:"gpus"`
	} `json:"nodes"`
}

func extenderState(ctx context.Context) (state, error) { return extenderStateOf(ctx, kube) }

func extenderStateOf(ctx context.Context, c *cluster.Cluster) (state, error) {
	var s state
	body, err := get(ctx, c.ExtenderOpsURL()+"/v1/state")
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(body, &s)
}

func get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, resp.Status, body)
	}
	return body, err
}
