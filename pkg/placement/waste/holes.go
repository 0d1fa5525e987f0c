package waste

import (
	"cmp"
	"math"
	"slices"

	"github.com/tranche-dev/tranche/pkg/units"
)

// chances is how many arrivals a free part of a GPU waits for, of which it gets
// the one that leaves least. Replays of openb with 20 placed up to 0.3 percentage
// points less, with 40 up to 0.1 more, but beyond is a cliff: with 100, a load of
// mostly shares lost seven points by the time that all GPUs had been asked for.
const chances = 30

// fitting is the part that pods of one size take, and their part of all pods
// of one GPU.
type fitting struct {
	part   int
	weight float64
}

// holes returns, for every number of free parts of a GPU of that model, how many
// thousandths will be left of it in the end: if, of every 30 pods of one GPU that
// arrive, it gets the one after which least will be left. A hole that hardly any
// of 30 pods fits may stay as it is.
func holes(model string, memory units.MiB, shapes []Counted) [Grain + 1]float64 {
	var left [Grain + 1]float64
	sizes := sizesOf(model, memory, shapes)
	fits := make([]fitting, 0, len(sizes))
	for x := 1; x <= Grain; x++ {
		fits = fits[:0]
		for _, s := range sizes {
			if s.part <= x {
				fits = append(fits, s)
			}
		}
		asItIs := float64(x) * perPart
		if len(fits) == 0 {
			left[x] = asItIs
			continue
		}
		slices.SortFunc(fits, func(a, b fitting) int {
			return cmp.Or(cmp.Compare(left[x-a.part], left[x-b.part]), cmp.Compare(a.weight, b.weight), cmp.Compare(a.part, b.part))
		})
		// none is the chance that none of 30 pods is among those looked at.
		sum, none, expected := 0.0, 1.0, 0.0
		for _, f := range fits {
			sum = min(sum+f.weight, 1)
			now := math.Pow(1-sum, chances)
			expected += left[x-f.part] * (none - now)
			none = now
		}
		left[x] = expected + none*asItIs
	}
	return left
}

// sizesOf sums up the shapes of one GPU that may use the model, by the part that
// they take of a GPU of that size.
func sizesOf(model string, memory units.MiB, shapes []Counted) []fitting {
	var counts [Grain + 1]int
	all := 0
	for i := range shapes {
		s := &shapes[i].Shape
		if s.GPUs != 1 || !s.allows(model) {
			continue
		}
		if p := s.partOn(memory); p <= Grain {
			counts[p] += shapes[i].Count
			all += shapes[i].Count
		}
	}
	var sizes []fitting
	for p, n := range counts {
		if n > 0 {
			sizes = append(sizes, fitting{p, float64(n) / float64(all)})
		}
	}
	return sizes
}
