package bind

import (
	"context"
	"fmt"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/tranche-dev/tranche/pkg/ledger"
)

// end is an eviction that the planner wants.
type end struct {
	reason, message string
	asked           time.Time
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
	e.ends[pod] = &end{reason, message, e.opts.Clock.Now()}
	e.mu.Unlock()
	e.evictions.Add(pod)
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
	calling, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := e.clients.Main.PolicyV1().Evictions(pod.Namespace).Evict(calling, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: new(pod.UID)}},
	})
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
		return nil
	case e.gone(ctx, pod, err):
		count("gone")
	case e.opts.Clock.Since(wanted.asked) >= evictWithin:
		count("given_up")
		log.Info("Not evicted for a while; it is tried again if it is still wanted", "reason", err.Error())
	default:
		if apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause) {
			t.EvictionRefused(ctx, pod.UID) // perhaps another pod will do
		}
		count("failed")
		log.V(2).Info("Not evicted yet", "reason", err.Error())
		return fmt.Errorf("evict pod: %w", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ends[pod] == wanted {
		delete(e.ends, pod)
	}
	return nil
}
