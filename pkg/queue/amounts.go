package queue

import (
	"math"
	"slices"
)

// Resource is an index into Amounts.
type Resource int

const (
	// GPU is counted in shares, all models together.
	GPU Resource = iota
	// CPU is counted in thousandths of a core.
	CPU
	// Memory is main memory in bytes.
	Memory
	// FirstModel is the first GPU model that Tree.Model has named; its shares
	// are part of GPU and not in addition to it.
	FirstModel
)

// Unlimited stands for the absence of a limit.
const Unlimited = math.MaxInt64

// Amounts is a quantity of every Resource. What is beyond its length is zero.
// It must not be changed once somebody else has it.
type Amounts []int64

// Get returns the amount of r.
func (a Amounts) Get(r Resource) int64 {
	if int(r) >= len(a) {
		return 0
	}
	return a[r]
}

// Add returns a+b; what no int64 holds is the nearest that one does.
func (a Amounts) Add(b Amounts) Amounts {
	sum := make(Amounts, max(len(a), len(b)))
	for r := range sum {
		sum[r] = add(a.Get(Resource(r)), b.Get(Resource(r)))
	}
	return sum
}

// Sub returns a-b, entries below zero included.
func (a Amounts) Sub(b Amounts) Amounts {
	difference := make(Amounts, max(len(a), len(b)))
	for r := range difference {
		difference[r] = subtract(a.Get(Resource(r)), b.Get(Resource(r)))
	}
	return difference
}

// IsZero says whether every entry is zero.
func (a Amounts) IsZero() bool {
	return !slices.ContainsFunc(a, func(x int64) bool { return x != 0 })
}

// Equal says whether a and b are the same amounts, whatever their lengths.
func (a Amounts) Equal(b Amounts) bool {
	for r := range max(len(a), len(b)) {
		if a.Get(Resource(r)) != b.Get(Resource(r)) {
			return false
		}
	}
	return true
}

// limit returns the entry of r in a list of limits, in which what is absent is
// unlimited and nothing is below zero.
func (a Amounts) limit(r int) int64 {
	if r >= len(a) {
		return Unlimited
	}
	return max(a[r], 0)
}

// maxCharge bounds an entry of one charge, so that sums over 2^18 pods stay
// below 2^63. As memory it is 32 TiB, the size of the largest machines.
const maxCharge = 1 << 45

// bounded returns a with every entry within zero and most: a itself if it is.
func (a Amounts) bounded(most int64) Amounts {
	if !slices.ContainsFunc(a, func(x int64) bool { return x < 0 || x > most }) {
		return a
	}
	b := make(Amounts, len(a))
	for r, x := range a {
		b[r] = min(max(x, 0), most)
	}
	return b
}

// add returns a+b, or the nearest that an int64 holds.
func add(a, b int64) int64 {
	sum := a + b
	switch {
	case a > 0 && b > 0 && sum < 0:
		return math.MaxInt64
	case a < 0 && b < 0 && sum >= 0:
		return math.MinInt64
	}
	return sum
}

// subtract returns a-b, or the nearest that an int64 holds.
func subtract(a, b int64) int64 {
	difference := a - b
	switch {
	case a >= 0 && b < 0 && difference < 0:
		return math.MaxInt64
	case a < 0 && b > 0 && difference >= 0:
		return math.MinInt64
	}
	return difference
}
