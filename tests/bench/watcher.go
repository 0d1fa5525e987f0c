package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// watcher counts what happens to the pods of a namespace, at the times at which
// a watching client sees it. It follows an informer, since an API server under
// load ends watches.
type watcher struct {
	stop context.CancelFunc

	mu sync.Mutex
	// changed is closed at the next event.
	changed chan struct{}
	seen    map[types.UID]*life
	// bound and leaving count pods, those that are gone since included.
	bound, leaving         int
	lastBound, lastLeaving time.Time
	// refused are those for which there was no room and that are not bound since: the
	// scheduler has said so, or an event that is heeded.
	refused int
}

type life struct {
	bound, leaving, refused, gone bool
	// name and version are the pod's when it was last seen.
	name, version string
}

// watch returns when all that is there has been seen.
func (k *kit) watch(ctx context.Context, namespace string) (*watcher, error) {
	return k.watchAll(ctx, namespace, "")
}

// watchAll also heeds events with that reason, if it is not empty: the pods that
// they are about are refused.
func (k *kit) watchAll(ctx context.Context, namespace, reason string) (*watcher, error) {
	ctx, cancel := context.WithCancel(ctx)
	w := &watcher{stop: cancel, changed: make(chan struct{}), seen: map[types.UID]*life{}}
	// Only what is counted is kept of the pods: there are many.
	strip := func(obj any) (any, error) {
		pod, ok := obj.(*corev1.Pod)
		if !ok {
			return obj, nil
		}
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion, DeletionTimestamp: pod.DeletionTimestamp,
			},
			Spec:   corev1.PodSpec{NodeName: pod.Spec.NodeName},
			Status: corev1.PodStatus{Conditions: scheduled(pod)},
		}, nil
	}
	factory := informers.NewSharedInformerFactoryWithOptions(k.client, 0, informers.WithNamespace(namespace), informers.WithTransform(strip))
	informer := factory.Core().V1().Pods().Informer()
	handlers := cache.ResourceEventHandlerFuncs{AddFunc: w.see, UpdateFunc: func(_, obj any) { w.see(obj) }, DeleteFunc: w.seeEnd}
	if _, err := informer.AddEventHandler(handlers); err != nil {
		cancel()
		return nil, err
	}
	factory.StartWithContext(ctx)
	if reason != "" {
		about := informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = fields.OneTermEqualSelector("reason", reason).String() })
		events := informers.NewSharedInformerFactoryWithOptions(k.client, 0, informers.WithNamespace(namespace), about)
		if _, err := events.Core().V1().Events().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: w.seeEvent}); err != nil {
			cancel()
			return nil, err
		}
		events.StartWithContext(ctx)
	}
	if !cache.WaitFor(ctx, "", informer.HasSyncedChecker()) {
		cancel()
		return nil, ctx.Err()
	}
	return w, nil
}

// scheduled is the scheduler's condition of a pod alone.
func scheduled(pod *corev1.Pod) []corev1.PodCondition {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			return []corev1.PodCondition{{Type: c.Type, Status: c.Status, Reason: c.Reason}}
		}
	}
	return nil
}

func (w *watcher) see(obj any) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return
	}
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.seen[pod.UID]
	if l == nil {
		l = &life{}
		w.seen[pod.UID] = l
	}
	l.name, l.version = pod.Name, pod.ResourceVersion
	if pod.Spec.NodeName != "" && !l.bound {
		l.bound = true
		w.bound++
		w.lastBound = now
		if l.refused {
			w.refused--
		}
	}
	if c := scheduled(pod); len(c) > 0 && c[0].Reason == corev1.PodReasonUnschedulable {
		w.refuse(l)
	}
	if pod.DeletionTimestamp != nil && !l.leaving {
		l.leaving = true
		w.leaving++
		w.lastLeaving = now
	}
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *watcher) refuse(l *life) {
	if !l.refused && !l.bound {
		l.refused = true
		w.refused++
	}
}

// seeEvent notes an event that says that there is no room for a pod.
func (w *watcher) seeEvent(obj any) {
	e, ok := obj.(*corev1.Event)
	if !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if l := w.seen[e.InvolvedObject.UID]; l != nil {
		w.refuse(l)
	}
}

// seeEnd notes the end of a pod that nobody had to ask to go first.
func (w *watcher) seeEnd(obj any) {
	if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = last.Obj
	}
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if l := w.seen[pod.UID]; l != nil {
		l.gone = true
	}
}

// until waits for a condition, which may read the counts.
func (w *watcher) until(ctx context.Context, what string, patience time.Duration, condition func() bool) error {
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for {
		w.mu.Lock()
		done, changed, bound := condition(), w.changed, w.bound
		w.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-timeout.C:
			return fmt.Errorf("%s: not within %v (%d are bound)", what, patience, bound)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// oneMore returns the time from before f until one more pod is bound.
func (w *watcher) oneMore(ctx context.Context, f func() error) (time.Duration, error) {
	had, _ := w.counts()
	began := time.Now()
	if err := f(); err != nil {
		return 0, err
	}
	if err := w.until(ctx, "a pod is bound", patience, func() bool { return w.bound > had }); err != nil {
		return 0, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lastBound.Sub(began), nil
}

// counts are how many were bound, and asked to go, by now.
func (w *watcher) counts() (bound, leaving int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.bound, w.leaving
}

// decided is how many are bound, or refused by the scheduler, by now.
func (w *watcher) decided() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.bound + w.refused
}

// waiting are pods that were refused and are there, by name, with the version in
// which they were seen.
func (w *watcher) waiting() map[string]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := map[string]string{}
	for _, l := range w.seen {
		if l.refused && !l.bound && !l.gone {
			all[l.name] = l.version
		}
	}
	return all
}
