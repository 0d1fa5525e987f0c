package waste

import (
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/units"
)

// The weights of the terms of a cost, see the package's comment, and of pressure.
const (
	strandedWeight = 3
	holesWeight    = 40
	idleWeight     = 0.5
	pressureWeight = 1
)

// UnknownCPU is the free processors of a node of which nothing is known. All pods
// count as having enough then.
const UnknownCPU int64 = -1 << 62

// State is a node as far as its cost depends on it. It is not changed.
type State struct {
	// GPUs are the node's; unhealthy ones have nothing free, whatever Free says.
	GPUs []ledger.GPUView
	// Free[i] are the free shares of GPUs[i], out of PerGPU.
	Free   []units.Shares
	PerGPU units.Shares
	// MilliCPU is what is free of its processors, UnknownCPU if nobody knows.
	MilliCPU int64
}

// Take is one GPU's loss of shares, for asking about a State after it.
type Take struct {
	GPU    int
	Shares units.Shares
}

// Nothing is the Take that takes nothing.
var Nothing = Take{GPU: -1}

// Terms are the parts of a cost, each in thousandths of a GPU and not negative.
type Terms struct {
	Fragmentation, Stranded, Holes, Idle float64
	// Free is what is free on all GPUs.
	Free float64
}

// Cost is what the state after take costs, in weighted thousandths of a GPU; 0 if
// nothing has been learned. It allocates nothing.
func (t *Tables) Cost(s *State, take Take) float64 {
	if !t.learned {
		return 0
	}
	terms := t.Terms(s, take)
	return terms.Fragmentation + strandedWeight*terms.Stranded + holesWeight*terms.Holes + t.idle*terms.Idle
}

// Terms computes the terms of the state after take.
func (t *Tables) Terms(s *State, take Take) Terms {
	rank := len(t.cpus)
	if s.MilliCPU != UnknownCPU {
		rank = t.rank(s.MilliCPU)
	}
	var terms Terms
	fitting := 0.0 // the weight of the usual shapes with GPUs that fit
	for first := range s.GPUs {
		class := s.GPUs[first].Class
		if seen(s.GPUs[:first], class) {
			continue
		}
		// Nodes of several kinds of GPUs are rare. Each kind is looked at by
		// itself, so a shape of several GPUs that could mix them does not count
		// as fitting, and the kind that most shapes fit speaks for the node.
		fits := t.addKind(&terms, s, take, first, t.table(class), rank)
		fitting = max(fitting, fits)
	}
	// Parts of what is free: rounding must not make them negative.
	terms.Fragmentation = max(terms.Fragmentation, 0)
	if s.MilliCPU == UnknownCPU {
		return terms
	}
	free := float64(max(s.MilliCPU, 0))
	if t.perGPU > 0 {
		terms.Stranded = max(terms.Free-free/t.perGPU, 0)
	}
	if t.perAnyGPU > 0 {
		terms.Idle = free * max(1-fitting-t.fitCPU[rank], 0) / t.perAnyGPU
	}
	return terms
}

// seen says whether the class is among those of gpus. Nearly always all GPUs of a
// node are alike, and the first one tells.
func seen(gpus []ledger.GPUView, class *ledger.Class) bool {
	for i := range gpus {
		if gpus[i].Class == class {
			return true
		}
	}
	return false
}

// addKind adds what the GPUs from first on that are of first's class contribute,
// and returns the weight of the shapes that fit there.
func (t *Tables) addKind(terms *Terms, s *State, take Take, first int, k *kindTable, rank int) (fits float64) {
	class := s.GPUs[first].Class
	row := k.fit[rank*k.columns : (rank+1)*k.columns]
	most, whole := 0, 0
	var free, usable, left float64
	for i := first; i < len(s.GPUs); i++ {
		if s.GPUs[i].Class != class || !s.GPUs[i].Healthy {
			continue
		}
		part, thousandths := s.part(i, take)
		most = max(most, part)
		if part == Grain {
			whole++
		}
		free += thousandths
		usable += thousandths * row[k.column[part]]
		left += k.hole[part]
	}
	fits = row[k.column[most]]
	for i := range k.several {
		e := &k.several[i]
		if e.whole {
			if whole >= e.gpus {
				w := e.fit[rank*k.columns+k.columns-1]
				fits += w
				usable += w * float64(whole) * 1000
			}
			continue
		}
		w, u := k.several[i].uses(s, take, first, k, rank)
		fits += w
		usable += u
	}
	terms.Free += free
	terms.Fragmentation += free - usable
	terms.Holes += left
	return fits
}

