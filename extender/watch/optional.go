package watch

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// kind is a kind of objects that the API server may not serve, or not to us. V
// is what is told of one.
type kind[V any] struct {
	name string
	// object is an empty one.
	object runtime.Object
	lw     *cache.ListWatch
	// client is asked whether it can stream lists.
	client any
	// again is how soon it is noticed that the kind is served after all.
	again time.Duration
	// missing is logged once when it is not.
	missing func(log logr.Logger)

	// view returns false for an object of another kind.
	view    func(obj any) (V, bool)
	same    func(a, b V) bool
	observe func(ctx context.Context, v V)
	forget  func(ctx context.Context, namespace, name string)
}

// optional is a kind[V].
type optional interface {
	// follow tells of the objects while they are served, until ctx ends. known
	// is called, perhaps often, when there is nothing more to wait for.
	follow(ctx context.Context, known func())
	String() string
}

// patience is how long the start waits for a kind of which nobody says whether
// it is served: the API server is starting, or our roles are those of an
// earlier version. Pods with GPUs must not wait for that for ever.
const patience = 30 * time.Second

// startOptional follows kinds until ctx ends. It returns as soon as each is
// known not to be served or has been told of.
func startOptional(ctx context.Context, running *sync.WaitGroup, kinds ...optional) error {
	known := make([]chan struct{}, len(kinds))
	for i, k := range kinds {
		known[i] = make(chan struct{})
		tell := sync.OnceFunc(func() { close(known[i]) })
		running.Go(func() { k.follow(ctx, tell) })
	}
	patient, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for i, k := range kinds {
		select {
		case <-known[i]:
		case <-patient.Done():
			if ctx.Err() != nil {
				return ErrNotSynced
			}
			klog.FromContext(ctx).Info("Going on without objects that cannot be read; gangs and queues lack what they say", "kind", k.String())
		}
	}
	return nil
}

func (k *kind[V]) String() string { return k.name }

// follow implements optional.
func (k *kind[V]) follow(ctx context.Context, known func()) {
	log := klog.FromContext(ctx).WithValues("kind", k.name)
	said := false
	for wait := time.Duration(0); sleep(ctx, wait); {
		_, err := k.lw.ListWithContextFunc(ctx, metav1.ListOptions{Limit: 1})
		switch {
		case err == nil:
			said, wait = false, k.again
			log.V(2).Info("Served")
			if err := k.inform(ctx, known); err != nil {
				log.Error(err, "Objects are not watched")
			}
		case apierrors.IsNotFound(err):
			wait = k.again
			if !said {
				k.missing(log)
				said = true
			}
			known()
		default:
			// Soon again at first: somebody waits for the answer.
			wait = min(max(2*wait, time.Second), k.again)
			log.V(2).Info("Not known whether it is served", "reason", err.Error())
		}
	}
}

// sleep returns false if ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return ctx.Err() == nil
	}
}

// inform runs an informer until ctx ends or the kind is no longer served: then
// its objects are gone with it.
func (k *kind[V]) inform(ctx context.Context, known func()) error {
	informing, cancel := context.WithCancel(ctx)
	defer cancel()
	lw := cache.ToListWatcherWithWatchListSemantics(k.lw, k.client)
	informer := cache.NewSharedIndexInformerWithOptions(lw, k.object, cache.SharedIndexInformerOptions{})
	if err := informer.SetTransform(k.cut); err != nil {
		return fmt.Errorf("informer: %w", err)
	}
	ceased := false // written by the informer's goroutine, read after its end
	if err := informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		if apierrors.IsNotFound(err) {
			ceased = true
			cancel()
			return
		}
		cache.DefaultWatchErrorHandler(ctx, r, err)
	}); err != nil {
		return fmt.Errorf("informer: %w", err)
	}
	h := &optionalHandler[V]{ctx: ctx, k: k, told: map[cache.ObjectName]struct{}{}}
	registration, err := informer.AddEventHandler(h)
	if err != nil {
		return fmt.Errorf("informer: %w", err)
	}
	var running sync.WaitGroup
	running.Go(func() { informer.RunWithContext(informing) })
	if cache.WaitFor(informing, "", registration.HasSyncedChecker()) {
		known()
	}
	running.Wait()
	if !ceased {
		return nil
	}
	klog.FromContext(ctx).Info("No longer served", "kind", k.name)
	for name := range h.told {
		k.forget(ctx, name.Namespace, name.Name)
	}
	return nil
}

// entry is what an informer's store keeps of an object.
type entry[V any] struct {
	// ObjectMeta has only what informers need.
	metav1.ObjectMeta
	view V
}

// cut is the informer's transform. It may see its own results again.
func (k *kind[V]) cut(obj any) (any, error) {
	switch obj.(type) {
	case *entry[V], cache.DeletedFinalStateUnknown:
		return obj, nil
	}
	v, ok := k.view(obj)
	o, has := obj.(metav1.Object)
	if !ok || !has {
		return nil, fmt.Errorf("%s informer: unexpected %T", k.name, obj)
	}
	return &entry[V]{
		ObjectMeta: metav1.ObjectMeta{Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion()},
		view:       v,
	}, nil
}

// optionalHandler tells of one informer's objects.
type optionalHandler[V any] struct {
	ctx context.Context // of the watcher; it outlives the informer
	k   *kind[V]
	// told are the objects that have been observed and not forgotten. An
	// informer that ends may leave its last events untold.
	told map[cache.ObjectName]struct{}
}

// OnAdd implements cache.ResourceEventHandler.
func (h *optionalHandler[V]) OnAdd(obj any, _ bool) {
	if e, ok := obj.(*entry[V]); ok {
		h.told[nameOf(e)] = struct{}{}
		h.k.observe(h.ctx, e.view)
	}
}

// OnUpdate implements cache.ResourceEventHandler.
func (h *optionalHandler[V]) OnUpdate(before, after any) {
	old, known := before.(*entry[V])
	e, ok := after.(*entry[V])
	if ok && (!known || !h.k.same(old.view, e.view)) {
		h.k.observe(h.ctx, e.view)
	}
}

// OnDelete implements cache.ResourceEventHandler.
func (h *optionalHandler[V]) OnDelete(obj any) {
	if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = unknown.Obj
	}
	if e, ok := obj.(*entry[V]); ok {
		delete(h.told, nameOf(e))
		h.k.forget(h.ctx, e.Namespace, e.Name)
	}
}

func nameOf(o metav1.Object) cache.ObjectName {
	return cache.ObjectName{Namespace: o.GetNamespace(), Name: o.GetName()}
}
