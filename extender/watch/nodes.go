package watch

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/contract"
)

// cutNode is the informer's transform: what view.NodeOf reads, and no more. The
// inventory stays text, for it is parsed only when it changes, not at every
// heartbeat.
func (w *Watcher) cutNode(obj any) (any, error) {
	switch o := obj.(type) {
	case *corev1.Node:
		n := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion},
			Status:     corev1.NodeStatus{Allocatable: o.Status.Allocatable},
		}
		n.Labels = o.Labels
		n.Spec.Taints, n.Spec.Unschedulable = o.Spec.Taints, o.Spec.Unschedulable
		if text, ok := o.Annotations[contract.InventoryAnnotation]; ok {
			n.Annotations = map[string]string{contract.InventoryAnnotation: text}
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
		h.w.to.Nodes.ObserveNode(h.ctx, view.NodeOf(n, h.w.res))
	}
}

func (h *nodeHandler) OnUpdate(before, after any) {
	old, _ := before.(*corev1.Node)
	n, ok := after.(*corev1.Node)
	if !ok || old != nil && sameNode(old, n) {
		return
	}
	h.w.to.Nodes.ObserveNode(h.ctx, view.NodeOf(n, h.w.res))
}

func (h *nodeHandler) OnDelete(obj any) {
	if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = unknown.Obj
	}
	if n, ok := obj.(*corev1.Node); ok {
		h.w.to.Nodes.ForgetNode(h.ctx, n.Name)
	}
}

// sameNode says whether two cut nodes are equal, as heartbeats leave them.
func sameNode(a, b *corev1.Node) bool {
	return maps.Equal(a.Annotations, b.Annotations) && maps.Equal(a.Labels, b.Labels) &&
		a.Spec.Unschedulable == b.Spec.Unschedulable &&
		slices.EqualFunc(a.Spec.Taints, b.Spec.Taints, func(x, y corev1.Taint) bool { return x.Key == y.Key && x.Value == y.Value && x.Effect == y.Effect }) &&
		maps.EqualFunc(a.Status.Allocatable, b.Status.Allocatable, func(x, y resource.Quantity) bool { return x.Cmp(y) == 0 })
}
