package waste

import (
	"slices"

	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/units"
)

// perPart is how many thousandths a part of a GPU is.
const perPart = 1000 / Grain

// Tables bounds: a workload of many odd shapes is cut to the most frequent ones,
// and processors to some amounts, so that tables stay within some hundred KiB
// and are made in a few milliseconds.
const (
	mostShapes = 1024
	mostCPUs   = 128
)

// usualPercent is the part of all pods whose shapes count as usual.
const usualPercent = 95

// Tables say what states of nodes cost, for one distribution of shapes in one
// cluster. They never change.
type Tables struct {
	// learned says that there are any shapes; without, every state costs 0.
	learned bool
	// maxCPU and maxGPU are the cluster's biggest node, at least 1: thousandths
	// of processors and of GPUs.
	maxCPU, maxGPU float64
	// perGPU is the processors that an average GPU pod has to each thousandth
	// of a GPU, perAnyGPU the same with the processors of all pods; 0: none.
	perGPU, perAnyGPU float64
	// idle is the weight of Terms.Idle.
	idle float64
	// cpus are the amounts of processors that tell usual shapes apart,
	// ascending; fitCPU[r] is the weight of those without GPUs that fit where r
	// of these amounts fit.
	cpus   []int64
	fitCPU []float64
	kinds  []kind
	// other is for GPUs that were not there when the tables were made.
	other *kindTable
}

type kind struct {
	class *ledger.Class
	table *kindTable
}

// kindTable is what the tables say of GPUs of one model and size.
type kindTable struct {
	// column[p] is the number of sizes that are at most p parts. fit has columns
	// per amount of processors: fit[r*columns+column[p]] is the weight of the
	// usual shapes of one GPU that fit where r amounts of processors and p parts
	// are free.
	column  [Grain + 1]uint8
	columns int
	fit     []float64
	// several are shapes of more than one GPU, by their number.
	several []several
	// hole is what will be left of p free parts, see holes.
	hole [Grain + 1]float64
	// pressure says how sought after the model is by pods that cannot do
	// without: 1 if they alone would fill it as full as all pods fill the
	// cluster.
	pressure float64
}

// several is a table like kindTable.fit for shapes of so many GPUs.
type several struct {
	gpus int
	// whole says that all of them take whole GPUs.
	whole bool
	fit   []float64
}

// weighted is a usual shape and its part of all usual pods.
type weighted struct {
	Shape
	weight float64
	// rank is the number of Tables.cpus that it needs.
	rank int
}

// NewTables makes tables for shapes in the order of Learner.Shapes.
func NewTables(shapes []Counted, c Cluster) *Tables {
	t := &Tables{
		maxCPU: max(float64(c.MaxMilliCPU), 1),
		maxGPU: max(float64(c.MaxGPUs)*1000, 1),
	}
	shapes = feasible(shapes, &c)
	t.learned = len(shapes) > 0
	usual := usualOf(shapes)
	t.rankCPUs(usual)
	t.ratios(shapes, &c)
	biggest := units.MiB(0)
	for _, k := range c.Kinds {
		t.kinds = append(t.kinds, kind{k.Class, t.kindTable(k.Class.Model, k.Class.MemoryMiB, shapes, usual, &c)})
		biggest = max(biggest, k.Class.MemoryMiB)
	}
	t.other = t.kindTable("", biggest, shapes, usual, &c)
	return t
}

// feasible leaves out shapes that no node can ever take: nobody can save GPUs
// for them.
func feasible(shapes []Counted, c *Cluster) []Counted {
	return slices.DeleteFunc(slices.Clone(shapes), func(s Counted) bool {
		return s.Count <= 0 || s.Shape.GPUs > 0 && (s.Shape.GPUs > c.MaxGPUs || c.takes(&s.Shape) <= 0 || c.gpusFor(&s.Shape) == 0)
	})
}

// usualOf returns the most frequent shapes that make up usualPercent of pods.
func usualOf(shapes []Counted) []weighted {
	all := 0
	for _, s := range shapes {
		all += s.Count
	}
	var usual []weighted
	sum := 0
	for _, s := range shapes {
		if sum*100 >= all*usualPercent || len(usual) >= mostShapes {
			break
		}
		usual = append(usual, weighted{Shape: s.Shape, weight: float64(s.Count)})
		sum += s.Count
	}
	for i := range usual {
		usual[i].weight /= float64(sum)
	}
	return usual
}

// rankCPUs fills cpus and fitCPU, and the ranks of usual.
func (t *Tables) rankCPUs(usual []weighted) {
	for i := range usual {
		t.cpus = append(t.cpus, usual[i].MilliCPU)
	}
	slices.Sort(t.cpus)
	t.cpus = slices.Compact(t.cpus)
	if n := len(t.cpus); n > mostCPUs {
		// Each shape counts as the next amount above it that is kept.
		for i := range mostCPUs {
			t.cpus[i] = t.cpus[(i+1)*n/mostCPUs-1]
		}
		t.cpus = t.cpus[:mostCPUs]
	}
	t.fitCPU = make([]float64, len(t.cpus)+1)
	for i := range usual {
		at, _ := slices.BinarySearch(t.cpus, usual[i].MilliCPU)
		usual[i].rank = at + 1
		if usual[i].GPUs == 0 {
			t.fitCPU[at+1] += usual[i].weight
		}
	}
	for r := 1; r < len(t.fitCPU); r++ {
		t.fitCPU[r] += t.fitCPU[r-1]
	}
}

