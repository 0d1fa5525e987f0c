package planner

import (
	"cmp"
	"hash/fnv"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/placement"
	"github.com/tranche-dev/tranche/pkg/placement/waste"
	"github.com/tranche-dev/tranche/pkg/units"
)

// rating is what a policy makes of a node for a pod.
type rating struct {
	score int64
	// gpus are those that the policy takes, in its order; nil if recount does not
	// know.
	gpus []int
	// costs are those of all GPUs.
	costs []gpuCost
}

// gpuCost is what a policy would rather not give a GPU; less is better, the first
// number before the second.
type gpuCost [2]float64

// policyOf is the pod's own policy, else its queue's, else the setting.
func (o *recount) policyOf(p *apiPod) contract.Placement {
	return cmp.Or(p.asks.Placement, o.queuePlacement, o.opts.Placement)
}

// slack is how far two ways to compute a score may be apart: least-waste sums up
// fractions, in any order, and rounds the sum.
func slack(policy contract.Placement) int64 {
	if policy == contract.PlacementLeastWaste {
		return 2
	}
	return 0
}

// rate rates a node that takes the pod.
func (o *recount) rate(p *apiPod, n *apiNode) rating {
	linked := slices.ContainsFunc(n.inventory.GPUs, func(g contract.GPU) bool { return len(g.Links) > 0 })
	if len(p.asks.Demands) > 1 || linked {
		return rating{score: o.rateFresh(p, n)}
	}
	d, free, cpu := &p.asks.Demands[0], o.free(n, p), o.left(n, corev1.ResourceCPU, p)
	r := rating{costs: make([]gpuCost, len(free))}
	for i := range free {
		g := &n.inventory.GPUs[i]
		needs := need(d, g, n.inventory.SharesPerGPU)
		if !g.Healthy || !p.suits(g) || needs > free[i] {
			continue
		}
		r.gpus = append(r.gpus, i)
		left, size := float64(free[i]-needs), float64(g.MemoryMiB)
		switch o.policyOf(p) {
		case contract.PlacementSpread:
			r.costs[i] = gpuCost{-left, -size}
		case contract.PlacementLeastWaste:
			after := slices.Clone(free)
			after[i] -= needs
			// Rounded, so that equal costs are equal whatever the order of summing up.
			cost := o.workload.cost(n, after, cpu-p.amounts[corev1.ResourceCPU])
			r.costs[i] = gpuCost{math.Round(cost * (1 << 16)), left}
		default:
			r.costs[i] = gpuCost{left, size}
			if d.Memory > 0 {
				r.costs[i] = gpuCost{size, left}
			}
		}
	}
	slices.SortStableFunc(r.gpus, func(a, b int) int { return slices.Compare(r.costs[a][:], r.costs[b][:]) })
	r.gpus = r.gpus[:d.Count]
	after := slices.Clone(free)
	for _, g := range r.gpus {
		after[g] -= need(d, &n.inventory.GPUs[g], n.inventory.SharesPerGPU)
	}
	if o.policyOf(p) == contract.PlacementLeastWaste {
		last := &n.inventory.GPUs[r.gpus[len(r.gpus)-1]]
		r.score = o.workload.score(n, last, free, after, cpu, cpu-p.amounts[corev1.ResourceCPU])
		return r
	}
	r.score = simpleScore(o.policyOf(p), n, r.gpus, after, d.Memory > 0)
	return r
}

// simpleScore rates a node by what it looks like with the pod on it: binpack by
// how full it is, then by how little stays free on the pod's GPUs, then by how
// small these are; size comes first where memory is asked for. Spread wants the
// opposite.
func simpleScore(policy contract.Placement, n *apiNode, gpus []int, after []units.Shares, byMemory bool) int64 {
	var all, usedShares int64
	for i, g := range n.inventory.GPUs {
		if g.Healthy {
			all += int64(n.inventory.SharesPerGPU)
			usedShares += int64(n.inventory.SharesPerGPU - after[i])
		}
	}
	var left, size int64
	for _, g := range gpus {
		left += int64(after[g])
		size += int64(n.inventory.GPUs[g].MemoryMiB)
	}
	left, size = left/int64(len(gpus)), size/int64(len(gpus))/1024
	used := int64(min(max(float64(usedShares)/float64(all), 0), 1) * 100_000)
	const width, most = 1 << 20, int64(units.MaxMemory / 1024)
	three := func(a, b, c int64) int64 { return (a*width+b)*width + min(c, width-1) }
	switch {
	case policy == contract.PlacementSpread:
		return three(100_000-used, left, size)
	case byMemory:
		return three(min(most-size, width-1), used, 1000-left)
	default:
		return three(used, 1000-left, most-size)
	}
}

