package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/tests/testkit"
)

// The limit of the company makes the teams conflict on few GPUs, however many the
// cluster has.
const queues = `apiVersion: tranche.dev/v1alpha1
kind: Queue
metadata: {name: demo-company}
spec: {limit: {gpu: 4}}
---
apiVersion: tranche.dev/v1alpha1
kind: Queue
metadata: {name: demo-research}
spec: {parent: demo-company, deserved: {gpu: 2}}
---
apiVersion: tranche.dev/v1alpha1
kind: Queue
metadata: {name: demo-product}
spec: {parent: demo-company, deserved: {gpu: 2}}
`

const (
	company, research, product = "demo-company", "demo-research", "demo-product"
	experiments                = "experiments"
)

// tellQueues has one team borrow what another deserves, and that one take it
// back.
func (s *story) tellQueues(ctx context.Context) error {
	if err := s.removeAll(ctx); err != nil {
		return err
	}
	chapter("The node is empty again. A company may have 4 GPUs, and each of its two teams deserves 2. Research has work for 4 and borrows what product does not use.")
	if err := s.apply(ctx, queues); err != nil {
		return err
	}
	if err := s.createExperiments(ctx, 4); err != nil {
		return err
	}
	before, err := s.waitExperiments(ctx, 4)
	if err != nil {
		return err
	}
	if err := s.showQueues(ctx, research, "4"); err != nil {
		return err
	}

	chapter("Product comes for its 2 GPUs. Research loses what it borrowed, and no more.")
	var services []*corev1.Pod
	for i := range 2 {
		services = append(services, s.pod(fmt.Sprintf("service-%d", i)).Label(contract.QueueLabel, product).Container("main", testkit.GPUs("1")).Obj())
	}
	if err := s.start(ctx, services...); err != nil {
		return err
	}
	if err := s.showEviction(ctx, before); err != nil {
		return err
	}
	if err := s.showQueues(ctx, research, "2"); err != nil {
		return err
	}
	fmt.Println("\nThe evicted pods' controller has made new ones, which wait in their queue:")
	waiting, err := s.waitingExperiment(ctx)
	if err != nil {
		return err
	}
	if err := s.showEvent(ctx, waiting, "QueueWaiting"); err != nil {
		return err
	}
	return s.gpuMap(ctx)
}

// apply shows a manifest and applies it, as a user would.
func (s *story) apply(ctx context.Context, manifest string) error {
	fmt.Print(manifest)
	return s.kubectlWith(ctx, strings.NewReader(manifest), "apply", "-f", "-")
}

// createExperiments makes a Deployment of n pods of research: whoever is evicted
// is made anew.
func (s *story) createExperiments(ctx context.Context, n int32) error {
	pod := s.pod(experiments).Container("main", testkit.GPUs("1")).Label(contract.QueueLabel, research).Label("app", experiments).Obj()
	_, err := s.client.AppsV1().Deployments(namespace).Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: experiments},
		Spec: appsv1.DeploymentSpec{
			Replicas: &n,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": experiments}},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels}, Spec: pod.Spec},
		},
	}, metav1.CreateOptions{})
	if err == nil {
		fmt.Printf("created deployment %s: %d × %s\n", experiments, n, asks(pod))
	}
	return err
}

// waitExperiments waits until n of them run, and returns those.
func (s *story) waitExperiments(ctx context.Context, n int) (map[types.UID]bool, error) {
	began := time.Now()
	var running map[types.UID]bool
	err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		pods, err := s.experiments(ctx)
		running = map[types.UID]bool{}
		for i := range pods {
			if pods[i].Status.Phase == corev1.PodRunning {
				running[pods[i].UID] = true
			}
		}
		return len(running) == n, err
	})
	if err != nil {
		return nil, fmt.Errorf("%d of %d pods of %s run: %w", len(running), n, experiments, err)
	}
	fmt.Printf("%d pods of %s run after %.1f s\n", n, experiments, time.Since(began).Seconds())
	return running, nil
}

func (s *story) experiments(ctx context.Context) ([]corev1.Pod, error) {
	list, err := s.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + experiments})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// waitingExperiment names one that has no node.
func (s *story) waitingExperiment(ctx context.Context) (name string, err error) {
	err = wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		pods, err := s.experiments(ctx)
		for i := range pods {
			if pods[i].Spec.NodeName == "" {
				name = pods[i].Name
			}
		}
		return name != "", err
	})
	return name, err
}

// showEviction prints the event of one of the pods that was evicted.
func (s *story) showEviction(ctx context.Context, pods map[types.UID]bool) error {
	return wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		events, err := s.client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=Reclaimed"})
		if err != nil {
			return false, err
		}
		for _, e := range events.Items {
			if pods[e.InvolvedObject.UID] {
				fmt.Printf("event on %s: %s: %s\n", e.InvolvedObject.Name, e.Reason, e.Message)
				return true, nil
			}
		}
		return false, nil
	})
}

// showQueues prints the queues as soon as their status, which is written once a
// second, says what one of them has.
func (s *story) showQueues(ctx context.Context, name, allocated string) error {
	if err := s.kubectlQuietly(ctx, "wait", "queue/"+name, "--for=jsonpath={.status.allocated.gpu}="+allocated, "--timeout="+patience.String()); err != nil {
		return err
	}
	return s.kubectl(ctx, "get", "queues", company, research, product)
}

// removeExperiments removes the Deployment, if it is there.
func (s *story) removeExperiments(ctx context.Context) error {
	err := s.client.AppsV1().Deployments(namespace).Delete(ctx, experiments, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// removeAll deletes all pods and waits until they are gone.
func (s *story) removeAll(ctx context.Context) error {
	pods, options := s.client.CoreV1().Pods(namespace), metav1.ListOptions{}
	return wait.PollUntilContextTimeout(ctx, 300*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		if err := pods.DeleteCollection(ctx, metav1.DeleteOptions{}, options); err != nil {
			return false, err
		}
		list, err := pods.List(ctx, options)
		return err == nil && len(list.Items) == 0, err
	})
}
