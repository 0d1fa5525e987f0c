package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/tests/cluster"
	"github.com/tranche-dev/tranche/tests/testkit"
)

const (
	patience = 90 * time.Second
	// creators is how many objects are being written at once.
	creators = 16
)

// kit is what every measurement needs of a cluster.
type kit struct {
	kube    *cluster.Cluster
	client  kubernetes.Interface
	objects ctrlclient.Client
	// nodes and gpus are how many the cluster has.
	nodes, gpus int
	// profiles is the folder for CPU profiles, empty if none are taken.
	profiles string
}

func newKit(kube *cluster.Cluster, o cluster.Options, profiles string) (*kit, error) {
	client, err := kube.Client()
	if err != nil {
		return nil, err
	}
	config, err := kube.RESTConfig()
	if err != nil {
		return nil, err
	}
	scheme := k8sruntime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	objects, err := ctrlclient.New(config, ctrlclient.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	return &kit{kube: kube, client: client, objects: objects, nodes: o.SimNodes, gpus: o.SimNodes * o.SimGPUs, profiles: profiles}, nil
}

// single is a pod that the stock scheduler places without being told of Tranche:
// it names no GPU.
func single(name string) *corev1.Pod {
	return withCPU(testkit.MakePod(namespace, name).Container("main").Obj())
}

// withCPU has the pod ask for one core, so that all pods that are compared cost
// the scheduler the same.
func withCPU(pod *corev1.Pod) *corev1.Pod {
	pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
	return pod
}

// each calls f with the numbers below n, creators at a time.
func each(n int, f func(i int) error) error {
	work := make(chan int)
	var failed error
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range creators {
		wg.Go(func() {
			for i := range work {
				if err := f(i); err != nil {
					mu.Lock()
					failed = errors.Join(failed, err)
					mu.Unlock()
				}
			}
		})
	}
	for i := range n {
		work <- i
	}
	close(work)
	wg.Wait()
	return failed
}

// create makes n pods.
func (k *kit) create(ctx context.Context, n int, pod func(i int) *corev1.Pod) error {
	return each(n, func(i int) error {
		p := pod(i)
		_, err := k.client.CoreV1().Pods(p.Namespace).Create(ctx, p, metav1.CreateOptions{})
		return err
	})
}

// burst makes n pods and returns the times of the first create, the last create
// and the last binding.
func (k *kit) burst(ctx context.Context, name string, n int, pod func(i int) *corev1.Pod) (began, created, bound time.Time, err error) {
	w, err := k.watch(ctx, namespace)
	if err != nil {
		return began, created, bound, err
	}
	defer w.stop()
	had, _ := w.counts()
	began = time.Now()
	if err := k.create(ctx, n, pod); err != nil {
		return began, created, bound, err
	}
	created = time.Now()
	before := usages(k.kube.Dir())
	if err := w.until(ctx, fmt.Sprintf("%s: all of %d pods are bound", name, n), patience, func() bool { return w.bound >= had+n }); err != nil {
		return began, created, bound, err
	}
	bound = w.lastBound
	fmt.Printf("%s: %v after the last create; CPU since then: %s\n", name, bound.Sub(created).Round(time.Millisecond), spent(before, usages(k.kube.Dir())))
	return began, created, bound, nil
}

// clear removes all pods of the namespace.
func (k *kit) clear(ctx context.Context) error {
	err := wait.PollUntilContextTimeout(ctx, 300*time.Millisecond, longPatience, true, func(ctx context.Context) (bool, error) {
		// A conflict, or the end of the server's patience with so many pods: what is
		// left is deleted the next time.
		if err := k.client.CoreV1().Pods(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			return false, nil //nolint:nilerr // as said
		}
		list, err := k.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{Limit: 1})
		return err == nil && len(list.Items) == 0, err
	})
	if err != nil {
		return fmt.Errorf("pods of namespace %s are still there: %w", namespace, err)
	}
	return nil
}
