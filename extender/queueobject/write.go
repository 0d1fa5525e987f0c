package queueobject

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/tranche-dev/tranche/extender/planner"
	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
)

// requestTimeout bounds each request.
const requestTimeout = 15 * time.Second

var (
	// errRaced is wrapped by errors that say that the object is not what it was
	// when it was read.
	errRaced = errors.New("the object has changed")
	// errGone says that there is no object, so nothing to write.
	errGone = errors.New("there is no such queue")
)

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
		return nil, errGone
	default:
		return nil, w.result("get", err)
	}
}

// bring makes the queue what report says: the finalizer, then the status. It
// returns the object as it is then, nil if that has to be read first.
func (w *Writer) bring(ctx context.Context, known *v1alpha1.Queue, report *planner.QueueReport) (*v1alpha1.Queue, error) {
	queue := known.DeepCopy()
	if lacksFinalizer(queue, report) || hasUselessFinalizer(queue, report) {
		if err := w.finalize(ctx, queue, report.InUse); err != nil {
			return unlessRaced(known, err), err
		}
		if queue.DeletionTimestamp != nil && len(queue.Finalizers) == 0 {
			return nil, errGone
		}
	}
	before := queue.DeepCopy()
	queue.Status = statusOf(&before.Status, &report.Status, w.clock.Now())
	if equality.Semantic.DeepEqual(before.Status, queue.Status) {
		return before, nil
	}
	after := queue.Status
	err := patch(ctx, w, w.client.Status(), "patch_status", queue, before)
	if err != nil {
		return unlessRaced(before, err), err
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
	return w.result(verb, to.Patch(ctx, queue, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})))
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

// unlessRaced returns queue, or nil if err says that it is something else by
// now.
func unlessRaced(queue *v1alpha1.Queue, err error) *v1alpha1.Queue {
	if errors.Is(err, errRaced) {
		return nil
	}
	return queue
}

// result counts a write and sorts its error.
func (w *Writer) result(verb string, err error) error {
	switch {
	case err == nil:
		w.writes.WithLabelValues(verb, "ok").Inc()
		return nil
	case apierrors.IsConflict(err) || apierrors.IsNotFound(err):
		// The end of an object that was just there is looked at anew, too.
		w.writes.WithLabelValues(verb, "conflict").Inc()
		return fmt.Errorf("%s queue: %w: %w", verb, errRaced, err)
	default:
		w.writes.WithLabelValues(verb, "failed").Inc()
		return fmt.Errorf("%s queue: %w", verb, err)
	}
}
