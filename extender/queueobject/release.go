package queueobject

import (
	"context"

	"github.com/tranche-dev/tranche/extender/planner"
	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
)

// Releaser says of all queues that they are open and not in use, for a leader
// that does not heed them: else those that were in use could never be deleted,
// and the webhook would put gates on pods.
type Releaser struct{ Writer *Writer }

// ObserveQueue implements watch.Queues.
func (r Releaser) ObserveQueue(ctx context.Context, queue *view.Queue) {
	r.Writer.ObserveQueue(ctx, queue)
	r.Writer.ReportQueue(planner.QueueReport{Name: queue.Name, Status: v1alpha1.QueueStatus{Open: true}})
}

// ForgetQueue implements watch.Queues.
func (r Releaser) ForgetQueue(ctx context.Context, name string) { r.Writer.ForgetQueue(ctx, name) }

// ObserveNamespace implements watch.Namespaces.
func (Releaser) ObserveNamespace(context.Context, *view.Namespace) {}

// ForgetNamespace implements watch.Namespaces.
func (Releaser) ForgetNamespace(context.Context, string) {}
