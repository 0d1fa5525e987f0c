package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/tranche-dev/tranche/nodeplugin/nvml/models"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/tests/cluster"
)

const (
	// crowded is the namespace of the pods that run.
	crowded = "crowded"
	// spares are the first nodes, which stay empty: a pod that needs a whole node
	// fits there alone, and only who knows all pods can say so.
	spares = 2
	// perGPU is how many of the pods share a GPU.
	perGPU = 4
)

// crowd are pods that run, each on a quarter of a GPU. They are created as bound
// as an API server has them after kube-scheduler and the extender: to place a
// hundred thousand would take hours, and leave the same objects.
type crowd struct {
	*kit
	like *corev1.Pod
	// on counts the pods of each node, total those of all.
	on    []int
	total int
}

// gather prepares for them, and for the calls, while the whole control plane
// runs.
func (b *scaleBench) gather(ctx context.Context) (*crowd, error) {
	for i := range b.nodes {
		b.caller.nodes = append(b.caller.nodes, fmt.Sprintf("%s%d", cluster.SimNodePrefix, i))
	}
	var err error
	if b.caller.pod, err = b.like(ctx, quarter(namespace, "next")); err != nil {
		return nil, err
	}
	// Not labelled, so that the webhook need not see each.
	if _, err := b.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: crowded}}, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	// A plan may come with a Binding only. A policy says so, and would make it
	// three writes for each pod in place of two.
	if err := b.client.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Delete(ctx, "tranche-pod-plan", metav1.DeleteOptions{}); err != nil {
		return nil, err
	}
	c := &crowd{kit: b.kit, like: b.caller.pod, on: make([]int, b.nodes)}
	// The namespace gets its service account, and the policy ends, in a moment.
	err = wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		pod, err := c.pod(spares, 0)
		if err != nil {
			return false, err
		}
		_, err = b.client.CoreV1().Pods(crowded).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if apierrors.IsForbidden(err) {
			return false, nil
		}
		return err == nil, err
	})
	return c, err
}

// pod is the i-th pod of a node.
func (c *crowd) pod(node, i int) (*corev1.Pod, error) {
	name := fmt.Sprintf("%s%d", cluster.SimNodePrefix, node)
	plan, err := contract.Plan{Node: name, Containers: map[string][]contract.Grant{
		"main": {{GPU: models.UUID(name, i/perGPU), Shares: 100 / perGPU, MemoryMiB: 81920 / perGPU}},
	}}.Format()
	if err != nil {
		return nil, err
	}
	pod := c.like.DeepCopy()
	pod.ObjectMeta = metav1.ObjectMeta{Namespace: crowded, Name: fmt.Sprintf("trainer-%d-%d", node, i), Labels: c.like.Labels, Annotations: map[string]string{contract.PlanAnnotation: plan}}
	maps.Copy(pod.Annotations, c.like.Annotations)
	pod.Spec.NodeName = name
	return pod, nil
}

// running is the status that a kubelet writes.
func running(spec *corev1.PodSpec, now metav1.Time) corev1.PodStatus {
	s := corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &now}
	for _, t := range []corev1.PodConditionType{corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady, corev1.PodScheduled} {
		s.Conditions = append(s.Conditions, corev1.PodCondition{Type: t, Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	for i := range spec.Containers {
		s.ContainerStatuses = append(s.ContainerStatuses, corev1.ContainerStatus{
			Name: spec.Containers[i].Name, Image: spec.Containers[i].Image, Ready: true, Started: new(true),
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		})
	}
	return s
}

// fill adds pods until there are so many, always to the emptiest nodes.
func (c *crowd) fill(ctx context.Context, total int) error {
	began := time.Now()
	type place struct{ node, i int }
	var places []place
	for level := 0; c.total < total; level++ {
		for node := spares; node < len(c.on) && c.total < total; node++ {
			if c.on[node] <= level {
				places = append(places, place{node, c.on[node]})
				c.on[node]++
				c.total++
			}
		}
	}
	pods := c.client.CoreV1().Pods(crowded)
	err := each(len(places), func(i int) error {
		pod, err := c.pod(places[i].node, places[i].i)
		if err != nil {
			return err
		}
		if pod, err = pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			return err
		}
		pod.Status = running(&pod.Spec, metav1.Now())
		_, err = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
		return err
	})
	fmt.Fprintf(os.Stderr, "%d pods more, %d in all, after %v\n", len(places), c.total, time.Since(began).Round(time.Second))
	return err
}
