package watch

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/tranche-dev/tranche/extender/view"
)

// podEntry is what the informer's store keeps of a pod.
type podEntry struct {
	namespace, name, version string
	uid                      types.UID
	// pod is nil if it uses no GPU.
	pod *view.Pod
	// usage is nil if it takes nothing of a node, and always if nobody wants to
	// know.
	usage *view.Usage
}

var _ metav1.ObjectMetaAccessor = (*podEntry)(nil)

// GetObjectMeta implements metav1.ObjectMetaAccessor with what informers need. It
// makes the object each time: kept, it would be most of an entry.
func (e *podEntry) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Namespace: e.namespace, Name: e.name, UID: e.uid, ResourceVersion: e.version}
}

// cutPod is the informer's transform. It may see its own results again.
func (w *Watcher) cutPod(obj any) (any, error) {
	switch o := obj.(type) {
	case *podEntry:
		return o, nil
	case *corev1.Pod:
		e := &podEntry{namespace: view.Once(o.Namespace), name: o.Name, version: o.ResourceVersion, uid: o.UID, pod: view.PodOf(o, w.res)}
		if w.to.Usages != nil {
			e.usage = view.UsageOf(o)
		}
		return e, nil
	case cache.DeletedFinalStateUnknown:
		return o, nil
	default:
		return nil, fmt.Errorf("pod informer: unexpected %T", obj)
	}
}

// podHandler lives as long as its informer, which ends with ctx.
type podHandler struct {
	ctx context.Context // the informer's interface has none
	w   *Watcher
}

var _ cache.ResourceEventHandler = (*podHandler)(nil)

func (h *podHandler) OnAdd(obj any, _ bool) {
	if e, ok := obj.(*podEntry); ok {
		h.changed(nil, e)
	}
}

// OnUpdate may get two different pods of one name: the end of the first was
// missed while the watch was interrupted.
func (h *podHandler) OnUpdate(before, after any) {
	old, _ := before.(*podEntry)
	e, ok := after.(*podEntry)
	if !ok {
		return
	}
	if old != nil && old.uid != e.uid {
		h.gone(old)
		old = nil
	}
	h.changed(old, e)
}

func (h *podHandler) OnDelete(obj any) {
	if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = unknown.Obj // the last known state has the right UID
	}
	if e, ok := obj.(*podEntry); ok {
		h.gone(e)
	}
}

// changed tells what is new in e; old is nil if all of it is. What is not new e
// has from old afterwards, as those have who were told of it: else there would be
// two of most. Nobody but this handler looks at it.
func (h *podHandler) changed(old, e *podEntry) {
	var usage *view.Usage
	if old != nil {
		usage = old.usage
	}
	switch {
	case e.usage.Same(usage):
		e.usage = usage
	case e.usage != nil:
		h.w.to.Usages.ObserveUsage(h.ctx, e.usage)
	default:
		h.w.to.Usages.ForgetUsage(h.ctx, usage.UID)
	}
	if e.pod == nil {
		if old != nil && old.pod != nil {
			h.w.to.Pods.Forget(h.ctx, old.pod) // it names no queue any more, and it was known for that
		}
		return
	}
	if old != nil && old.pod != nil && e.pod.SameDecision(old.pod) {
		e.pod = old.pod
		return
	}
	h.w.to.Pods.Observe(h.ctx, e.pod)
}

// gone tells that the pod of e does not exist any more.
func (h *podHandler) gone(e *podEntry) {
	if e.usage != nil {
		h.w.to.Usages.ForgetUsage(h.ctx, e.usage.UID)
	}
	if e.pod != nil {
		h.w.to.Pods.Forget(h.ctx, e.pod)
	}
}
