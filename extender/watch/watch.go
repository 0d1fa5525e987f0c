package watch

import (
	"context"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/contract"
)

// Pods hears of pods that use GPUs.
type Pods interface {
	Observe(ctx context.Context, pod *view.Pod)
	// Forget tells that a pod is gone; last is the last that was seen of it.
	Forget(ctx context.Context, last *view.Pod)
}

// Nodes hears of nodes.
type Nodes interface {
	ObserveNode(ctx context.Context, node *view.Node)
	ForgetNode(ctx context.Context, name string)
}

// Usages hears of what all pods, with or without GPUs, take of their nodes. Of
// one event it hears before Pods does: who then looks for room sees all of it.
type Usages interface {
	ObserveUsage(ctx context.Context, usage *view.Usage)
	ForgetUsage(ctx context.Context, uid types.UID)
}

// Gangs hears of Gang objects.
type Gangs interface {
	ObserveGang(ctx context.Context, gang *view.Gang)
	ForgetGang(ctx context.Context, namespace, name string)
}

// Groups hears of Kubernetes' PodGroups.
type Groups interface {
	ObserveGroup(ctx context.Context, group *view.Group)
	ForgetGroup(ctx context.Context, namespace, name string)
}

// Queues hears of Queue objects.
type Queues interface {
	ObserveQueue(ctx context.Context, queue *view.Queue)
	ForgetQueue(ctx context.Context, name string)
}

// Namespaces hears of namespaces, whose labels queues select them by.
type Namespaces interface {
	ObserveNamespace(ctx context.Context, namespace *view.Namespace)
	ForgetNamespace(ctx context.Context, name string)
}

// Audience is who is told. Usages, Gangs and Groups are given together, or not
// at all: then gangs are off, and nothing is watched or kept for them. So are
// Queues and Namespaces.
type Audience struct {
	Pods       Pods
	Nodes      Nodes
	Usages     Usages
	Gangs      Gangs
	Groups     Groups
	Queues     Queues
	Namespaces Namespaces
}

// Watcher runs the informers.
type Watcher struct {
	client kubernetes.Interface
	custom client.WithWatch
	res    contract.Resources
	to     Audience
}

// New returns a Watcher that has not begun. custom reads Gang and Queue objects.
func New(client kubernetes.Interface, custom client.WithWatch, res contract.Resources, to Audience) *Watcher {
	return &Watcher{client: client, custom: custom, res: res, to: to}
}

// ErrNotSynced is returned if ctx ended before everything was told once.
var ErrNotSynced = errors.New("stopped before all nodes and pods were read")

// Run tells of all nodes, of all namespaces, queues and gangs, then of all
// pods, calls synced, and goes on with what changes until ctx ends. Nothing is
// told after it has returned.
func (w *Watcher) Run(ctx context.Context, synced func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	// Nodes first: what pods are charged is judged by their inventories.
	nodes, pods := w.client.CoreV1().Nodes(), w.client.CoreV1().Pods(metav1.NamespaceAll)
	if err := w.start(ctx, &running, &corev1.Node{}, fresh(nodes.List, nodes.Watch), w.cutNode, &nodeHandler{ctx, w}); err != nil {
		return err
	}
	if err := startOptional(ctx, &running, w.optional()...); err != nil {
		return err
	}
	if err := w.start(ctx, &running, &corev1.Pod{}, fresh(pods.List, pods.Watch), w.cutPod, &podHandler{ctx, w}); err != nil {
		return err
	}
	if err := synced(ctx); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// optional are the kinds that are told of before pods are.
func (w *Watcher) optional() []optional {
	var kinds []optional
	if w.to.Queues != nil {
		kinds = append(kinds, namespaceKind(w.client, w.to.Namespaces), queueKind(w.custom, w.res.PerGPU, w.to.Queues))
	}
	if w.to.Gangs != nil {
		kinds = append(kinds, gangKind(w.custom, w.to.Gangs), groupKind(w.client, w.to.Groups))
	}
	return kinds
}

// start runs an informer and returns when handler has been told of all that
// exists.
func (w *Watcher) start(ctx context.Context, running *sync.WaitGroup, kind runtime.Object, lw *cache.ListWatch, cut cache.TransformFunc, handler cache.ResourceEventHandler) error {
	informer := cache.NewSharedIndexInformerWithOptions(cache.ToListWatcherWithWatchListSemantics(lw, w.client), kind, cache.SharedIndexInformerOptions{})
	if err := informer.SetTransform(cut); err != nil {
		return fmt.Errorf("informer: %w", err)
	}
	registration, err := informer.AddEventHandler(handler)
	if err != nil {
		return fmt.Errorf("informer: %w", err)
	}
	running.Go(func() { informer.RunWithContext(ctx) })
	if !cache.WaitFor(ctx, "", registration.HasSyncedChecker()) {
		return ErrNotSynced
	}
	return nil
}

// fresh lists and watches without the one request of client-go that a stale
// cache may answer: a first list at resource version "0".
func fresh[L runtime.Object](
	list func(context.Context, metav1.ListOptions) (L, error),
	watch func(context.Context, metav1.ListOptions) (apiwatch.Interface, error),
) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			if options.ResourceVersion == "0" {
				options.ResourceVersion = ""
			}
			return list(ctx, options)
		},
		WatchFuncWithContext: watch,
	}
}
