package placement

import (
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/units"
)

// verdict is what a class of GPUs means to a request, whoever is on them.
type verdict struct {
	class *ledger.Class
	// model and isolated say whether the request allows the class; sensible
	// that its memory is a number one can count with.
	model, isolated, sensible bool
	// need is what each item takes of such a GPU.
	need []units.Shares
	// together is, per number of GPUs of a node that are all of this class,
	// search.explainTogether's answer.
	together map[int]Reason
}

// suitability says how far one GPU gets before its free shares matter.
type suitability struct {
	model, isolated, healthy bool
}

func (f suitability) all() bool { return f.model && f.isolated && f.healthy }

// verdict returns the verdict on a class, remembered from the first time. The
// pointer nearly always tells; views of another ledger, such as one made to try
// something out, have other pointers to equal classes.
func (q *Query) verdict(c *ledger.Class) *verdict {
	for i := range q.verdicts { // a cluster has a handful
		if q.verdicts[i].class == c {
			return &q.verdicts[i]
		}
	}
	for i := range q.verdicts {
		if *q.verdicts[i].class == *c {
			return &q.verdicts[i]
		}
	}
	v := verdict{
		class:    c,
		model:    q.req.AllowsModel(c.Model),
		isolated: !q.req.RequireIsolation || c.Isolation.Enforced(),
		sensible: c.MemoryMiB > 0 && c.MemoryMiB <= units.MaxMemory,
	}
	for i := range q.items {
		v.need = append(v.need, q.items[i].need(c.MemoryMiB, c.SharesPerGPU))
	}
	q.verdicts = append(q.verdicts, v)
	return &q.verdicts[len(q.verdicts)-1]
}

// quick answers by the node's sums, without a look at its GPUs, as the search
// and explain would. It can do so (ok) for one item on a node whose GPUs are
// all alike, healthy and not held by the pod itself: nearly always.
func (q *Query) quick(n *ledger.NodeView) (reason Reason, ok bool) {
	class := n.Class()
	if len(q.items) != 1 || class == nil || n.HeldBy(q.opts.Without) != nil {
		return "", false
	}
	v, it, gpus := q.verdict(class), &q.items[0], len(n.GPUs())
	need := v.need[0]
	switch {
	case !v.sensible:
		return "", false
	case !v.model:
		return NoSuchModel, true
	case gpus >= it.count && !v.isolated:
		return NoIsolation, true
	case v.isolated && need > n.SharesPerGPU():
		return TooBig, true
	case gpus < it.count:
		return TooFewGPUs, true
	case it.count == 1 && need <= n.MaxFree(), it.count <= n.WhollyFree():
		return "", true
	case it.count > 1 && need <= n.MaxFree() && need < n.SharesPerGPU():
		return "", false // how many have room, only a look at them tells
	default:
		return it.noRoom(), true
	}
}
