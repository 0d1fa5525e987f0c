package queue

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
)

// part is one of those that an amount is divided among.
type part struct {
	node *node
	// weight is the part's claim relative to the others, most what it can make
	// use of. A part of weight zero must have most zero.
	weight, most int64
	got          int64
	// rest is what rounding down has cost, as a numerator over one common
	// denominator.
	rest uint64
}

// fill divides amount among parts by weight, none getting more than its most;
// what one cannot use goes to the others. It sets got of each and returns what
// nobody can use. It may change the order of parts.
//
// Think of vessels as wide as their weights, with lids, filled to one level.
// All of amount is spent unless every vessel is full. Only those below their
// lid are rounded: down, and then one unit more to each of those that lost the
// most by it, among equals the first by name.
func fill(amount int64, parts []part) (left int64) {
	var most int64
	for i := range parts {
		parts[i].got = 0
		most = add(most, parts[i].most)
	}
	if most <= amount && most < math.MaxInt64 {
		for i := range parts {
			parts[i].got = parts[i].most
		}
		return amount - most
	}
	if amount <= 0 {
		return 0
	}
	parts = parts[contentFirst(parts):]
	weight := sumWeights(parts)
	// The lower the lid, the earlier the vessel is full.
	slices.SortFunc(parts, func(a, b part) int { return compareProducts(a.most, b.weight, b.most, a.weight) })
	full := 0
	for ; full < len(parts) && compareProducts(parts[full].most, weight, amount, parts[full].weight) <= 0; full++ {
		p := &parts[full]
		p.got = p.most
		amount -= p.most
		weight -= p.weight
	}
	spread(amount, weight, parts[full:])
	return 0
}

// contentFirst moves the parts that want nothing to the front and returns how
// many they are.
func contentFirst(parts []part) int {
	content := 0
	for i := range parts {
		if parts[i].most <= 0 {
			parts[i], parts[content] = parts[content], parts[i]
			content++
		}
	}
	return content
}

// sumWeights returns the sum of all weights. If no int64 holds it, which takes
// amounts that no cluster has, all are first made smaller by the same factor.
func sumWeights(parts []part) int64 {
	for {
		var sum int64
		for i := range parts {
			sum = add(sum, parts[i].weight)
		}
		if sum < math.MaxInt64 {
			return sum
		}
		for i := range parts {
			parts[i].weight = max(parts[i].weight>>8, 1)
		}
	}
}

// spread divides all of amount by weight; weight is the sum of the parts'. No
// part's most is in the way, nor if it gets one more than its share rounded
// down.
func spread(amount, weight int64, parts []part) {
	if amount <= 0 || len(parts) == 0 {
		return
	}
	left := amount
	for i := range parts {
		high, low := bits.Mul64(uint64(amount), uint64(parts[i].weight))
		share, rest := bits.Div64(high, low, uint64(weight))
		parts[i].got, parts[i].rest = int64(share), rest
		left -= int64(share)
	}
	slices.SortFunc(parts, func(a, b part) int {
		return cmp.Or(cmp.Compare(b.rest, a.rest), cmp.Compare(a.node.name, b.node.name))
	})
	for i := range parts[:left] {
		parts[i].got++
	}
}

// compareProducts compares a*b with c*d; none may be negative.
func compareProducts(a, b, c, d int64) int {
	high1, low1 := bits.Mul64(uint64(a), uint64(b))
	high2, low2 := bits.Mul64(uint64(c), uint64(d))
	return cmp.Or(cmp.Compare(high1, high2), cmp.Compare(low1, low2))
}
