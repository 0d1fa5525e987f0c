package placement

import (
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/placement/waste"
	"github.com/tranche-dev/tranche/pkg/units"
)

// A Policy chooses among GPUs that have room, and among nodes.
type Policy interface {
	// Cost says how much the policy would rather not give the demand this GPU:
	// the GPU with the lowest cost is taken, of equal ones the first.
	Cost(c Candidate) int64
	// Score rates a node by what it would look like with the pod; more is
	// better. Only the order of scores counts, and their distances roughly.
	Score(p Placed) int64
}

// Candidate is a GPU that has room for a demand.
type Candidate struct {
	// Memory is what the GPU has in all.
	Memory units.MiB
	// Free are its free shares before, Need those that the demand takes.
	Free, Need units.Shares
	// ByMemory says that the demand is for memory, so that Need is smaller on
	// bigger GPUs.
	ByMemory bool
	// Neighbours is the number of other candidates that are nearer to it, by
	// NVLink, PCIe or memory node, than the farthest two GPUs of the node are.
	Neighbours int
	// Position is where the GPU is among Node.GPUs.
	Position int
	// Node is what the node is like without the demand; read-only, and valid
	// during the call.
	Node *waste.State
}

// Placed is a node with the pod on it.
type Placed struct {
	// Used and Capacity are sums over the node's healthy GPUs, Used with the
	// pod. Capacity is positive.
	Used, Capacity units.Shares
	// Left is the mean of the shares that stay free on the pod's GPUs, and
	// Size the mean memory of these GPUs.
	Left units.Shares
	Size units.MiB
	// ByMemory says that some container asks for memory.
	ByMemory bool
	// Class is the kind of one of the pod's GPUs, nil if it has none.
	Class *ledger.Class
	// Before and After are what the node is like without and with the pod;
	// read-only, and valid during the call.
	Before, After *waste.State
}

// For returns the policy of that name, Binpack for any other. LeastWaste is not
// among them, since it needs what has been learned.
func For(p contract.Placement) Policy {
	if p == contract.PlacementSpread {
		return Spread
	}
	return Binpack
}

// The two policies that know of no other pods.
var (
	// Binpack keeps whole GPUs and nodes free. It takes the fullest GPU that
	// has room, of equally full ones the smallest. What is asked in memory goes
	// to the smallest GPU that is big enough, so that big ones stay free for
	// who needs them. A single GPU is taken where it parts the fewest neighbours.
	Binpack Policy = binpack{}
	// Spread keeps neighbours few: the emptiest GPU of the emptiest node.
	Spread Policy = spread{}
)

type binpack struct{}

func (binpack) Cost(c Candidate) int64 {
	left, size, links := int64(c.Free-c.Need), int64(c.Memory), int64(c.Neighbours)
	if c.ByMemory {
		return (size*leftWidth+left)*linkWidth + links
	}
	return (left*sizeWidth+size)*linkWidth + links
}

func (binpack) Score(p Placed) int64 {
	used, left, size := p.terms()
	if p.ByMemory {
		return lexical(sizeRange-size, used, leftRange-left)
	}
	return lexical(used, leftRange-left, sizeRange-size)
}

type spread struct{}

func (spread) Cost(c Candidate) int64 {
	left, size := int64(c.Free-c.Need), int64(c.Memory)
	return -(left*sizeWidth + size)
}

// The widths of a cost's terms: above what shares, MiB and neighbours can be.
// Together they need 10 + 31 + 10 bits.
const (
	leftWidth = 1 << 10
	sizeWidth = int64(units.MaxMemory) << 1
	linkWidth = 1 << 10
)

func (spread) Score(p Placed) int64 {
	used, left, size := p.terms()
	return lexical(usedRange-used, left, size)
}

// The ranges of the terms of a score. Their product stays below 2^63, and all
// three bounds are reached by no real node: a grain of 1000 shares, GPUs of
// 1 PiB counted in GiB.
const (
	usedRange = 100_000
	leftRange = int64(units.MaxSharesPerGPU)
	sizeRange = int64(units.MaxMemory >> 10)
)

// terms returns the used part in 1/usedRange, the shares left and the size in
// GiB, each within 0 and its range.
func (p Placed) terms() (used, left, size int64) {
	part := float64(p.Used) / float64(max(p.Capacity, 1))
	used = int64(min(max(part, 0), 1) * usedRange)
	left = min(max(int64(p.Left), 0), leftRange)
	size = min(max(int64(p.Size>>10), 0), sizeRange)
	return used, left, size
}

// lexical combines terms so that an earlier one always outweighs later ones.
func lexical(terms ...int64) int64 {
	const width = 1 << 20 // above usedRange, leftRange and sizeRange-1
	var score int64
	for _, t := range terms {
		score = score*width + min(t, width-1)
	}
	return score
}
