package e2e

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/tests/cluster"
	. "github.com/tranche-dev/tranche/tests/testkit"
)

func TestNamespacesWithoutTheLabelAreUntouchedAlsoWhenTheWebhookIsDown(t *testing.T) {
	outside, inside := namespace(t, nil), optedIn(t)
	check := func(name string) {
		t.Helper()
		want := MakePod(outside, name).Fraction("0.5").OnNode(realNode).Obj()
		got := create(t, want.DeepCopy())
		if len(got.Spec.Containers[0].Resources.Limits) != 0 || len(got.Labels) != 0 || len(got.Spec.SchedulingGates) != 0 ||
			len(got.Annotations) != 1 || len(got.Spec.Containers[0].Env) != 0 {
			t.Errorf("pod outside was changed: labels %v, annotations %v, spec %+v", got.Labels, got.Annotations, got.Spec)
		}
		waitRunning(t, got)
	}
	check("webhook-up")

	if err := kube.Kill(t.Context(), "tranche-webhook"); err != nil {
		t.Fatal(err)
	}
	started := false
	t.Cleanup(func() {
		if !started {
			_ = kube.Start(context.WithoutCancel(t.Context()), "tranche-webhook")
		}
	})
	check("webhook-down")
	if _, err := client.CoreV1().Pods(inside).Create(t.Context(), MakePod(inside, "p").Fraction("0.5").Obj(), metav1.CreateOptions{}); err == nil {
		t.Error("a pod of a labelled namespace was created while the webhook was down: its request would be lost")
	}
	if err := kube.Start(t.Context(), "tranche-webhook"); err != nil {
		t.Fatal(err)
	}
	started = true
	eventually(t, "a pod is translated again", func(ctx context.Context) error {
		pod, err := client.CoreV1().Pods(inside).Create(ctx, MakePod(inside, "again").OnNode(realNode).Fraction("0.5").Obj(), metav1.CreateOptions{})
		if err != nil {
			return err
		}
		if got := pod.Spec.Containers[0].Resources.Limits["nvidia.com/gpu-share"]; got.Value() != 50 {
			t.Errorf("limit %s, want 50", got.String())
		}
		return nil
	})
}

var filterCalls = regexp.MustCompile(`(?m)^tranche_extender_filter_duration_seconds_count(?:\{[^}]*\})? ([0-9.e+]+)$`)

// countFilterCalls reads how often the scheduler has asked the extender.
func countFilterCalls(ctx context.Context, c *cluster.Cluster) (float64, error) {
	body, err := get(ctx, c.ExtenderOpsURL()+"/metrics")
	if err != nil {
		return 0, err
	}
	sum := 0.0
	for _, m := range filterCalls.FindAllSubmatch(body, -1) {
		n, err := strconv.ParseFloat(string(m[1]), 64)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

func TestPodsWithoutGPUsAreNeverSentToTheExtender(t *testing.T) {
	ns := optedIn(t)
	warm := waitRunning(t, create(t, MakePod(ns, "gpu").OnNode(realNode).Container("main", Shares("10")).Obj()))
	before, err := countFilterCalls(t.Context(), kube)
	if err != nil {
		t.Fatal(err)
	}
	if before == 0 {
		t.Fatalf("no filter call was counted although %s was placed: the metric is not what this test reads", warm.Name)
	}
	for i := range 5 {
		waitRunning(t, create(t, MakePod(ns, fmt.Sprintf("cpu-%d", i)).OnNode(realNode).Obj()))
	}
	after, err := countFilterCalls(t.Context(), kube)
	if err != nil {
		t.Fatal(err)
	}
	if after != before {
		t.Errorf("%v filter calls for pods without GPUs", after-before)
	}
}

// TestForeignGPUNodesStayUsable has a node with nvidia.com/gpu, as NVIDIA's
// device plugin offers it, where Tranche's node plugin does not run.
func TestForeignGPUNodesStayUsable(t *testing.T) {
	const name = "foreign"
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, "type": "kwok"}, Annotations: map[string]string{"kwok.x-k8s.io/node": "fake"}},
		Status:     corev1.NodeStatus{Allocatable: corev1.ResourceList{}, Capacity: corev1.ResourceList{}},
	}
	for r, q := range map[corev1.ResourceName]string{"cpu": "8", "memory": "32Gi", "pods": "50", "nvidia.com/gpu": "4"} {
		node.Status.Allocatable[r], node.Status.Capacity[r] = resource.MustParse(q), resource.MustParse(q)
	}
	if _, err := client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = client.CoreV1().Nodes().Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{})
	})
	ns := optedIn(t)
	whole := waitRunning(t, create(t, MakePod(ns, "whole").OnNode(name).Container("main", GPUs("2")).Obj()))
	if _, planned := whole.Annotations[contract.PlanAnnotation]; planned || whole.Spec.NodeName != name {
		t.Errorf("pod on node %q, planned: %v; want it on %s without a plan", whole.Spec.NodeName, planned, name)
	}
	part := create(t, MakePod(ns, "part").OnNode(name).Container("main", Shares("50")).Obj())
	waitEvent(t, part, "FailedScheduling", "")
	steadily(t, "a share stays off a node without Tranche", func(ctx context.Context) error {
		got, err := client.CoreV1().Pods(ns).Get(ctx, part.Name, metav1.GetOptions{})
		if err == nil && got.Spec.NodeName != "" {
			err = fmt.Errorf("bound to %s", got.Spec.NodeName)
		}
		return err
	})
}

// TestTemplatesAreUsable creates a Deployment and a Job that ask for fractions
// by annotation, which their own validation accepts.
func TestTemplatesAreUsable(t *testing.T) {
	ns := optedIn(t)
	template := func(b *PodBuilder) corev1.PodTemplateSpec {
		pod := b.OnNode(realNode).Obj()
		return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": pod.Name}, Annotations: pod.Annotations}, Spec: pod.Spec}
	}
	if _, err := client.AppsV1().Deployments(ns).Create(t.Context(), deployment("web", 2, template(MakePod(ns, "web").Fraction("0.25"))), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	job := template(MakePod(ns, "job").Memory("6Gi").Container("main", Command("exit", "0", "1s")))
	job.Spec.RestartPolicy = corev1.RestartPolicyNever
	if _, err := client.BatchV1().Jobs(ns).Create(t.Context(), batchJob("job", job), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the Deployment is available and the Job complete", func(ctx context.Context) error {
		d, err := client.AppsV1().Deployments(ns).Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return err
		}
		j, err := client.BatchV1().Jobs(ns).Get(ctx, "job", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if d.Status.AvailableReplicas != 2 || j.Status.Succeeded != 1 {
			return fmt.Errorf("%d replicas available, %d job pods succeeded", d.Status.AvailableReplicas, j.Status.Succeeded)
		}
		return nil
	})
	checkInside(t, ns)
}
