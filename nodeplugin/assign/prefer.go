package assign

import (
	"context"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/tranche-dev/tranche/nodeplugin/slice"
	"github.com/tranche-dev/tranche/pkg/contract"
)

// pending is an answer to GetPreferredAllocation.
type pending struct {
	resource  string
	size      int
	candidate candidate
	// ids are what was preferred, sorted; empty if refusal says why nothing was.
	ids     []contract.DeviceID
	refusal *Refusal
	// view is what the answer was based on.
	view view
	at   time.Time
}

// The kubelet calls Allocate right after GetPreferredAllocation. What is older
// belongs to an admission that it gave up. Pods that were refused are Failed in
// all lists long before rejectedFor is over.
const (
	pendingFor  = 10 * time.Second
	maxPending  = 16
	rejectedFor = time.Minute
)

// Preferred returns the devices that the kubelet should give to whom it asks
// for, or none: then it takes any, and Allocate says what is wrong. It never
// fails, for a failure would make the kubelet lose devices
// (kubernetes/kubernetes#130145).
func (a *Assigner) Preferred(ctx context.Context, resource string, available, must []string, size int) []string {
	log := klog.FromContext(ctx).WithValues("resource", resource, "size", size)
	if err := a.take(ctx); err != nil {
		return nil
	}
	defer a.release()
	ids, outcome := a.preferred(ctx, resource, available, must, size)
	a.metrics.preferred(resource, outcome)
	log.V(2).Info("Preferred devices", "outcome", outcome, "devices", summary(ids))
	return slice.Strings(ids)
}

func (a *Assigner) preferred(ctx context.Context, resource string, available, must []string, size int) ([]contract.DeviceID, Outcome) {
	log := klog.FromContext(ctx)
	q := question{resource: resource, size: size}
	var err error
	if q.available, err = slice.Parse(available); err == nil {
		q.must, err = slice.Parse(must)
	}
	if err != nil {
		log.Error(err, "Kubelet offers devices that are not ours", "resource", resource)
		return nil, OutcomeForeignDevices
	}
	v, err := a.look(ctx)
	if err != nil {
		log.Error(err, "No list of pods to find out whose devices these are", "resource", resource)
		a.remember(pending{resource: resource, size: size, refusal: noPods(err)})
		return nil, OutcomeNoPods
	}
	c, refusal := a.identify(ctx, v, q)
	if refusal != nil {
		a.remember(pending{resource: resource, size: size, refusal: refusal})
		return nil, OutcomeUnknownPod
	}
	p := pending{resource: resource, size: size, candidate: c, view: v}
	defer func() { a.remember(p) }()
	if p.refusal = a.planFits(c, size, resource); p.refusal != nil {
		return nil, OutcomeNoPlan
	}
	ids, shortage := slice.Choose(gpusOf(c.pod.Plan[c.container]), free(c, v.st, q), q.must, size)
	if shortage != nil {
		// Who is in the way says more than how many devices are left.
		if p.refusal = a.checkCapacity(c, c.pod.Plan[c.container], v.st); p.refusal == nil {
			p.refusal = tooFew(c, resource, *shortage)
		}
		return nil, OutcomeShort
	}
	p.ids = ids
	return ids, OutcomePlanned
}

// remember keeps p for the Allocate that follows, and forgets what is stale.
func (a *Assigner) remember(p pending) {
	p.at = a.opts.Clock.Now()
	a.pending = slices.DeleteFunc(a.pending, func(o pending) bool { return p.at.Sub(o.at) > pendingFor })
	if len(a.pending) >= maxPending {
		a.pending = slices.Delete(a.pending, 0, 1)
	}
	a.pending = append(a.pending, p)
}
