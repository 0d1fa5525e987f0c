package planner

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/placement/waste"
	"github.com/tranche-dev/tranche/pkg/units"
)

// workload is the policy least-waste as package waste defines it: for every
// question a loop over all shapes that pods have had.
type workload struct {
	counts map[waste.Shape]int
	seen   int
	// due is the number of pods at which they are to be looked at anew, dirty that
	// it was reached, moved that nodes have changed; next is not before when.
	due          int
	dirty, moved bool
	next         time.Time

	// The rest is as it was when that was last done.
	shapes  []waste.Counted
	cluster waste.Cluster
	// asked are the shapes that some node can take, the most frequent first, usual
	// those of them that make up 95 % of pods.
	asked, usual []waste.Counted
	usualPods    float64
	// perGPU are the thousandths of processors that an average pod has to each
	// thousandth of a GPU, idle is the weight of idle processors.
	perGPU, idle float64
	holes        map[kindOfGPU][]float64
}

// kindOfGPU is what tells GPUs apart here.
type kindOfGPU struct {
	model  string
	memory units.MiB
}

// learn counts a pod.
func (w *workload) learn(p *apiPod, perGPU units.Shares) {
	if p.learned || p.problem || len(p.asks.Demands) == 0 {
		return
	}
	p.learned = true
	if w.counts == nil {
		w.counts, w.due = map[waste.Shape]int{}, 1
	}
	w.counts[waste.ShapeOf(p.asks, p.amounts[corev1.ResourceCPU], perGPU)]++
	w.seen++
	w.dirty = w.dirty || w.seen >= w.due
}

// review looks at what was learned and at the cluster anew, if that is due: when
// the pods have become a quarter more, or nodes have changed, and once a second.
func (o *recount) review(now time.Time) {
	w := &o.workload
	if !w.dirty && !w.moved || now.Before(w.next) {
		return
	}
	w.dirty, w.moved, w.next = false, false, now.Add(time.Second)
	w.due = w.seen + min(max(w.seen/4, 1), 500)
	w.shapes = w.shapes[:0:0]
	for shape, n := range w.counts {
		w.shapes = append(w.shapes, waste.Counted{Shape: shape, Count: n})
	}
	slices.SortFunc(w.shapes, func(a, b waste.Counted) int {
		x, y := a.Shape, b.Shape
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(x.MilliCPU, y.MilliCPU), cmp.Compare(x.GPUs, y.GPUs),
			cmp.Compare(x.Part, y.Part), cmp.Compare(x.Memory, y.Memory), cmp.Compare(x.Models, y.Models))
	})
	w.cluster = waste.Cluster{}
	for _, n := range o.nodes {
		if len(n.gpus()) == 0 {
			continue
		}
		cpu := n.object.Status.Allocatable.Cpu().MilliValue()
		w.cluster.MilliCPU += cpu
		w.cluster.MaxMilliCPU, w.cluster.MaxGPUs = max(w.cluster.MaxMilliCPU, cpu), max(w.cluster.MaxGPUs, len(n.gpus()))
		for _, g := range n.gpus() {
			class := ledger.Class{Model: g.Model, MemoryMiB: g.MemoryMiB, Isolation: g.Isolation, SharesPerGPU: n.inventory.SharesPerGPU}
			at := slices.IndexFunc(w.cluster.Kinds, func(k waste.Kind) bool { return *k.Class == class })
			if at < 0 {
				at = len(w.cluster.Kinds)
				w.cluster.Kinds = append(w.cluster.Kinds, waste.Kind{Class: &class})
			}
			w.cluster.Kinds[at].GPUs++
		}
	}
	w.summarize()
}