// uses returns the weight of the shapes of e that fit on the GPUs of first's
// class, and what they could use, times their weights. A shape fits if the e.gpus
// biggest parts are big enough, so that the smallest of these decides.
func (e *several) uses(s *State, take Take, first int, k *kindTable, rank int) (fits, usable float64) {
	class := s.GPUs[first].Class
	row := e.fit[rank*k.columns : (rank+1)*k.columns]
	smallest := 0
	for i := first; i < len(s.GPUs); i++ {
		if s.GPUs[i].Class != class || !s.GPUs[i].Healthy {
			continue
		}
		part, _ := s.part(i, take)
		if part > smallest && s.atLeast(part, take, first) >= e.gpus {
			smallest = part
		}
	}
	for i := first; i < len(s.GPUs); i++ {
		if s.GPUs[i].Class != class || !s.GPUs[i].Healthy {
			continue
		}
		part, thousandths := s.part(i, take)
		usable += thousandths * row[k.column[min(part, smallest)]]
	}
	return row[k.column[smallest]], usable
}

// atLeast is the number of GPUs of first's class with so many free parts.
func (s *State) atLeast(part int, take Take, first int) int {
	n := 0
	for i := first; i < len(s.GPUs); i++ {
		if s.GPUs[i].Class == s.GPUs[first].Class && s.GPUs[i].Healthy {
			if p, _ := s.part(i, take); p >= part {
				n++
			}
		}
	}
	return n
}

// part returns what is free of a GPU after take: parts, rounded down, and
// thousandths.
func (s *State) part(gpu int, take Take) (part int, thousandths float64) {
	free := s.Free[gpu]
	if gpu == take.GPU {
		free -= take.Shares
	}
	free = min(max(free, 0), s.PerGPU)
	if s.PerGPU == Grain {
		return int(free), float64(free) * perPart
	}
	if s.PerGPU <= 0 {
		return 0, 0
	}
	return int(free * Grain / s.PerGPU), float64(free) * 1000 / float64(s.PerGPU)
}

// Placement is a pod's way of changing a node.
type Placement struct {
	// Class is the kind of the GPUs that it takes, nil if it takes none.
	Class *ledger.Class
	// Before and After are the free shares of all GPUs.
	Before, After State
}

// Score rates what a pod does to a node, the higher the better, in weighted
// thousandths of a GPU: what the node's cost falls by, what the pod takes of a
// model that others cannot do without, and best fit, which alone decides while
// nothing has been learned.
func (t *Tables) Score(p *Placement) float64 {
	before, after := t.Cost(&p.Before, Nothing), t.Cost(&p.After, Nothing)
	score := before - after + t.bestFit(&p.After)
	if p.Class != nil && t.learned {
		score -= pressureWeight * t.table(p.Class).pressure * (p.Before.free() - p.After.free())
	}
	return score
}

// bestFit is 100 for a node with nothing left, less by up to 50 for processors
// left and 50 for GPUs left, relative to the biggest node.
func (t *Tables) bestFit(s *State) float64 {
	left := 0.5 * s.free() / t.maxGPU
	if s.MilliCPU != UnknownCPU {
		left += 0.5 * float64(max(s.MilliCPU, 0)) / t.maxCPU
	}
	return 100 * (1 - left)
}

// free is what is free on all healthy GPUs, in thousandths.
func (s *State) free() float64 {
	sum := 0.0
	for i := range s.GPUs {
		if s.GPUs[i].Healthy {
			_, thousandths := s.part(i, Nothing)
			sum += thousandths
		}
	}
	return sum
}
