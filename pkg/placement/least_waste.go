package placement

import (
	"math"

	"github.com/tranche-dev/tranche/pkg/placement/waste"
)

// LeastWaste keeps free what the pods that usually come can use; see package
// waste. It chooses by t, which must not be nil; Tables of a Learner that has
// seen nothing make it plain best fit. How near GPUs are to each
// other decides only between those that are otherwise equal.
func LeastWaste(t *waste.Tables) Policy { return leastWaste{t} }

type leastWaste struct{ tables *waste.Tables }

// String is the policy's name. Two policies that have learned different things
// have the same, since they are meant to find the same.
func (leastWaste) String() string { return "least-waste" }

// Costs and scores are floating-point numbers of thousandths of a GPU, rounded to
// 2^-16 and 2^-20: so what differs by the order of summation only is equal. They
// stay below 10^6 for any node; the bounds make sure that they do for any input.
const (
	costScale  = 1 << 16
	scoreScale = 1 << 20
	costRange  = 1 << 24
)

func fixed(x float64, scale float64) int64 {
	if math.IsNaN(x) {
		return 0
	}
	return int64(math.Round(min(max(x, -costRange), costRange) * scale))
}

// Cost is that of the node's state with the demand on the GPU. Pressure and best
// fit are the same for all its GPUs, but where nothing has been learned all cost
// the same, so then the fullest is taken.
func (p leastWaste) Cost(c Candidate) int64 {
	cost := p.tables.Cost(c.Node, waste.Take{GPU: c.Position, Shares: c.Need})
	left := int64(c.Free - c.Need)
	return (fixed(cost, costScale)*leftWidth+left)*linkWidth + int64(c.Neighbours)
}

func (p leastWaste) Score(n Placed) int64 {
	return fixed(p.tables.Score(&waste.Placement{Class: n.Class, Before: *n.Before, After: *n.After}), scoreScale)
}
