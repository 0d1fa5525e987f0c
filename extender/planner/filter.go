package planner

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/placement"
)

// Verdict is the answer of Filter.
type Verdict struct {
	// Reasons[i] belongs to the i-th node asked about; empty: it passes. Nil
	// if all pass, as mostly: read them with Reason.
	Reasons []Reason
	// Passed is how many pass.
	Passed int
}

// Reason is why the i-th node asked about is refused, empty if it passes.
func (v *Verdict) Reason(i int) Reason {
	if v.Reasons == nil {
		return ""
	}
	return v.Reasons[i]
}

// refuse gives the i-th of n nodes a reason.
func (v *Verdict) refuse(i int, reason Reason, n int) {
	if v.Reasons == nil {
		v.Reasons = make([]Reason, n)
	}
	v.Reasons[i] = reason
}

// Refused says whether no node passes.
func (v Verdict) Refused() bool { return v.Passed == 0 }

// Filter says which nodes can take pod beside all charges of others. It reads
// a snapshot; only if exactly one node is left does it ask the owner for a
// hold there, and if none is left it leaves a note that the pod waits.
func (p *Planner) Filter(ctx context.Context, pod *corev1.Pod, nodes []string) (Verdict, error) {
	v := p.view(pod)
	if v == nil {
		return Verdict{Passed: len(nodes)}, nil
	}
	if v.Member != nil && p.opts.Gangs {
		return p.filterMember(ctx, v, nodes)
	}
	if !v.UsesGPU && v.Problem == "" {
		return Verdict{Passed: len(nodes)}, nil
	}
	snapshot := p.snapshot.Load()
	verdict, only := p.judge(snapshot, v, nodes)
	log := klog.FromContext(ctx).V(2)
	if verdict.Passed == 1 && !p.passesThrough(snapshot, v, nodes[only]) {
		reason, err := ask(ctx, p, func(_ context.Context, s *state, now time.Time) Reason { return s.hold(v, nodes[only], now) })
		if err != nil {
			return Verdict{}, err
		}
		if reason != "" {
			verdict.refuse(only, reason, len(nodes))
			verdict.Passed = 0
		}
	}
	if verdict.Refused() && len(nodes) > 0 {
		reason := decisive(verdict.Reasons)
		log.Info("Refused", "pod", klog.KObj(pod), "nodes", len(nodes), "reason", reason)
		return verdict, p.send(ctx, func(_ context.Context, s *state, now time.Time) func() {
			s.refused(v, reason, nodes, snapshot.Ledger.Version(), now)
			return nil
		})
	}
	log.Info("Filtered", "pod", klog.KObj(pod), "nodes", len(nodes), "passed", verdict.Passed)
	return verdict, nil
}

// judge fills in the verdict from a snapshot; only is the last node that
// passes.
func (p *Planner) judge(snapshot *Snapshot, v *view.Pod, nodes []string) (verdict Verdict, only int) {
	if reason := unplaceable(v); reason != "" {
		for i := range nodes {
			verdict.refuse(i, reason, len(nodes))
		}
		return verdict, -1
	}
	decided, isDecided := p.decided.Load(v.UID)
	if at, ok := p.admitted.Load(v.UID); ok && !isDecided {
		if a, ok := at.(*admitted); ok && a.only {
			decided, isDecided = a.node, true
		}
	}
	if !isDecided && !p.passes(v) {
		for i := range nodes {
			verdict.refuse(i, QueueWaits, len(nodes))
		}
		return verdict, -1
	}
	query := p.query(v)
	only = -1
	for i, name := range nodes {
		var reason Reason
		if isDecided {
			if name != decided {
				reason = Decided
			}
		} else {
			reason = p.check(snapshot, query, v, name)
		}
		if reason == "" {
			verdict.Passed++
			only = i
		} else {
			verdict.refuse(i, reason, len(nodes))
		}
	}
	return verdict, only
}

// unplaceable says why no node at all can take v, if so.
func unplaceable(v *view.Pod) Reason {
	switch {
	case v.Deleting || v.Ended:
		return Deleting
	case v.Problem != "":
		return Invalid
	default:
		return ""
	}
}

// check asks one node. A node whose GPUs are another device plugin's business
// takes whole-GPU pods: the scheduler's own count is all there is to go by.
func (p *Planner) check(snapshot *Snapshot, query *placement.Query, v *view.Pod, name string) Reason {
	reason := query.Check(snapshot.Ledger.Node(name))
	if reason == placement.NoInventory && p.passesThrough(snapshot, v, name) {
		return ""
	}
	return reason
}

func (p *Planner) passesThrough(snapshot *Snapshot, v *view.Pod, name string) bool {
	return snapshot.foreign[name] && v.WholeOnly()
}

// decisive is the reason that a pod waits for.
func decisive(reasons []Reason) Reason {
	var t tally
	for _, r := range reasons {
		t.add(r)
	}
	return t.best
}
