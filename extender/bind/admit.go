package bind

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"

	"github.com/tranche-dev/tranche/extender/planner"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
)

// intent is what the planner last wanted of a pod.
type intent struct {
	// admission is nil if the pod's nomination shall be taken back.
	admission *planner.Admission
	asked     time.Time
	// nominated says that the nomination is done with, or given up.
	nominated bool
}

// Admit implements planner.Effects.
func (e *Effects) Admit(admissions []planner.Admission) {
	now := e.opts.Clock.Now()
	e.mu.Lock()
	for _, a := range admissions {
		e.intents[a.Pod] = &intent{admission: &a, asked: now}
	}
	e.mu.Unlock()
	for _, a := range admissions {
		e.admissions.Add(a.Pod)
	}
}

// Withdraw implements planner.Effects. An admission that waits is off; one that
// is on its way ends before the nomination is taken back, since a queue hands
// out no item twice at a time.
func (e *Effects) Withdraw(pod ledger.Pod) {
	e.mu.Lock()
	if i := e.intents[pod]; i != nil && i.admission != nil {
		e.metrics.Admissions.WithLabelValues("withdrawn").Inc()
	}
	e.intents[pod] = &intent{asked: e.opts.Clock.Now()}
	e.mu.Unlock()
	e.admissions.Add(pod)
}

// complainAfter is how often something that is tried for ever fails before an
// operator hears of it: 200 ms doubled six times are 12 s.
const complainAfter = 6

// fulfil does what is wanted of a pod. It is tried until it has happened: a
// member that was forgotten would hold up its gang for ever.
func (e *Effects) fulfil(ctx context.Context, pod ledger.Pod, limiter flowcontrol.RateLimiter) error {
	e.mu.Lock()
	i := e.intents[pod]
	e.mu.Unlock()
	if i == nil {
		return nil // an earlier item of the queue did it
	}
	err := e.fulfilIntent(ctx, pod, i, limiter)
	gone := err != nil && e.gone(ctx, pod, err)
	switch {
	case ctx.Err() != nil:
		return err // nothing is tried any more
	case err == nil || gone:
		e.done(pod, i, gone)
		return nil
	case !e.current(pod, i):
		return nil // the newer intent is in the queue
	}
	if i.admission != nil {
		e.metrics.Admissions.WithLabelValues("failed").Inc()
	}
	log := klog.FromContext(ctx).WithValues("pod", klog.KRef(pod.Namespace, pod.Name), "admit", i.admission != nil)
	if e.admissions.NumRequeues(pod) == complainAfter {
		log.Error(err, "Pod could not be admitted; it is tried again until that succeeds")
	} else {
		log.V(2).Info("Pod could not be admitted yet", "reason", err.Error())
	}
	return err
}

// fulfilIntent makes the requests that are left to be made.
func (e *Effects) fulfilIntent(ctx context.Context, pod ledger.Pod, i *intent, limiter flowcontrol.RateLimiter) error {
	if i.admission == nil {
		if err := limiter.Wait(ctx); err != nil {
			return err
		}
		return e.nominate(ctx, pod, nil)
	}
	// 1. The nomination lets the scheduler keep the place free for the pod. It
	// is a help only: the holds are what counts.
	if i.admission.Node != "" && !i.nominated {
		if err := limiter.Wait(ctx); err != nil {
			return err
		}
		if err := e.nominate(ctx, pod, i.admission.Node); err != nil {
			if e.gone(ctx, pod, err) {
				e.metrics.Nominations.WithLabelValues("gone").Inc()
				return err
			}
			e.metrics.Nominations.WithLabelValues("failed").Inc()
			klog.FromContext(ctx).V(2).Info("Not nominated", "pod", klog.KRef(pod.Namespace, pod.Name), "node", i.admission.Node, "reason", err.Error())
		} else {
			e.metrics.Nominations.WithLabelValues("ok").Inc()
		}
		i.nominated = true
	}
	// 2. Hand it over, unless the planner thinks otherwise by now.
	if err := limiter.Wait(ctx); err != nil {
		return err
	}
	if !e.current(pod, i) {
		return nil
	}
	if i.admission.Gated {
		return e.lift(ctx, pod)
	}
	return e.retry(ctx, e.clients.Admission, pod, i.admission.Version)
}

// nominate writes the pod's nominated node; nil takes it back.
func (e *Effects) nominate(ctx context.Context, pod ledger.Pod, node any) error {
	return patch(ctx, e.clients.Admission, pod, types.MergePatchType, map[string]any{
		"status": map[string]any{"nominatedNodeName": node},
	}, "status")
}

// lift takes our gate off the pod, and no other.
func (e *Effects) lift(ctx context.Context, pod ledger.Pod) error {
	return patch(ctx, e.clients.Admission, pod, types.StrategicMergePatchType, map[string]any{
		"spec": map[string]any{"schedulingGates": []map[string]string{{"$patch": "delete", "name": contract.AdmissionGate}}},
	})
}

// current says whether i is still what is wanted of the pod.
func (e *Effects) current(pod ledger.Pod, i *intent) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.intents[pod] == i
}

// done ends i, unless something else is wanted meanwhile.
func (e *Effects) done(pod ledger.Pod, i *intent, gone bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.intents[pod] != i {
		return
	}
	delete(e.intents, pod)
	switch {
	case i.admission == nil:
	case gone:
		e.metrics.Admissions.WithLabelValues("gone").Inc()
	default:
		e.metrics.Admissions.WithLabelValues("ok").Inc()
		e.metrics.AdmissionDuration.Observe(max(e.opts.Clock.Since(i.asked), 0).Seconds())
	}
}
