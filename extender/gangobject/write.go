package gangobject

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tranche-dev/tranche/extender/objectwriter"
	"github.com/tranche-dev/tranche/extender/planner"
	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/contract"
)

// writeTimeout bounds the requests for one report, of which there are at most
// four.
const writeTimeout = 30 * time.Second

// compare takes no two reports for the same: each is a time to look at what
// others made of the object.
func compare(written, report *planner.GangReport, _ time.Time) objectwriter.Change {
	switch {
	case written == report:
		return objectwriter.Nothing
	case written == nil, written.Status.Phase != report.Status.Phase:
		return objectwriter.Urgent
	default:
		return objectwriter.Numbers
	}
}

// write makes a gang's object what report says. It returns the report that was
// written last.
func (w *Writer) write(ctx context.Context, written, report *planner.GangReport) (*planner.GangReport, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if err := w.bring(ctx, report); err != nil {
		return written, err
	}
	if !report.Keep {
		return nil, objectwriter.ErrGone // the gang, though maybe not its object
	}
	return report, nil
}

// bring makes the object, changes, deletes or leaves it.
func (w *Writer) bring(ctx context.Context, report *planner.GangReport) error {
	// 1. What is there?
	gang := &v1alpha1.Gang{}
	err := w.client.Get(ctx, client.ObjectKey{Namespace: report.Key.Namespace, Name: report.Key.Name}, gang)
	switch {
	case apierrors.IsNotFound(err):
		if gang, err = w.create(ctx, report); gang == nil {
			return err
		}
	case err != nil:
		return w.objects.Result("get", err)
	case gang.Labels[contract.ManagedByLabel] != contract.ManagedByTranche:
		// A person's.
	case !report.Keep && len(gang.OwnerReferences) == 0:
		return w.remove(ctx, gang)
	case report.Keep:
		// 2. What follows the members?
		if err := w.follow(ctx, gang, report); err != nil {
			return err
		}
	}
	// 3. How is it?
	return w.state(ctx, gang, report)
}

// create makes the object of a gang that nobody else has written one for. It
// returns nil without an error if there is to be none.
func (w *Writer) create(ctx context.Context, report *planner.GangReport) (*v1alpha1.Gang, error) {
	// Without a minCount there is no valid object, and 1 would be a lie that
	// somebody might believe: the members' events say what is missing.
	if !report.Keep || report.MinCount <= 0 {
		return nil, nil //nolint:nilnil // no object is the answer
	}
	gang := &v1alpha1.Gang{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: report.Key.Namespace, Name: report.Key.Name,
			Labels:          map[string]string{contract.ManagedByLabel: contract.ManagedByTranche},
			OwnerReferences: owners(report),
		},
		Spec: v1alpha1.GangSpec{MinCount: report.MinCount, Queue: report.Queue},
	}
	err := w.client.Create(ctx, gang)
	log := klog.FromContext(ctx).V(2).WithValues("gang", klog.KObj(gang))
	switch {
	case err == nil:
		log.Info("Gang object made", "minCount", report.MinCount)
		return gang, w.objects.Result("create", nil)
	case ending(err):
		return nil, nil //nolint:nilnil // its namespace ends, so it needs none
	case apierrors.IsInvalid(err):
		// Such as a PodGroup with a name longer than a Gang's may be. That will
		// not change.
		log.Info("Gang gets no object", "reason", err.Error())
		_ = w.objects.Result("create", err)
		return nil, nil //nolint:nilnil // see above
	case apierrors.IsNotFound(err):
		return nil, w.objects.Result("create", fmt.Errorf("%w: %w", objectwriter.ErrNoKind, err))
	default:
		return nil, w.objects.Result("create", err)
	}
}

// owners make the object end with the workload that its members are of. It
// neither manages the object nor waits for its end.
func owners(report *planner.GangReport) []metav1.OwnerReference {
	if report.Owner == nil {
		return nil
	}
	owner := *report.Owner
	owner.Controller, owner.BlockOwnerDeletion = new(false), new(false)
	return []metav1.OwnerReference{owner}
}

// follow changes what the system decides in an object that it made: its size,
// its queue, and whom it ends with. An owner is replaced, not added: the object of a
// workload that was made anew must not end with the old one.
func (w *Writer) follow(ctx context.Context, gang *v1alpha1.Gang, report *planner.GangReport) error {
	before := gang.DeepCopy()
	if report.MinCount > 0 {
		gang.Spec.MinCount = report.MinCount
	}
	if report.Queue != "" {
		gang.Spec.Queue = report.Queue
	}
	if wanted := owners(report); wanted != nil {
		gang.OwnerReferences = wanted
	}
	if equality.Semantic.DeepEqual(before, gang) {
		return nil
	}
	// With the version: the label that makes it ours may be gone by now.
	err := w.client.Patch(ctx, gang, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	return w.objects.Result("patch", err)
}

// remove deletes an object that the system made, if it still is as it was read.
func (w *Writer) remove(ctx context.Context, gang *v1alpha1.Gang) error {
	err := w.client.Delete(ctx, gang, client.Preconditions{UID: &gang.UID, ResourceVersion: &gang.ResourceVersion})
	if apierrors.IsNotFound(err) {
		return nil
	}
	klog.FromContext(ctx).V(2).Info("Gang object deleted: it has no members left", "gang", klog.KObj(gang))
	return w.objects.Result("delete", err)
}

// state writes the status, if it differs, and tells of what is new in it.
func (w *Writer) state(ctx context.Context, gang *v1alpha1.Gang, report *planner.GangReport) error {
	before := gang.Status.DeepCopy()
	gang.Status = statusOf(before, report, gang, w.clock.Now())
	if equality.Semantic.DeepEqual(before, &gang.Status) {
		return nil
	}
	after := gang.Status
	if err := w.objects.Result("update_status", w.client.Status().Update(ctx, gang)); err != nil {
		return err
	}
	w.tell(gang, before, &after)
	return nil
}

// ending says whether err is that the namespace is gone or about to go, with
// everything in it.
func ending(err error) bool {
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return true
	}
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	return details != nil && details.Kind == "namespaces"
}