// rank is how many of cpus fit into milliCPU.
func (t *Tables) rank(milliCPU int64) int {
	low, high := 0, len(t.cpus)
	for low < high {
		if mid := int(uint(low+high) >> 1); t.cpus[mid] <= milliCPU {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return low
}

// ratios computes how processors and GPUs go together.
func (t *Tables) ratios(shapes []Counted, c *Cluster) {
	var gpu, cpuOfGPU, cpu float64
	for i := range shapes {
		s, n := &shapes[i].Shape, float64(shapes[i].Count)
		cpu += n * float64(s.MilliCPU)
		if s.GPUs > 0 {
			gpu += n * c.takes(s)
			cpuOfGPU += n * float64(s.MilliCPU)
		}
	}
	if gpu <= 0 {
		return
	}
	t.perGPU, t.perAnyGPU = cpuOfGPU/gpu, cpu/gpu
	if gpus := c.gpus(); gpus > 0 && c.MilliCPU > 0 {
		scarce := t.perAnyGPU / (float64(c.MilliCPU) / (float64(gpus) * 1000))
		t.idle = idleWeight * min(max((scarce-0.8)/0.2, 0), 1)
	}
}

// kindTable makes the tables of GPUs of one model and size.
func (t *Tables) kindTable(model string, memory units.MiB, shapes []Counted, usual []weighted, c *Cluster) *kindTable {
	k := &kindTable{pressure: pressure(model, shapes, c), hole: holes(model, memory, shapes)}
	// 1. Which sizes are there?
	var sized [Grain + 1]bool
	part := make([]int, len(usual)) // 0: not here
	for i := range usual {
		if s := &usual[i]; s.GPUs > 0 && s.allows(model) {
			if p := s.partOn(memory); p <= Grain {
				part[i], sized[p] = p, true
			}
		}
	}
	for p := 1; p <= Grain; p++ {
		k.column[p] = k.column[p-1]
		if sized[p] {
			k.column[p]++
		}
	}
	k.columns = int(k.column[Grain]) + 1
	// 2. Each shape's weight where it just fits, then sums along both sides.
	k.fit = make([]float64, (len(t.cpus)+1)*k.columns)
	for i := range usual {
		if part[i] == 0 {
			continue
		}
		fit := k.fit
		if usual[i].GPUs > 1 {
			fit = k.severalOf(usual[i].GPUs, part[i])
		}
		fit[usual[i].rank*k.columns+int(k.column[part[i]])] += usual[i].weight
	}
	k.accumulate(k.fit)
	for i := range k.several {
		k.accumulate(k.several[i].fit)
	}
	return k
}

// severalOf returns the table of shapes of so many GPUs, for one that takes part
// of each.
func (k *kindTable) severalOf(gpus, part int) []float64 {
	at := slices.IndexFunc(k.several, func(s several) bool { return s.gpus == gpus })
	if at < 0 {
		at = len(k.several)
		k.several = append(k.several, several{gpus: gpus, whole: true, fit: make([]float64, len(k.fit))})
	}
	s := &k.several[at]
	s.whole = s.whole && part == Grain
	return s.fit
}

// accumulate adds to each entry all those of fewer processors and smaller parts.
func (k *kindTable) accumulate(fit []float64) {
	for at := range fit {
		if at%k.columns > 0 {
			fit[at] += fit[at-1]
		}
	}
	for at := k.columns; at < len(fit); at++ {
		fit[at] += fit[at-k.columns]
	}
}

// pressure computes kindTable.pressure: of all GPU asked for, the part that is
// restricted to some models and falls on this one, divided by the model's part
// of all GPUs. What may use several models falls on them by their number.
func pressure(model string, shapes []Counted, c *Cluster) float64 {
	var restricted, all float64
	for i := range shapes {
		s := &shapes[i].Shape
		if s.GPUs == 0 {
			continue
		}
		asked := float64(shapes[i].Count) * c.takes(s)
		all += asked
		if s.Models != "" && s.allows(model) {
			restricted += asked / float64(max(c.gpusFor(s), 1))
		}
	}
	if all <= 0 || c.gpusOf(model) == 0 {
		return 0
	}
	// restricted × GPUs of the model, over its part of all GPUs.
	return restricted * float64(c.gpus()) / all
}

// table returns the tables for a class of GPUs. The pointer nearly always tells;
// views of another ledger have other pointers to equal classes.
func (t *Tables) table(class *ledger.Class) *kindTable {
	for i := range t.kinds { // a cluster has a handful
		if t.kinds[i].class == class {
			return t.kinds[i].table
		}
	}
	for i := range t.kinds {
		if k := t.kinds[i].class; k.Model == class.Model && k.MemoryMiB == class.MemoryMiB {
			return t.kinds[i].table
		}
	}
	return t.other
}
