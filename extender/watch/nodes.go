package watch

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/contract"
)

// cutNode is the informer's transform: the inventory stays text, for it is
// parsed only when it changes, not at every heartbeat.
func (w *Watcher) cutNode(obj any) (any, error) {
	switch o := obj.(type) {
	case *corev1.Node:
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion}}
		if text, ok := o.Annotations[contract.InventoryAnnotation]; ok {
			n.Annotations = map[string]string{contract.InventoryAnnotation: text}
		}
		if q, ok := o.Status.Allocatable[w.res.GPU]; ok {
			n.Status.Allocatable = corev1.ResourceList{w.res.GPU: q}
		}
		return n, nil
	case cache.DeletedFinalStateUnknown:
		return o, nil
	default:
		return nil, fmt.Errorf("node informer: unexpected %T", obj)
	}
}

// nodeHandler lives as long as its informer, which ends with ctx.
type nodeHandler struct {
	ctx context.Context // the informer's interface has none
	w   *Watcher
}

var _ cache.ResourceEventHandler = (*nodeHandler)(nil)

func (h *nodeHandler) OnAdd(obj any, _ bool) {
	if n, ok := obj.(*corev1.Node); ok {
		h.w.nodes.ObserveNode(h.ctx, view.NodeOf(n, h.w.res))
	}
}

func (h *nodeHandler) OnUpdate(before, after any) {
	old, _ := before.(*corev1.Node)
	n, ok := after.(*corev1.Node)
	if !ok || old != nil && h.same(old, n) {
		return
	}
	h.w.nodes.ObserveNode(h.ctx, view.NodeOf(n, h.w.res))
}

func (h *nodeHandler) OnDelete(obj any) {
	if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = unknown.Obj
	}
	if n, ok := obj.(*corev1.Node); ok {
		h.w.nodes.ForgetNode(h.ctx, n.Name)
	}
}

func (h *nodeHandler) same(a, b *corev1.Node) bool {
	textA, okA := a.Annotations[contract.InventoryAnnotation]
	textB, okB := b.Annotations[contract.InventoryAnnotation]
	gpusA, gpusB := a.Status.Allocatable[h.w.res.GPU], b.Status.Allocatable[h.w.res.GPU]
	return okA == okB && textA == textB && gpusA.Cmp(gpusB) == 0
}
