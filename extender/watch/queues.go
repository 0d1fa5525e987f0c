package watch

import (
	"context"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/units"
)

// queueKind are the Queue objects, read through c.
func queueKind(c client.WithWatch, perGPU units.Shares, to Queues) *kind[*view.Queue] {
	return &kind[*view.Queue]{
		name: "Queue", object: &v1alpha1.Queue{}, client: c, again: gangsAgain,
		lw: fresh(
			func(ctx context.Context, o metav1.ListOptions) (*v1alpha1.QueueList, error) {
				list := &v1alpha1.QueueList{}
				return list, c.List(ctx, list, listOptions(o))
			},
			func(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
				return c.Watch(ctx, &v1alpha1.QueueList{}, listOptions(o))
			}),
		missing: func(log logr.Logger) {
			log.Info("The API server has no queues.tranche.dev, so there are no queues; apply Tranche's CustomResourceDefinitions, that will be noticed")
		},
		view: func(obj any) (*view.Queue, bool) {
			o, ok := obj.(*v1alpha1.Queue)
			if !ok {
				return nil, false
			}
			return view.QueueOf(o, perGPU), true
		},
		// The statuses that we write do not come back as news.
		same:    (*view.Queue).Same,
		observe: to.ObserveQueue,
		forget:  func(ctx context.Context, _, name string) { to.ForgetQueue(ctx, name) },
	}
}
