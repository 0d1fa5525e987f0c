package queueobject

import (
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/tranche-dev/tranche/extender/objectwriter"
	"github.com/tranche-dev/tranche/extender/planner"
	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
)

// requestTimeout bounds each request.
const requestTimeout = 15 * time.Second

// compare says how much of report is not in the queue as it was last seen.
// Urgent is what decides whether pods start, or whether the queue vanishes.
func compare(seen *v1alpha1.Queue, report *planner.QueueReport, now time.Time) objectwriter.Change {
	switch {
	case seen == nil:
		return objectwriter.Unread
	case lacksFinalizer(seen, report), hasUselessFinalizer(seen, report):
		return objectwriter.Urgent
	}
	// The planner reports often: what is not written is not copied.
	after := report.Status
	after.Conditions = conditionsOf(seen.Status.Conditions, after.Conditions, now)
	switch {
	case pressing(&seen.Status, &after):
		return objectwriter.Urgent
	case equality.Semantic.DeepEqual(seen.Status, after):
		return objectwriter.Nothing
	default:
		return objectwriter.Numbers
	}
}

// write reads a queue, or makes it what report says if it is known. It returns
// the queue as it is then.
func (w *Writer) write(ctx context.Context, known *v1alpha1.Queue, report *planner.QueueReport) (*v1alpha1.Queue, error) {
	if known == nil {
		return w.read(ctx, report.Name)
	}
	return w.bring(ctx, known, report)
}

// read returns the queue as it is.
func (w *Writer) read(ctx context.Context, name string) (*v1alpha1.Queue, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	queue := &v1alpha1.Queue{}
	err := w.client.Get(ctx, client.ObjectKey{Name: name}, queue)
	switch {
	case err == nil:
		return queue, nil
	case apierrors.IsNotFound(err):
		// Or there are no Queues at all, which the watcher says.
		return nil, objectwriter.ErrGone
	default:
		return nil, w.objects.Result("get", err)
	}
}

// bring makes the queue what report says: the finalizer, then the status.
func (w *Writer) bring(ctx context.Context, known *v1alpha1.Queue, report *planner.QueueReport) (*v1alpha1.Queue, error) {
	queue := known.DeepCopy()
	if lacksFinalizer(queue, report) || hasUselessFinalizer(queue, report) {
		if err := w.finalize(ctx, queue, report.InUse); err != nil {
			return known, err
		}
		if queue.DeletionTimestamp != nil && len(queue.Finalizers) == 0 {
			return nil, objectwriter.ErrGone
		}
	}
	before := queue.DeepCopy()
	queue.Status = statusOf(&before.Status, &report.Status, w.clock.Now())
	if equality.Semantic.DeepEqual(before.Status, queue.Status) {
		return before, nil
	}
	after := queue.Status
	if err := patch(ctx, w, w.client.Status(), "patch_status", queue, before); err != nil {
		return before, err
	}
	w.tell(queue, &before.Status, &after)
	return queue, nil
}

// finalize puts our finalizer on the queue, or takes it off.
func (w *Writer) finalize(ctx context.Context, queue *v1alpha1.Queue, inUse bool) error {
	before := queue.DeepCopy()
	if inUse {
		controllerutil.AddFinalizer(queue, v1alpha1.QueueFinalizer)
	} else {
		controllerutil.RemoveFinalizer(queue, v1alpha1.QueueFinalizer)
	}
	if err := patch(ctx, w, w.client, "patch", queue, before); err != nil {
		return err
	}
	klog.FromContext(ctx).V(2).Info("Queue object's finalizer changed", "queue", queue.Name, "inUse", inUse, "deleting", queue.DeletionTimestamp != nil)
	return nil
}

// patcher is a client or that of a subresource.
type patcher[O any] interface {
	Patch(ctx context.Context, object client.Object, patch client.Patch, options ...O) error
}

// patch writes what differs between before and queue, with the version: lists
// are replaced as a whole, and others may be in them by now.
func patch[O any](ctx context.Context, w *Writer, to patcher[O], verb string, queue, before *v1alpha1.Queue) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return w.objects.Result(verb, to.Patch(ctx, queue, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})))
}

// lacksFinalizer says whether our finalizer is to be put on the queue. Once a
// queue is being deleted the API server takes no more of them.
func lacksFinalizer(queue *v1alpha1.Queue, report *planner.QueueReport) bool {
	return report.InUse && queue.DeletionTimestamp == nil && !finalized(queue)
}

func hasUselessFinalizer(queue *v1alpha1.Queue, report *planner.QueueReport) bool {
	return !report.InUse && finalized(queue)
}

func finalized(queue *v1alpha1.Queue) bool {
	return slices.Contains(queue.Finalizers, v1alpha1.QueueFinalizer)
}