// summarize draws what is the same for all states of nodes.
func (w *workload) summarize() {
	w.asked, w.usual, w.usualPods, w.perGPU, w.idle, w.holes = nil, nil, 0, 0, 0, map[kindOfGPU][]float64{}
	pods, gpu, cpu := 0, 0.0, 0.0
	for _, s := range w.shapes {
		if s.Shape.GPUs <= w.cluster.MaxGPUs && w.takes(&s.Shape) > 0 && w.gpusFor(&s.Shape) > 0 {
			w.asked = append(w.asked, s)
			pods += s.Count
			gpu += float64(s.Count) * w.takes(&s.Shape)
			cpu += float64(s.Count) * float64(s.Shape.MilliCPU)
		}
	}
	for _, s := range w.asked {
		if w.usualPods >= 0.95*float64(pods) {
			break
		}
		w.usual = append(w.usual, s)
		w.usualPods += float64(s.Count)
	}
	if gpu == 0 {
		return
	}
	w.perGPU = cpu / gpu
	all := 0
	for _, k := range w.cluster.Kinds {
		all += k.GPUs
	}
	if offers := float64(w.cluster.MilliCPU) / float64(all*1000); offers > 0 {
		w.idle = 0.5 * min(max((w.perGPU/offers-0.8)/0.2, 0), 1)
	}
}

func allows(s *waste.Shape, model string) bool {
	return s.Models == "" || slices.Contains(strings.Split(s.Models, ","), model)
}

// partOn is what a shape takes of a GPU of some memory, in hundredths; more than
// 100 if it does not fit.
func partOn(s *waste.Shape, memory units.MiB) int {
	switch {
	case s.Memory == 0:
		return s.Part
	case s.Memory > memory:
		return 101
	default:
		return int((s.Memory*100 + memory - 1) / memory)
	}
}

// gpusFor is the number of GPUs that a shape may use.
func (w *workload) gpusFor(s *waste.Shape) int {
	n := 0
	for _, k := range w.cluster.Kinds {
		if allows(s, k.Class.Model) {
			n += k.GPUs
		}
	}
	return n
}

// takes is how many thousandths of GPUs a shape takes, on average over those that
// it may use.
func (w *workload) takes(s *waste.Shape) float64 {
	if s.Memory == 0 {
		return float64(10 * s.GPUs * s.Part)
	}
	sum, n := 0, 0
	for _, k := range w.cluster.Kinds {
		if part := partOn(s, k.Class.MemoryMiB); allows(s, k.Class.Model) && part <= 100 {
			sum += part * k.GPUs
			n += k.GPUs
		}
	}
	if n == 0 {
		return 0
	}
	return 10 * float64(s.GPUs) * float64(sum) / float64(n)
}

// kindOf is what a GPU counts as. One that was not there when the cluster was
// looked at is of no model, and as big as the biggest.
func (w *workload) kindOf(g *contract.GPU) kindOfGPU {
	k := kindOfGPU{}
	for _, known := range w.cluster.Kinds {
		if known.Class.Model == g.Model && known.Class.MemoryMiB == g.MemoryMiB {
			return kindOfGPU{g.Model, g.MemoryMiB}
		}
		k.memory = max(k.memory, known.Class.MemoryMiB)
	}
	return k
}

// cost is what a state of a node costs, in weighted thousandths of a GPU.
func (w *workload) cost(n *apiNode, free []units.Shares, cpu int64) float64 {
	if len(w.asked) == 0 {
		return 0
	}
	var total, fragmentation, holes, fitting float64
	for i, first := range n.inventory.GPUs {
		// Each kind of GPUs by itself, when its first one comes.
		same := func(g contract.GPU) bool {
			return g.Model == first.Model && g.MemoryMiB == first.MemoryMiB && g.Isolation == first.Isolation
		}
		if slices.ContainsFunc(n.inventory.GPUs[:i], same) {
			continue
		}
		var parts []int
		for at, g := range n.inventory.GPUs {
			if same(g) && g.Healthy {
				parts = append(parts, int(min(max(free[at], 0), 100)))
			}
		}
		kind := w.kindOf(&first)
		for _, part := range parts {
			total += float64(10 * part)
			fragmentation += float64(10 * part)
			holes += w.hole(kind, part)
		}
		fits := 0.0
		for i := range w.usual {
			s, p := &w.usual[i].Shape, float64(w.usual[i].Count)/w.usualPods
			use, enough := 0, 0
			for _, part := range parts {
				if part >= partOn(s, kind.memory) {
					use += 10 * part
					enough++
				}
			}
			if s.MilliCPU <= cpu && allows(s, kind.model) && enough >= s.GPUs {
				fits += p
				fragmentation -= p * float64(use)
			}
		}
		fitting = max(fitting, fits)
	}
	cost := max(fragmentation, 0) + 40*holes
	if w.perGPU > 0 {
		left := float64(max(cpu, 0))
		cost += 3 * max(total-left/w.perGPU, 0)
		cost += w.idle * left * max(1-fitting, 0) / w.perGPU
	}
	return cost
}

