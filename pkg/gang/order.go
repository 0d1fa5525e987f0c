package gang

import (
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/tranche-dev/tranche/pkg/units"
)

// What the search among several shapes may cost, apart from the first attempt
// on any set of sites: the number of attempts that begin with one order, and
// the work of all, in times that a site is rated (some hundred nanoseconds). To
// put a member on a site costs takeWork, to search for copies searchWork.
const (
	maxSqueezes = 8
	maxWork     = 1_000_000
	takeWork    = 20
	searchWork  = 200
)

// squeeze tries an order of the shapes and, if one finds no room, the order
// with that shape in front, and so on: what is hard to place turns out by
// failing. tried are the orders that failed already.
func (p *planner) squeeze(sites []site, order []*shape, packed bool, tried map[string]bool) []Place {
	for range maxSqueezes {
		key := orderKey(order)
		first := len(tried) == 0 && !packed
		if tried[key] || !first && p.work+len(order)*len(sites) > maxWork {
			return nil
		}
		tried[key] = true
		places, failed := p.attempt(sites, order, packed)
		if failed <= 0 {
			return places // none if the first shape alone has no room
		}
		squeaky := order[failed]
		order = slices.Insert(slices.Delete(slices.Clone(order), failed, failed+1), 0, squeaky)
	}
	return nil
}

func orderKey(order []*shape) string {
	var key []byte
	for _, s := range order {
		key = binary.AppendVarint(key, int64(s.id))
	}
	return string(key)
}

// orders are the orders of the shapes with which fill begins. Whoever comes
// first has the choice, so each puts another kind of difficulty first: big
// pods, pods for which there is little room, and pods that few nodes take at
// all; and last the contrary of the first, which helps where a big pod has many
// ways to go that all but one are in the way of others. Pods without GPUs come
// last in each, and first only where squeeze finds that they must.
func (p *planner) orders(sites []site) [][]*shape {
	if len(p.shapes) == 1 {
		return [][]*shape{p.shapes}
	}
	size := map[*shape]float64{}
	room := map[*shape]float64{}
	nodes := map[*shape]int{}
	for _, s := range p.shapes {
		size[s] = s.size(p.opts.Resources.PerGPU)
		room[s] = float64(s.placesOn(sites)) / float64(s.count)
		for i := range sites {
			nodes[s] += min(s.bound[sites[i].id], 1)
		}
	}
	bigFirst := func(a, b *shape) int { return cmp.Or(cmp.Compare(size[b], size[a]), cmp.Compare(a.key, b.key)) }
	rareFirst := func(a, b *shape) int { return cmp.Or(cmp.Compare(room[a], room[b]), bigFirst(a, b)) }
	pickyFirst := func(a, b *shape) int { return cmp.Or(cmp.Compare(nodes[a], nodes[b]), bigFirst(a, b)) }
	smallFirst := func(a, b *shape) int { return bigFirst(b, a) }
	var orders [][]*shape
	for _, compare := range []func(a, b *shape) int{bigFirst, rareFirst, pickyFirst, smallFirst} {
		orders = append(orders, slices.SortedFunc(slices.Values(p.shapes), func(a, b *shape) int {
			if a.plain() != b.plain() { // GPUs are what is scarce
				return cmp.Compare(len(b.request.Demands), len(a.request.Demands))
			}
			return compare(a, b)
		}))
	}
	return orders
}

// size is a measure of how much of a node's GPUs a pod takes: whole GPUs and
// many of them are harder to find than their shares in pieces.
func (s *shape) size(perGPU units.Shares) float64 {
	const usual = 81920 // MiB; only to compare memory with shares
	sum := 0.0
	for _, d := range s.request.Demands {
		part := float64(d.SharesOn(usual, max(perGPU, 1))) / float64(max(perGPU, 1))
		sum += part * part * float64(d.Count) * float64(d.Count)
	}
	return sum
}