// rateFresh asks package placement about a node of a ledger that was never
// anything else.
func (o *recount) rateFresh(p *apiPod, n *apiNode) int64 {
	l, name := ledger.New(), n.object.Name
	l.SetNode(name, *n.inventory)
	for i, free := range o.free(n, p) {
		g := n.inventory.GPUs[i].UUID
		if used := n.inventory.SharesPerGPU - free; used > 0 {
			l.Allocate(ledger.Claim{Pod: ledger.Pod{UID: types.UID(g)}, Node: name, Charges: map[contract.GPUUUID]units.Shares{g: used}})
		}
	}
	policy := placement.For(o.policyOf(p))
	if o.policyOf(p) == contract.PlacementLeastWaste {
		policy = placement.LeastWaste(waste.NewTables(o.workload.shapes, o.workload.cluster))
	}
	q := placement.New(p.asks, placement.Options{Policy: policy, PerGPU: o.opts.Resources.PerGPU, MilliCPU: p.amounts[corev1.ResourceCPU]})
	score, _ := q.ScoreIn(l.Node(name), placement.CPU(o.left(n, corev1.ResourceCPU, p)))
	return score
}

// wrongGPUs says whether a plan has not the GPUs that the policy takes.
func (r *rating) wrongGPUs(n *apiNode, plan contract.Plan, policy contract.Placement) bool {
	if r.gpus == nil {
		return false
	}
	var has []int
	for _, grants := range plan.Containers {
		for _, grant := range grants {
			has = append(has, slices.IndexFunc(n.inventory.GPUs, func(g contract.GPU) bool { return g.UUID == grant.GPU }))
		}
	}
	if policy != contract.PlacementLeastWaste {
		slices.Sort(has)
		return !slices.Equal(has, slices.Sorted(slices.Values(r.gpus)))
	}
	// As good ones will do, see slack.
	byCost := func(a, b int) int { return slices.Compare(r.costs[a][:], r.costs[b][:]) }
	slices.SortFunc(has, byCost)
	for i := range has {
		if math.Abs(r.costs[has[i]][0]-r.costs[r.gpus[i]][0]) > 1 {
			return true
		}
	}
	return false
}

// first says whether a comes before b where both are rated the same.
func first(a, b string) bool {
	x, y := fnv.New64a(), fnv.New64a()
	_, _ = x.Write([]byte(a))
	_, _ = y.Write([]byte(b))
	return x.Sum64() < y.Sum64() || x.Sum64() == y.Sum64() && a < b
}

// bestOf says which of some rated nodes are the best: one, but for slack.
func bestOf(scores map[string]int64, policy contract.Placement) map[string]bool {
	most := int64(math.MinInt64)
	for _, s := range scores {
		most = max(most, s)
	}
	best := map[string]bool{}
	for name, s := range scores {
		if s >= most-slack(policy) {
			best[name] = true
		}
	}
	if slack(policy) == 0 {
		for a := range best {
			for b := range best {
				if first(a, b) {
					delete(best, b)
				}
			}
		}
	}
	return best
}

// prioritiesOf are what a node that is not the best may get from Prioritize, at
// least and at most: 9 if it is as good as the best, 0 if it is the worst, and in
// proportion between.
func prioritiesOf(scores map[string]int64, name string, policy contract.Placement) (least, most int64) {
	low, high := int64(math.MaxInt64), int64(math.MinInt64)
	for _, s := range scores {
		low, high = min(low, s), max(high, s)
	}
	by := slack(policy)
	switch span := high - low; {
	case by == 0 && span == 0:
		return 9, 9
	case span <= 4*by:
		return 0, 9
	}
	part := func(by int64) int64 {
		return min(max(int64(float64(scores[name]+by-low)/float64(high-low)*9), 0), 9)
	}
	return part(-2 * by), part(2 * by)
}
