package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/tests/cluster"
	"github.com/tranche-dev/tranche/tests/testkit"
)

const (
	namespace = "demo"
	// gangSize is the gang of the bar.
	gangSize = 512
	patience = 90 * time.Second
	// creators is how many pods are being created at once.
	creators = 16
)

// gangBench measures gangs against single pods that the stock scheduler places
// without being told of Tranche: they name no GPU.
type gangBench struct {
	client kubernetes.Interface
	gangs  ctrlclient.Client
	nodes  int
	gpus   int
	// rounds is how often everything is measured.
	rounds int
	// dir is the cluster's.
	dir string
}

func newGangBench(kube *cluster.Cluster, o cluster.Options, n int) (*gangBench, error) {
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
	gangs, err := ctrlclient.New(config, ctrlclient.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	return &gangBench{client: client, gangs: gangs, nodes: o.SimNodes, gpus: o.SimNodes * o.SimGPUs, dir: o.Dir, rounds: n}, nil
}

// run measures in turn, so that a slow minute of the machine meets both.
func (b *gangBench) run(ctx context.Context) ([]row, error) {
	var single, gang, cannot time.Duration
	for i := range b.rounds {
		s, err := b.burst(ctx, fmt.Sprintf("single-%d", i), b.single, gangSize)
		if err != nil {
			return nil, err
		}
		g, err := b.burst(ctx, fmt.Sprintf("gang-%d", i), b.member, gangSize)
		if err != nil {
			return nil, err
		}
		c, err := b.cannotFit(ctx, fmt.Sprintf("huge-%d", i))
		if err != nil {
			return nil, err
		}
		single, gang, cannot = single+s, gang+g, cannot+c
	}
	mean := func(d time.Duration) string { return (d / time.Duration(b.rounds)).Round(time.Millisecond).String() }
	return []row{
		{
			fmt.Sprintf("a gang of %d on %d nodes: last create to last bind", gangSize, b.nodes),
			mean(gang), mean(single) + fmt.Sprintf(" (%d single pods, stock scheduler)", gangSize),
			fmt.Sprintf("%.2f", float64(gang)/float64(single)), "<= 1.5",
		},
		{fmt.Sprintf("a gang of %d that cannot fit: last create to its reason", gangSize), mean(cannot), "", "", "< 1s"},
	}, nil
}

func (b *gangBench) single(name, _ string) *corev1.Pod {
	pod := testkit.MakePod(namespace, name).Container("main").Obj()
	pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
	return pod
}

func (b *gangBench) member(name, gang string) *corev1.Pod {
	pod := testkit.MakePod(namespace, name).Container("main", testkit.GPUs("1")).
		Label(contract.GangLabel, gang).Annotation(contract.GangMinCountAnnotation, strconv.Itoa(gangSize)).Obj()
	pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
	return pod
}

// burst creates n pods and returns the time from the last create to the last
// bind, by the watch of one client.
func (b *gangBench) burst(ctx context.Context, name string, pod func(name, gang string) *corev1.Pod, n int) (time.Duration, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	last, err := b.lastBound(ctx, n)
	if err != nil {
		return 0, err
	}
	if err := b.create(ctx, name, pod, n); err != nil {
		return 0, err
	}
	created, before := time.Now(), cpuTimes(b.dir)
	select {
	case bound := <-last:
		fmt.Printf("%s: %v after the last create; CPU since then: %s\n", name, bound.Sub(created).Round(time.Millisecond), spent(before, cpuTimes(b.dir)))
		return bound.Sub(created), b.clear(ctx)
	case <-time.After(patience):
		return 0, fmt.Errorf("%s: not all of %d pods were bound within %v", name, n, patience)
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// lastBound sends the time at which the n-th pod of the namespace was bound. It
// follows an informer, since an API server under load ends watches.
func (b *gangBench) lastBound(ctx context.Context, n int) (<-chan time.Time, error) {
	factory := informers.NewSharedInformerFactoryWithOptions(b.client, 0, informers.WithNamespace(namespace))
	informer := factory.Core().V1().Pods().Informer()
	last := make(chan time.Time, 1)
	bound := map[types.UID]bool{} // handlers of one informer run one after the other
	see := func(obj any) {
		pod, ok := obj.(*corev1.Pod)
		if !ok || pod.Spec.NodeName == "" || bound[pod.UID] {
			return
		}
		if bound[pod.UID] = true; len(bound) == n {
			last <- time.Now()
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: see, UpdateFunc: func(_, obj any) { see(obj) }})
	if err != nil {
		return nil, err
	}
	factory.StartWithContext(ctx)
	if !cache.WaitFor(ctx, "", informer.HasSyncedChecker()) {
		return nil, ctx.Err()
	}
	return last, nil
}

func (b *gangBench) create(ctx context.Context, name string, pod func(name, gang string) *corev1.Pod, n int) error {
	work := make(chan int)
	var failed error
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range creators {
		wg.Go(func() {
			for i := range work {
				if _, err := b.client.CoreV1().Pods(namespace).Create(ctx, pod(fmt.Sprintf("%s-%d", name, i), name), metav1.CreateOptions{}); err != nil {
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

// cannotFit creates a gang for which one GPU is too few, and returns the time
// from the last create until its Gang says why it waits.
func (b *gangBench) cannotFit(ctx context.Context, name string) (time.Duration, error) {
	// All but gangSize-1 GPUs are taken by one pod per node.
	fillers := b.nodes - (gangSize-1)/(b.gpus/b.nodes) - 1
	if fillers > 0 {
		filler := func(name, _ string) *corev1.Pod {
			return testkit.MakePod(namespace, name).Container("main", testkit.GPUs(strconv.Itoa(b.gpus/b.nodes))).Obj()
		}
		if err := b.fill(ctx, name+"-filler", filler, fillers); err != nil {
			return 0, err
		}
	}
	one := func(name, _ string) *corev1.Pod {
		return testkit.MakePod(namespace, name).Container("main", testkit.GPUs("1")).Obj()
	}
	if err := b.fill(ctx, name+"-one", one, 1); err != nil {
		return 0, err
	}
	if err := b.create(ctx, name, b.member, gangSize); err != nil {
		return 0, err
	}
	created := time.Now()
	var g v1alpha1.Gang
	err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		if err := b.gangs.Get(ctx, ctrlclient.ObjectKey{Namespace: namespace, Name: name}, &g); err != nil {
			return false, ctrlclient.IgnoreNotFound(err)
		}
		return len(g.Status.Reasons) > 0 && g.Status.Reasons[0].Type == v1alpha1.ReasonNoPlace, nil
	})
	if err != nil {
		return 0, fmt.Errorf("gang %s says no reason (%+v): %w", name, g.Status, err)
	}
	return time.Since(created), b.clear(ctx)
}

// fill creates pods and waits until they are bound.
func (b *gangBench) fill(ctx context.Context, name string, pod func(name, gang string) *corev1.Pod, n int) error {
	if err := b.create(ctx, name, pod, n); err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		list, err := b.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName="})
		return err == nil && len(list.Items) == 0, err
	})
}

// clear removes all pods.
func (b *gangBench) clear(ctx context.Context) error {
	return wait.PollUntilContextTimeout(ctx, 300*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		err := b.client.CoreV1().Pods(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
		if err != nil && !apierrors.IsConflict(err) {
			return false, err
		}
		list, err := b.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{Limit: 1})
		return err == nil && len(list.Items) == 0, err
	})
}
