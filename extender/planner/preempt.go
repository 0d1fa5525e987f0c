package planner

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/units"
)

// Preempt says on which nodes pod would fit once the given victims are gone, and
// these may go.
func (p *Planner) Preempt(ctx context.Context, pod *corev1.Pod, victims map[string][]types.UID) map[string]bool {
	keep := make(map[string]bool, len(victims))
	v := p.view(pod)
	snapshot := p.snapshot.Load()
	for node, uids := range victims {
		switch {
		case v == nil:
			keep[node] = true
		case unplaceable(v) != "":
		case p.passesThrough(snapshot, v, node):
			keep[node] = true
		default:
			gone := make(map[types.UID]bool, len(uids)+1)
			for _, uid := range uids {
				gone[uid] = true
			}
			gone[v.UID] = true
			keep[node] = p.query(v).Check(without(snapshot.Ledger.Node(node), gone)) == ""
		}
	}
	if v != nil {
		// Preemption is rare, so the owner may be asked. Without an answer nobody
		// is evicted.
		spared, err := ask(ctx, p, func(_ context.Context, s *state, _ time.Time) map[string]bool {
			ok := make(map[string]bool, len(victims))
			for node, uids := range victims {
				ok[node] = s.spares(v, uids)
			}
			return ok
		})
		for node := range keep {
			keep[node] = keep[node] && err == nil && spared[node]
		}
	}
	klog.FromContext(ctx).V(2).Info("Preemption asked for", "pod", klog.KObj(pod), "nodes", len(victims), "kept", countTrue(keep))
	return keep
}

func countTrue(m map[string]bool) int {
	n := 0
	for _, v := range m {
		if v {
			n++
		}
	}
	return n
}

// without returns n as it would be without some pods.
func without(n *ledger.NodeView, gone map[types.UID]bool) *ledger.NodeView {
	return scratch(n, gone).Node(n.Name())
}

// scratch returns a ledger of one node to try things on: all its charges but
// those of the pods in gone, as if one pod had them all.
func scratch(n *ledger.NodeView, gone map[types.UID]bool) *ledger.Ledger {
	l := ledger.New()
	if !n.Known() {
		return l
	}
	inv := contract.Inventory{SharesPerGPU: n.SharesPerGPU()}
	for i := range n.GPUs() {
		inv.GPUs = append(inv.GPUs, *n.GPUs()[i].Facts)
	}
	l.SetNode(n.Name(), inv)
	rest := map[contract.GPUUUID]units.Shares{}
	for _, r := range n.Claims() {
		if gone[r.Pod.UID] {
			continue
		}
		for _, c := range r.Charges {
			rest[c.GPU] += c.Shares
		}
	}
	l.Allocate(ledger.Claim{Pod: ledger.Pod{UID: restUID}, Node: n.Name(), Charges: rest})
	return l
}

// restUID stands for all pods of a node at once. No real UID contains a space.
const restUID types.UID = "all pods"
