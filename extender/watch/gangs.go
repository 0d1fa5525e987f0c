package watch

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/contract"
)

// gangsAgain is how soon a CustomResourceDefinition that comes late is noticed,
// that of queues too.
const gangsAgain = 5 * time.Second

// gangKind are the Gang objects, read through c.
func gangKind(c client.WithWatch, to Gangs) *kind[*view.Gang] {
	return &kind[*view.Gang]{
		name: "Gang", object: &v1alpha1.Gang{}, client: c, again: gangsAgain,
		lw: fresh(
			func(ctx context.Context, o metav1.ListOptions) (*v1alpha1.GangList, error) {
				list := &v1alpha1.GangList{}
				return list, c.List(ctx, list, listOptions(o))
			},
			func(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
				return c.Watch(ctx, &v1alpha1.GangList{}, listOptions(o))
			}),
		missing: func(log logr.Logger) {
			log.Info("The API server has no gangs.tranche.dev, so Gang objects are neither read nor written; apply Tranche's CustomResourceDefinitions, that will be noticed")
		},
		view: func(obj any) (*view.Gang, bool) {
			o, ok := obj.(*v1alpha1.Gang)
			if !ok {
				return nil, false
			}
			return gangOf(o), true
		},
		same: sameGang, observe: to.ObserveGang, forget: to.ForgetGang,
	}
}

// listOptions hands on what client-go asks for. Of raw options alone, the
// client would not take the limit.
func listOptions(o metav1.ListOptions) *client.ListOptions {
	return &client.ListOptions{Raw: &o, Limit: o.Limit, Continue: o.Continue}
}

func gangOf(o *v1alpha1.Gang) *view.Gang {
	g := &view.Gang{
		Namespace: o.Namespace, Name: o.Name, UID: o.UID, Generation: o.Generation,
		Managed:    o.Labels[contract.ManagedByLabel] == contract.ManagedByTranche,
		MinCount:   o.Spec.MinCount,
		DisruptAll: o.Spec.DisruptionMode == v1alpha1.DisruptAll,
		Queue:      o.Spec.Queue,
		Started:    meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.GangStarted),
	}
	if p := o.Spec.StalenessGracePeriod; p != nil {
		g.Staleness = new(p.Duration)
	}
	if t := o.Spec.Topology; t != nil {
		g.NodeLabel, g.Required = t.NodeLabel, t.Mode == v1alpha1.TopologyRequired
	}
	return g
}

// sameGang keeps the statuses that we write from coming back as news.
func sameGang(a, b *view.Gang) bool {
	x, y := *a, *b
	x.Staleness, y.Staleness = nil, nil
	return x == y && (a.Staleness == nil) == (b.Staleness == nil) && (a.Staleness == nil || *a.Staleness == *b.Staleness)
}
