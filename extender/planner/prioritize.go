package planner

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/gang"
	"github.com/tranche-dev/tranche/pkg/placement"
)

// Prioritize rates nodes for pod, 0 to 10, and holds the pod's GPUs on the one
// node that gets 10. priorities[i] belongs to nodes[i]. Nodes of another device
// plugin get 0: nothing is known of their GPUs.
func (p *Planner) Prioritize(ctx context.Context, pod *corev1.Pod, nodes []string) ([]int64, error) {
	priorities := make([]int64, len(nodes))
	v := p.view(pod)
	if v == nil || !v.UsesGPU && v.Problem == "" && (v.Member == nil || !p.opts.Gangs) {
		return p.prioritizeCPUOnly(pod, nodes), nil
	}
	if unplaceable(v) != "" {
		return priorities, nil
	}
	if node, ok := p.decided.Load(v.UID); ok {
		for i, name := range nodes {
			if name == node {
				priorities[i] = placement.MaxPriority
			}
		}
		return priorities, nil
	}
	if v.Member != nil && p.opts.Gangs {
		return p.prioritizeMember(pod, nodes), nil
	}
	snapshot := p.snapshot.Load()
	fits := make([]string, 0, len(nodes))
	scores := make([]int64, 0, len(nodes))
	at := make([]int, 0, len(nodes))
	known := p.ratingsOf(shapeText(v, v.Request), v.Request, p.policy(v), v.Needs.MilliCPU)
	known.rate(snapshot, nodes, v.UID, p.ownRoom(v.UID), p.query(v), func(i int, score int64) {
		fits, scores, at = append(fits, nodes[i]), append(scores, score), append(at, i)
	})
	best := placement.Best(fits, scores)
	if best < 0 {
		return priorities, nil
	}
	for i, priority := range placement.Priorities(fits, scores) {
		priorities[at[i]] = priority
	}
	reason, err := ask(ctx, p, func(_ context.Context, s *state, now time.Time) Reason {
		reason := s.hold(v, fits[best], now)
		if _, held := s.ledger.Get(v.UID); reason == QueueWaits && !held {
			s.refused(v, reason, fits, s.ledger.Version(), now)
		}
		return reason
	})
	if err != nil {
		return nil, err
	}
	// Without a hold the pod is planned when it is bound: another pod was
	// quicker, and the scheduler may still find room beside it.
	klog.FromContext(ctx).V(2).Info("Prioritized", "pod", klog.KObj(pod), "nodes", len(nodes), "best", fits[best], "held", reason == "")
	return priorities, nil
}

// prioritizeCPUOnly rates nodes for a pod without GPUs. Those without GPUs are all
// the best, and which of them is the scheduler's business; of the others, the one
// where the pod keeps least from pods with GPUs, by what least-waste has learned,
// whatever places those. Where GPUs are another device plugin's, nothing is known.
func (p *Planner) prioritizeCPUOnly(pod *corev1.Pod, nodes []string) []int64 {
	priorities := make([]int64, len(nodes))
	snapshot := p.snapshot.Load()
	milliCPU := gang.RequestsOf(pod).MilliCPU
	var with []string
	var scores []int64
	var at []int
	best := int64(placement.MaxPriority)
	known := p.ratingsOf(fmt.Sprint("cpu ", milliCPU), contract.Request{}, p.policyNamed(contract.PlacementLeastWaste), milliCPU)
	known.rate(snapshot, nodes, pod.UID, p.ownRoom(pod.UID), nil, func(i int, score int64) {
		with, scores, at = append(with, nodes[i]), append(scores, score), append(at, i)
	})
	for i, next := 0, 0; i < len(nodes); i++ {
		switch {
		case next < len(at) && at[next] == i:
			next++
		case !snapshot.foreign[nodes[i]]:
			priorities[i], best = placement.MaxPriority, placement.MaxPriority-1
		}
	}
	for i, priority := range placement.Priorities(with, scores) {
		priorities[at[i]] = min(priority, best)
	}
	return priorities
}
