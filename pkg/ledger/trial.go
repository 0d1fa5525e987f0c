package ledger

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/units"
)

// With returns n as a Ledger would show it once c's pod has been released here
// and then allocated as c says, whether or not that fits. It is for trying
// things out: n stays as it is and shares all that does not change with the
// result, whose Version is 0 since no ledger has it. c.Node counts only where n
// is nil.
func (n *NodeView) With(c Claim) *NodeView {
	t := n.trial(c.Node)
	r := &Record{Pod: c.Pod, Node: t.name, State: Allocated, Planned: sortedCharges(c.Charges)}
	r.Charges = r.Planned
	if c.Pod.UID == "" {
		return t
	}
	at, found := slices.BinarySearchFunc(t.records, c.Pod.UID, byUID)
	records := make([]*Record, 0, len(t.records)+1)
	records = append(records, t.records[:at]...)
	records = append(records, r)
	if found {
		t.count(t.records[at], -1)
		t.drop(t.records[at])
		at++
	}
	t.records = append(records, t.records[at:]...)
	t.count(r, 1)
	t.sum()
	return t
}

// Without returns n as a Ledger would show it once some pods have been
// released, with Version 0. If n has none of them it is n itself.
func (n *NodeView) Without(gone map[types.UID]bool) *NodeView {
	isGone := func(r *Record) bool { return gone[r.Pod.UID] }
	if n == nil || len(gone) == 0 || !slices.ContainsFunc(n.records, isGone) {
		return n
	}
	t := n.trial("")
	kept := make([]*Record, 0, len(t.records))
	for _, r := range t.records {
		if isGone(r) {
			t.count(r, -1)
			t.drop(r)
			continue
		}
		kept = append(kept, r)
	}
	t.records = kept
	if !t.known && len(kept) == 0 {
		return nil // as Ledger.Node of a node that nothing is known of
	}
	t.sum()
	return t
}

// trial returns a copy to change: its GPUs are its own, all else is shared and
// must be replaced rather than written to.
func (n *NodeView) trial(name string) *NodeView {
	if n == nil {
		return &NodeView{name: name}
	}
	t := *n
	t.version = 0
	t.gpus = slices.Clone(n.gpus)
	return &t
}

// count adds (sign 1) or takes away (sign -1) what r charges.
func (n *NodeView) count(r *Record, sign int) {
	for _, c := range r.Charges {
		for i := range n.gpus {
			g := &n.gpus[i]
			if g.Facts.UUID != c.GPU {
				continue
			}
			s := units.Shares(sign) * c.Shares
			g.Pods += sign
			g.Free -= s
			if r.State == Held {
				g.Held += s
			} else {
				g.Allocated += s
			}
		}
	}
}

// drop removes r from the holds, if it is one.
func (n *NodeView) drop(r *Record) {
	if at := slices.Index(n.holds, r); at >= 0 {
		n.holds = slices.Delete(slices.Clone(n.holds), at, at+1)
	}
}

// sum computes what is kept of all GPUs together.
func (n *NodeView) sum() {
	n.maxFree, n.free, n.capacity, n.wholly = 0, 0, 0, 0
	for i := range n.gpus {
		g := &n.gpus[i]
		if !g.Healthy {
			continue
		}
		n.maxFree = max(n.maxFree, g.Free)
		n.free += g.Free
		n.capacity += n.perGPU
		if g.WhollyFree() {
			n.wholly++
		}
	}
}
