package placement

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/units"
)

// A search gives up after it has tried so many GPUs on one node, so that a pod
// with many odd containers cannot hold up others: maxSteps take some hundred
// microseconds. Of random pods of up to eight containers that fill nodes of 4
// to 16 GPUs to the last share, one in ten thousand needs more. Larger pods get
// fewSteps, which is plenty where there is some slack. explainSteps suffice to
// tell one reason from another.
const (
	maxSteps     = 2000
	manyItems    = 8
	fewSteps     = 500
	explainSteps = 250
)

// Options says how a request is placed. The zero value places by Binpack.
type Options struct {
	// Policy is Binpack if nil. The request's own wish is for the caller to
	// apply: For(req.Placement).
	Policy Policy
	// Without is the pod itself, if it may hold something already: its holds
	// do not count against it.
	Without types.UID
	// PerGPU is the grain that the request was parsed with; nodes with another
	// are refused. Zero accepts any.
	PerGPU units.Shares
	// MilliCPU is what the pod requests of processors: no matter of fitting here,
	// but of the policy's.
	MilliCPU int64
}

// Room is what a node has free besides its GPUs, as far as policies care.
type Room struct {
	// MilliCPU is without the pod.
	MilliCPU int64
	// Known says whether that is known. If not, the policy goes by GPUs alone.
	Known bool
}

// CPU is the Room of a node with so many free thousandths of processors.
func CPU(milli int64) Room { return Room{MilliCPU: milli, Known: true} }

// Query is a request prepared for asking many nodes. It reuses its memory from
// node to node, so that Check and Score allocate nothing once it has seen the
// biggest node. One goroutine may use it at a time.
type Query struct {
	req       contract.Request
	opts      Options
	malformed bool
	// items are what must find room: one per demand, or one for all of them
	// together if SameGPUs.
	items    []item
	byMemory bool
	// verdicts remember what a class of GPUs means to the request.
	verdicts []verdict
	search   search
}

// item is what needs count different GPUs, and room for demands on each.
type item struct {
	demands  []contract.Demand
	count    int
	byMemory bool
	whole    bool
}

// New prepares req, which must not be changed while the Query is used.
func New(req contract.Request, opts Options) *Query {
	if opts.Policy == nil {
		opts.Policy = Binpack
	}
	q := &Query{req: req, opts: opts}
	names := make(map[string]bool, len(req.Demands))
	for i, d := range req.Demands {
		ok := d.Count >= 1 && (d.Whole || d.Memory > 0 || d.Shares > 0) && d.Memory >= 0 && !names[d.Name]
		if !ok {
			q.malformed = true
		}
		names[d.Name] = true
		if !req.SameGPUs || i == 0 {
			q.items = append(q.items, item{})
		}
		it := &q.items[len(q.items)-1]
		it.demands = append(it.demands, d)
		it.count = max(it.count, d.Count)
		it.byMemory = it.byMemory || d.Memory > 0
		it.whole = it.whole || d.Whole
		q.byMemory = q.byMemory || d.Memory > 0
	}
	return q
}

// need is what the item takes of one GPU: contract.Plan.Charges' rule for
// containers that all sit on it. More than perGPU if it can never fit.
func (it *item) need(gpu units.MiB, perGPU units.Shares) units.Shares {
	var running, peak units.Shares
	for i := range it.demands {
		d := &it.demands[i]
		s := perGPU + 1
		switch {
		case d.Whole:
			s = perGPU
		case d.Memory > 0:
			if d.Memory <= gpu {
				s = d.SharesOn(gpu, perGPU)
			}
		default:
			s = min(d.Shares, s)
		}
		if d.Role == contract.RoleInit {
			peak = max(peak, running+s)
			continue
		}
		running += s
	}
	return max(peak, running)
}

// Check says whether the pod fits on the node, and if not, why.
func (q *Query) Check(n *ledger.NodeView) Reason {
	return q.run(n, Room{}, false)
}

// Score says whether the pod fits on the node, and rates the node by the
// policy: of two nodes that fit, the one with the higher score is preferred. It
// does not know the node's processors; see ScoreIn.
func (q *Query) Score(n *ledger.NodeView) (int64, Reason) { return q.ScoreIn(n, Room{}) }

// ScoreIn is Score on a node with that room. Whether the pod fits into it is for
// the caller to know.
func (q *Query) ScoreIn(n *ledger.NodeView, room Room) (int64, Reason) {
	if reason := q.run(n, room, true); reason != "" {
		return 0, reason
	}
	return q.opts.Policy.Score(q.search.placed()), ""
}

// Plan says whether the pod fits on the node, and gives the GPUs of every
// container. The plan belongs to the caller. A request without demands fits
// everywhere with an empty plan.
func (q *Query) Plan(n *ledger.NodeView) (contract.Plan, Reason) { return q.PlanIn(n, Room{}) }

// PlanIn is Plan on a node with that room: it gives the GPUs that ScoreIn rated.
func (q *Query) PlanIn(n *ledger.NodeView, room Room) (contract.Plan, Reason) {
	if reason := q.run(n, room, true); reason != "" {
		return contract.Plan{}, reason
	}
	return q.search.plan(), ""
}

// Roles are the containers that use GPUs, in the order in which
// contract.Plan.Charges needs them.
func (q *Query) Roles() []contract.ContainerRole {
	roles := make([]contract.ContainerRole, 0, len(q.req.Demands))
	for _, d := range q.req.Demands {
		roles = append(roles, d.ContainerRole)
	}
	return roles
}

// Fit is Plan for a single node.
func Fit(n *ledger.NodeView, req contract.Request, without types.UID, policy Policy) (contract.Plan, Reason) {
	return New(req, Options{Policy: policy, Without: without}).Plan(n)
}

// run places the pod. With choose it settles on the GPUs that the policy
// wants, otherwise only on whether there are any.
func (q *Query) run(n *ledger.NodeView, room Room, choose bool) Reason {
	switch {
	case q.malformed:
		return Malformed
	case !n.Known():
		return NoInventory
	case q.opts.PerGPU != 0 && q.opts.PerGPU != n.SharesPerGPU():
		return OtherGrain
	case len(n.GPUs()) == 0:
		return NoGPUs
	}
	if reason, ok := q.quick(n); ok && (reason != "" || !choose) {
		return reason
	}
	q.search.reset(q, n)
	q.search.rooms(room)
	if q.search.place(choose) {
		return ""
	}
	return q.search.explain()
}
