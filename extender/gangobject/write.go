package gangobject

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tranche-dev/tranche/extender/planner"
	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/contract"
)

// writeTimeout bounds the requests for one report, of which there are at most
// four.
const writeTimeout = 30 * time.Second

// write makes a gang's object what report says.
func (w *Writer) write(ctx context.Context, report *planner.GangReport) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	// 1. What is there?
	gang := &v1alpha1.Gang{}
	err := w.client.Get(ctx, client.ObjectKey{Namespace: report.Key.Namespace, Name: report.Key.Name}, gang)
	switch {
	case apierrors.IsNotFound(err):
		if gang, err = w.create(ctx, report); gang == nil {
			return err
		}
	case err != nil:
		return w.result("get", err)
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
		return gang, w.result("create", nil)
	case ending(err):
		return nil, nil //nolint:nilnil // its namespace ends, so it needs none
	case apierrors.IsInvalid(err):
		// Such as a PodGroup with a name longer than a Gang's may be. That will
		// not change.
		log.Info("Gang gets no object", "reason", err.Error())
		_ = w.result("create", err)
		return nil, nil //nolint:nilnil // see above
	default:
		return nil, w.result("create", err)
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
	return w.result("patch", raced(err))
}

// remove deletes an object that the system made, if it still is as it was read.
func (w *Writer) remove(ctx context.Context, gang *v1alpha1.Gang) error {
	err := w.client.Delete(ctx, gang, client.Preconditions{UID: &gang.UID, ResourceVersion: &gang.ResourceVersion})
	if apierrors.IsNotFound(err) {
		return nil
	}
	klog.FromContext(ctx).V(2).Info("Gang object deleted: it has no members left", "gang", klog.KObj(gang))
	return w.result("delete", err)
}

// state writes the status, if it differs, and tells of what is new in it.
func (w *Writer) state(ctx context.Context, gang *v1alpha1.Gang, report *planner.GangReport) error {
	before := gang.Status.DeepCopy()
	gang.Status = statusOf(before, report, gang, w.clock.Now())
	if equality.Semantic.DeepEqual(before, &gang.Status) {
		return nil
	}
	after := gang.Status
	if err := w.result("update_status", raced(w.client.Status().Update(ctx, gang))); err != nil {
		return err
	}
	w.tell(gang, before, &after)
	return nil
}

// raced makes the end of an object that was just there a conflict: it is to be
// looked at anew.
func raced(err error) error {
	if apierrors.IsNotFound(err) {
		return apierrors.NewConflict(v1alpha1.GroupVersion.WithResource("gangs").GroupResource(), "", err)
	}
	return err
}
