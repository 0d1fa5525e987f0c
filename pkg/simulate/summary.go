package simulate

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/placement"
	"github.com/tranche-dev/tranche/pkg/placement/waste"
)

// Policies are the names that ByName knows.
func Policies() []string {
	var names []string
	for _, p := range contract.Placements() {
		names = append(names, string(p))
	}
	return names
}

// ByName returns a new Chooser of that name for a cluster.
func ByName(name string, c *Cluster) (Chooser, error) {
	switch {
	case name == string(contract.PlacementLeastWaste):
		return LeastWaste(c), nil
	case slices.Contains(Policies(), name):
		return Always(placement.For(contract.Placement(name))), nil
	default:
		return nil, fmt.Errorf("no placement policy is called %q; write one of %s", name, strings.Join(Policies(), ", "))
	}
}

// Summary is what people want to know of an outcome.
type Summary struct {
	// Allocated is the part of all GPUs that was given out in the end, Unusable
	// the part that is free and that none of the usual pods could use; percent.
	Allocated, Unusable float64
	// Placed and Waiting count pods that found a place or none; WaitingGangs are
	// the gangs of which some member found none.
	Placed, Waiting, WaitingGangs int
}

// Summarize sums up an outcome of arrivals on c.
func Summarize(c *Cluster, arrivals []Pod, o *Outcome) Summary {
	var s Summary
	gangs := map[string]bool{}
	learner := waste.NewLearner()
	for i := range arrivals {
		p := &arrivals[i]
		learner.Observe(waste.ShapeOf(p.Request, p.MilliCPU, c.PerGPU))
		if o.Places[i] >= 0 {
			s.Placed++
			continue
		}
		s.Waiting++
		if p.Gang != "" && !gangs[p.Gang] {
			gangs[p.Gang] = true
			s.WaitingGangs++
		}
	}
	if o.Capacity <= 0 {
		return s
	}
	if n := len(o.Steps); n > 0 {
		s.Allocated = 100 * float64(o.Steps[n-1].Placed) / float64(o.Capacity)
	}
	tables, unusable := learner.Tables(c.Kinds()), 0.0
	for i := range c.Nodes {
		unusable += tables.Unusable(stateOf(o.Ledger.Node(c.Nodes[i].Name), o.MilliCPU[i]))
	}
	s.Unusable = 100 * unusable / float64(o.Capacity)
	return s
}

func stateOf(n *ledger.NodeView, milliCPU int64) *waste.State {
	s := &waste.State{GPUs: n.GPUs(), PerGPU: n.SharesPerGPU(), MilliCPU: milliCPU}
	for i := range s.GPUs {
		s.Free = append(s.Free, s.GPUs[i].Free)
	}
	return s
}
