package bind

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/tranche-dev/tranche/extender/planner"
	"github.com/tranche-dev/tranche/pkg/ledger"
)

// end is an eviction that the planner wants.
type end struct {
	reason, message string
	asked           time.Time
	// party is not nil for a pod that goes together with others or not at all.
	party *party
}

// party is some pods that go together.
type party struct {
	pods []ledger.Pod
	ask  sync.Once
	// refused says that a budget protects one of them now.
	refused bool
}

const (
	// evictWithin is how long one wish for an eviction is tried: a budget may
	// forbid it for days. The planner wishes again while it wants it.
	evictWithin = 5 * time.Minute
	// mostEvicted bounds how many evicted pods are remembered, so that a pod
	// that takes its time to end is told of once.
	mostEvicted = 10000
)

// Evict implements planner.Effects.
func (e *Effects) Evict(pod ledger.Pod, reason, message string) {
	e.mu.Lock()
	e.ends[pod] = &end{reason: reason, message: message, asked: e.opts.Clock.Now()}
	e.mu.Unlock()
	e.evictions.Add(pod)
}

// EvictTogether implements planner.Effects.
func (e *Effects) EvictTogether(evictions []planner.Eviction) {
	p := &party{}
	e.mu.Lock()
	for _, one := range evictions {
		p.pods = append(p.pods, one.Pod)
		e.ends[one.Pod] = &end{reason: one.Reason, message: one.Message, asked: e.opts.Clock.Now(), party: p}
	}
	e.mu.Unlock()
	for _, one := range evictions {
		e.evictions.Add(one.Pod)
	}
}

// allowed says whether a budget protects none of them, asking once for all: about
// each budget how many it allows, and about each pod whether it may go. What
// happens between the question and the evictions nobody can know; each is asked
// for under the budgets again.
func (e *Effects) allowed(ctx context.Context, p *party, t truth) bool {
	p.ask.Do(func() {
		over, err := e.overBudget(ctx, p)
		if err != nil {
			// The dry run goes without.
			klog.FromContext(ctx).Error(err, "Victims are not counted against their disruption budgets")
		}
		if over != nil {
			p.refused = true
			t.EvictionRefused(ctx, over.why, over.pods...)
			return
		}
		var why string
		var kept []types.UID
		for _, pod := range p.pods {
			if err := e.request(ctx, pod, metav1.DryRunAll); apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause) {
				kept = append(kept, pod.UID)
				why = cmp.Or(why, keptText(pod, err))
			}
		}
		if len(kept) > 0 {
			p.refused = true
			t.EvictionRefused(ctx, why, kept...)
		}
	})
	return !p.refused
}

// keptText says which budget keeps a pod, in the words of the API server.
func keptText(pod ledger.Pod, err error) string {
	text := fmt.Sprintf("a PodDisruptionBudget keeps pod %s/%s", pod.Namespace, pod.Name)
	if cause, ok := apierrors.StatusCause(err, policyv1.DisruptionBudgetCause); ok && cause.Message != "" {
		text += ": " + cause.Message
	}
	return text
}

// request asks the API server for a pod's eviction.
func (e *Effects) request(ctx context.Context, pod ledger.Pod, dryRun ...string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return e.clients.Main.PolicyV1().Evictions(pod.Namespace).Evict(ctx, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: new(pod.UID)}, DryRun: dryRun},
	})
}

// forgetEnd drops a wish, unless there is a newer one.
func (e *Effects) forgetEnd(pod ledger.Pod, wanted *end) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ends[pod] == wanted {
		delete(e.ends, pod)
	}
}

// Spare implements planner.Effects.
func (e *Effects) Spare(pod ledger.Pod) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.ends, pod)
}

// evict asks for the pod's end once. Budgets answer with TooManyRequests, which
// is like any other failure: it may pass.
func (e *Effects) evict(ctx context.Context, pod ledger.Pod, t truth) error {
	e.mu.Lock()
	wanted := e.ends[pod]
	e.mu.Unlock()
	if wanted == nil {
		return nil
	}
	if wanted.party != nil && !e.allowed(ctx, wanted.party, t) {
		e.forgetEnd(pod, wanted)
		return nil
	}
	err := e.request(ctx, pod)
	log := klog.FromContext(ctx).WithValues("pod", klog.KRef(pod.Namespace, pod.Name), "why", wanted.reason)
	count := func(result string) { e.metrics.Evictions.WithLabelValues(wanted.reason, result).Inc() }
	switch {
	case err == nil:
		count("ok")
		log.V(2).Info("Evicted")
		if known, _ := e.evicted.ContainsOrAdd(pod.UID, struct{}{}); !known {
			e.Warn(pod, wanted.reason, wanted.message)
		}
	case ctx.Err() != nil:
		return nil //nolint:nilerr // the program ends
	case e.gone(ctx, pod, err):
		count("gone")
	case e.opts.Clock.Since(wanted.asked) >= evictWithin:
		count("given_up")
		log.Info("Not evicted for a while; it is tried again if it is still wanted", "reason", err.Error())
	default:
		if apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause) {
			t.EvictionRefused(ctx, keptText(pod, err), pod.UID) // perhaps another pod will do
		}
		count("failed")
		log.V(2).Info("Not evicted yet", "reason", err.Error())
		return fmt.Errorf("evict pod: %w", err)
	}
	e.forgetEnd(pod, wanted)
	return nil
}
