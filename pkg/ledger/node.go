package ledger

import (
	"cmp"
	"reflect"
	"slices"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

// node is the ledger's own, mutable state of one node.
type node struct {
	name    string
	version uint64
	// known is whether an inventory is in force.
	known  bool
	perGPU units.Shares
	// gpus are those of the inventory, in the order of their index.
	gpus []gpu
	// wiring is nil if all pairs of GPUs are as near to each other. It is replaced,
	// never written to.
	wiring *wiring
	// records are the claims on this node, sorted by UID. The slice is
	// replaced, never written to, since views share it.
	records []*Record
	// view is the last one made, nil after a change.
	view *NodeView
}

type gpu struct {
	facts           *contract.GPU
	class           *Class
	allocated, held units.Shares
	pods            int
}

func (g *gpu) free(perGPU units.Shares) units.Shares { return perGPU - g.allocated - g.held }

// sameInventory says whether inv is what the node was told last.
func (n *node) sameInventory(inv contract.Inventory) bool {
	facts, perGPU := usable(inv)
	return n.perGPU == perGPU && slices.EqualFunc(n.gpus, facts, func(g gpu, f *contract.GPU) bool {
		return reflect.DeepEqual(g.facts, f)
	})
}

// usable returns what of an inventory can be counted, in the order of index,
// then UUID: a UUID that appears again is left out, and a grain outside its
// bounds is brought within them. ParseInventory refuses both; the ledger only
// must not break on them.
func usable(inv contract.Inventory) ([]*contract.GPU, units.Shares) {
	facts := make([]*contract.GPU, 0, len(inv.GPUs))
	for i := range inv.GPUs {
		facts = append(facts, &inv.GPUs[i])
	}
	slices.SortStableFunc(facts, func(a, b *contract.GPU) int {
		return cmp.Or(cmp.Compare(a.UUID, b.UUID), cmp.Compare(a.Index, b.Index))
	})
	facts = slices.CompactFunc(facts, func(a, b *contract.GPU) bool { return a.UUID == b.UUID })
	slices.SortStableFunc(facts, func(a, b *contract.GPU) int { return cmp.Compare(a.Index, b.Index) })
	return facts, min(max(inv.SharesPerGPU, 1), units.MaxSharesPerGPU)
}

func (n *node) setInventory(inv contract.Inventory, class func(Class) *Class) {
	facts, perGPU := usable(inv)
	n.known, n.perGPU = true, perGPU
	n.gpus = make([]gpu, len(facts))
	for i, f := range facts {
		n.gpus[i].facts = f
		n.gpus[i].class = class(Class{f.Model, f.MemoryMiB, f.Isolation, perGPU})
	}
	for _, r := range n.records {
		n.count(r, 1)
	}
	n.wiring = wiringOf(facts)
	n.view = nil
}

func (n *node) forgetInventory() {
	n.known, n.perGPU, n.gpus, n.wiring, n.view = false, 0, nil, nil, nil
}

func (n *node) gpu(uuid contract.GPUUUID) *gpu {
	// A linear search: nodes have 16 GPUs at most, mostly 8.
	for i := range n.gpus {
		if n.gpus[i].facts.UUID == uuid {
			return &n.gpus[i]
		}
	}
	return nil
}

// admits says whether every GPU of r is known, healthy and has room for it
// once before is gone.
func (n *node) admits(r, before *Record) Refusal {
	for _, c := range r.Charges {
		g := n.gpu(c.GPU)
		switch {
		case g == nil:
			return GPUUnknown
		case !g.facts.Healthy:
			return GPUUnhealthy
		}
		free := g.free(n.perGPU)
		if before != nil && before.Node == n.name {
			free += before.On(c.GPU)
		}
		if c.Shares > free {
			return GPUFull
		}
	}
	return ""
}

func (n *node) add(r *Record) {
	at, _ := slices.BinarySearchFunc(n.records, r.Pod.UID, byUID)
	records := make([]*Record, 0, len(n.records)+1)
	records = append(records, n.records[:at]...)
	records = append(records, r)
	n.records = append(records, n.records[at:]...)
	n.count(r, 1)
	n.view = nil
}

func (n *node) remove(r *Record) {
	at, ok := slices.BinarySearchFunc(n.records, r.Pod.UID, byUID)
	if !ok {
		return
	}
	records := make([]*Record, 0, len(n.records)-1)
	records = append(records, n.records[:at]...)
	n.records = append(records, n.records[at+1:]...)
	n.count(r, -1)
	n.view = nil
}

// swap replaces a record by one that counts the same.
func (n *node) swap(before, after *Record) {
	at, ok := slices.BinarySearchFunc(n.records, before.Pod.UID, byUID)
	if !ok {
		return
	}
	n.records = slices.Clone(n.records)
	n.records[at] = after
}

// count adds (sign 1) or takes away (sign -1) what r charges. Charges of GPUs
// that the inventory does not list count when it lists them.
func (n *node) count(r *Record, sign int) {
	for _, c := range r.Charges {
		g := n.gpu(c.GPU)
		if g == nil {
			continue
		}
		g.pods += sign
		if r.State == Held {
			g.held += units.Shares(sign) * c.Shares
		} else {
			g.allocated += units.Shares(sign) * c.Shares
		}
	}
}
