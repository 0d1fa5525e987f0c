package simulate

import (
	"fmt"
	"math"
	"strconv"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/placement"
)

// A Chooser says by which policy each arrival is placed. It is asked once for
// every arrival, in their order, whether or not that will find room. Policies are
// compared with ==: as long as it returns the same, scores are not computed anew
// but for nodes that have changed.
type Chooser interface {
	Choose(p *Pod) placement.Policy
}

// Outcome is what became of the arrivals.
type Outcome struct {
	// Steps[i] is the state after arrival i.
	Steps []Step
	// Places[i] is the position of arrival i's node, -1 if it found none.
	Places []int
	// Ledger is the cluster after the last arrival; MilliCPU and Memory are what
	// is left of these on each node.
	Ledger           *ledger.Snapshot
	MilliCPU, Memory []int64
	// Capacity is the thousandths of all GPUs.
	Capacity int64
}

// Step is the sum over the arrivals so far, in thousandths of a GPU: what they
// asked for, and what was placed of it.
type Step struct{ Asked, Placed int64 }

// AllocationAt is the part of all GPUs, in percent, that is allocated when the
// arrivals have asked for that many percent of them, to the nearest: the mean of
// all arrivals at which they have. Where one big pod passes over that, it is what
// was allocated before. False: they have never asked for as much.
func (o *Outcome) AllocationAt(percent int) (float64, bool) {
	sum, n, before := 0.0, 0, 0.0
	for _, s := range o.Steps {
		allocated := 100 * float64(s.Placed) / float64(o.Capacity)
		at := int(math.Round(100 * float64(s.Asked) / float64(o.Capacity)))
		if at > percent {
			if n == 0 {
				return before, true
			}
			break
		}
		if before = allocated; at == percent {
			sum += allocated
			n++
		}
	}
	if n == 0 {
		return 0, false
	}
	return sum / float64(n), true
}

// Replay places the arrivals on the empty cluster, one after the other.
func Replay(c *Cluster, arrivals []Pod, choose Chooser) *Outcome {
	r := newReplay(c)
	o := &Outcome{Capacity: c.GPUs() * 1000, Steps: make([]Step, len(arrivals)), Places: make([]int, len(arrivals))}
	var step Step
	for i := range arrivals {
		p := &arrivals[i]
		o.Places[i] = r.place(p, types.UID(strconv.Itoa(i)), choose.Choose(p))
		step.Asked += p.Asked
		if o.Places[i] >= 0 {
			step.Placed += p.Asked
		}
		o.Steps[i] = step
	}
	o.Ledger = r.ledger.Snapshot()
	for i := range r.nodes {
		o.MilliCPU, o.Memory = append(o.MilliCPU, r.nodes[i].milliCPU), append(o.Memory, r.nodes[i].memory)
	}
	return o
}

// replay is the state of a cluster that fills.
type replay struct {
	ledger *ledger.Ledger
	nodes  []node
	// changes lists the positions of nodes that took a pod, in turn.
	changes []int
	shapes  map[string]*shape
	perGPU  contract.Resources
}

// node is what a node has left.
type node struct {
	name             string
	milliCPU, memory int64
	view             *ledger.NodeView
}

// shape remembers how well the nodes suit pods that are alike.
type shape struct {
	policy placement.Policy
	query  *placement.Query
	// scores[i] belongs to node i as it was when changes had seen entries.
	scores []int64
	seen   int
}

// unfit is the score of a node without room, below any other.
const unfit = math.MinInt64

func newReplay(c *Cluster) *replay {
	r := &replay{ledger: ledger.New(), shapes: map[string]*shape{}, perGPU: contract.Resources{PerGPU: c.PerGPU}}
	for i := range c.Nodes {
		n := &c.Nodes[i]
		r.ledger.SetNode(n.Name, n.Inventory)
		r.nodes = append(r.nodes, node{n.Name, n.MilliCPU, n.Memory, r.ledger.Node(n.Name)})
	}
	return r
}

// place finds the best node for a pod and charges it there. It returns the node's
// position, -1 if there is none.
func (r *replay) place(p *Pod, uid types.UID, policy placement.Policy) int {
	s := r.rated(p, policy)
	best := -1
	for i, score := range s.scores {
		if score != unfit && (best < 0 || score > s.scores[best]) {
			best = i
		}
	}
	if best < 0 {
		return -1
	}
	n := &r.nodes[best]
	plan, reason := s.query.PlanIn(n.view, placement.CPU(n.milliCPU))
	if reason != "" {
		return -1 // it was rated, so there is room
	}
	r.ledger.Allocate(ledger.Claim{Pod: ledger.Pod{UID: uid, Name: p.Name}, Node: n.name, Charges: plan.Charges(s.query.Roles())})
	n.milliCPU -= p.MilliCPU
	n.memory -= p.Memory
	n.view = r.ledger.Node(n.name)
	r.changes = append(r.changes, best)
	return best
}

// rated returns the pod's shape with scores as they are now.
func (r *replay) rated(p *Pod, policy placement.Policy) *shape {
	key := fmt.Sprint(p.Request, p.MilliCPU, p.Memory)
	s := r.shapes[key]
	if s == nil || s.policy != policy {
		s = &shape{policy: policy, scores: make([]int64, len(r.nodes)), seen: len(r.changes)}
		s.query = placement.New(p.Request, placement.Options{Policy: policy, PerGPU: r.perGPU.PerGPU, MilliCPU: p.MilliCPU})
		r.shapes[key] = s
		for i := range r.nodes {
			s.scores[i] = s.rate(p, &r.nodes[i])
		}
		return s
	}
	for _, i := range r.changes[s.seen:] {
		s.scores[i] = s.rate(p, &r.nodes[i])
	}
	s.seen = len(r.changes)
	return s
}

func (s *shape) rate(p *Pod, n *node) int64 {
	if p.MilliCPU > n.milliCPU || p.Memory > n.memory {
		return unfit
	}
	score, reason := s.query.ScoreIn(n.view, placement.CPU(n.milliCPU))
	if reason != "" {
		return unfit
	}
	return score
}
