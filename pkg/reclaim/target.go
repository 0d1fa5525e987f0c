package reclaim

import (
	"cmp"
	"slices"

	"github.com/tranche-dev/tranche/pkg/units"
)

// targets lists ways to put one member on a site's GPUs: the shares that it
// takes of each. Ways that cannot be had are left out, and so are those beyond
// maxTargets, the dearest ones. A kind without GPUs has one way.
func (s *search) targets() [][]units.Shares {
	gpus := s.st.gpus.GPUs()
	if s.k.query == nil {
		return [][]units.Shares{nil}
	}
	var all [][]units.Shares
	need := make([]units.Shares, len(gpus))
	cheapest, visits := s.cheapest(), 0
	// item places the rest of items[i:], of which left GPUs are missing for
	// items[i]; those are taken from the order of cheapest, at from and later.
	var item func(i, left, from int)
	item = func(i, left, from int) {
		if visits++; len(all) == maxTargets || visits > maxVisits {
			return
		}
		if left == 0 {
			if i++; i == len(s.k.items) {
				all = append(all, slices.Clone(need))
				return
			}
			left, from = s.k.items[i].count, 0
		}
		for at := from; at+left <= len(cheapest); at++ {
			g := cheapest[at]
			n := s.k.items[i].need(gpus[g].Class)
			if need[g]+n > s.reach[g] || need[g]+n > s.st.gpus.SharesPerGPU() {
				continue
			}
			need[g] += n
			item(i, left-1, at+1)
			need[g] -= n
		}
	}
	item(-1, 0, 0)
	return all
}

// cheapest lists the GPUs that suit, first those from which the fewest pods
// must go, at least, before the biggest item finds room.
func (s *search) cheapest() []int {
	gpus := s.st.gpus.GPUs()
	var order []int
	price := make([]int, len(gpus))
	for g := range gpus {
		if !s.k.suits(&gpus[g]) {
			continue
		}
		order = append(order, g)
		biggest := units.Shares(0)
		for i := range s.k.items {
			biggest = max(biggest, s.k.items[i].need(gpus[g].Class))
		}
		price[g] = s.price(g, int64(biggest-gpus[g].Free))
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(price[a], price[b]) })
	return order
}

// price is how many pods go, at least, until so many shares of a GPU are free.
func (s *search) price(g int, lack int64) int {
	if lack <= 0 {
		return 0
	}
	biggest := append(s.scratch[:0], s.frees[g]...)
	s.scratch = biggest
	slices.Sort(biggest)
	n := 0
	for ; n < len(biggest) && lack > 0; n++ {
		lack -= biggest[len(biggest)-1-n]
	}
	return n
}