// hole is what is left in the end of a free part: if of every 30 pods of one GPU
// that arrive, it gets the one after which least is left.
func (w *workload) hole(kind kindOfGPU, part int) float64 {
	if table := w.holes[kind]; table != nil {
		return table[part]
	}
	var sizes [101]float64
	all := 0.0
	for i := range w.asked {
		if s := &w.asked[i].Shape; s.GPUs == 1 && allows(s, kind.model) && partOn(s, kind.memory) <= 100 {
			sizes[partOn(s, kind.memory)] += float64(w.asked[i].Count)
			all += float64(w.asked[i].Count)
		}
	}
	left := make([]float64, 101)
	for x := 1; x <= 100; x++ {
		var fit []int
		for size := 1; size <= x; size++ {
			if sizes[size] > 0 {
				fit = append(fit, size)
			}
		}
		slices.SortStableFunc(fit, func(a, b int) int {
			return cmp.Or(cmp.Compare(left[x-a], left[x-b]), cmp.Compare(sizes[a], sizes[b]))
		})
		came, nobody := 0.0, 1.0
		for _, size := range fit {
			came += sizes[size] / all
			without := math.Pow(1-min(came, 1), 30)
			left[x] += (nobody - without) * left[x-size]
			nobody = without
		}
		left[x] += nobody * float64(10*x)
	}
	w.holes[kind] = left
	return left[part]
}

// score rates what a pod does to a node, in 2^-20 thousandths of a GPU.
func (w *workload) score(n *apiNode, last *contract.GPU, before, after []units.Shares, cpuBefore, cpuAfter int64) int64 {
	free := func(list []units.Shares) (sum float64) {
		for i, g := range n.inventory.GPUs {
			if g.Healthy {
				sum += float64(10 * min(max(list[i], 0), 100))
			}
		}
		return sum
	}
	left := 0.5*free(after)/max(float64(1000*w.cluster.MaxGPUs), 1) + 0.5*float64(max(cpuAfter, 0))/max(float64(w.cluster.MaxMilliCPU), 1)
	score := w.cost(n, before, cpuBefore) - w.cost(n, after, cpuAfter) + 100*(1-left)
	if len(w.asked) > 0 {
		score -= w.pressure(w.kindOf(last).model) * (free(before) - free(after))
	}
	return int64(math.Round(min(max(score, -1<<24), 1<<24) * (1 << 20)))
}

// pressure is how sought after a model is by pods that may use only some: their
// part of all GPUs asked for, divided by the model's part of all GPUs.
func (w *workload) pressure(model string) float64 {
	var restricted, all float64
	gpus, ofModel := 0, 0
	for _, k := range w.cluster.Kinds {
		gpus += k.GPUs
		if k.Class.Model == model {
			ofModel += k.GPUs
		}
	}
	for i := range w.asked {
		s, n := &w.asked[i].Shape, float64(w.asked[i].Count)
		all += n * w.takes(s)
		if s.Models != "" && allows(s, model) {
			restricted += n * w.takes(s) * float64(ofModel) / float64(w.gpusFor(s))
		}
	}
	if ofModel == 0 {
		return 0
	}
	return restricted / all / (float64(ofModel) / float64(gpus))
}
