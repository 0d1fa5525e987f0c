package placement_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/tranche-dev/tranche/pkg/placement"
)

func TestPriorities(t *testing.T) {
	cases := map[string]struct {
		scores []int64
		want   []int64
	}{
		"no nodes":           {want: []int64{}},
		"one node":           {scores: []int64{7}, want: []int64{10}},
		"in proportion":      {scores: []int64{0, 50, 90, 100}, want: []int64{0, 4, 8, 10}},
		"equal ones by hash": {scores: []int64{5, 5, 5}, want: []int64{9, 10, 9}},
		"ties for the top":   {scores: []int64{3, 0, 3, 1}, want: []int64{10, 0, 9, 3}},
		"close together":     {scores: []int64{1 << 60, 1<<60 + 8, 1<<60 + 16}, want: []int64{0, 4, 10}},
		"the whole range":    {scores: []int64{math.MinInt64, math.MaxInt64, 0}, want: []int64{0, 10, 4}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var nodes []string
			for i := range tc.scores {
				nodes = append(nodes, fmt.Sprintf("n%d", i))
			}
			if diff := cmp.Diff(tc.want, placement.Priorities(nodes, tc.scores)); diff != "" {
				t.Errorf("priorities (-want +got):\n%s", diff)
			}
		})
	}
}

func TestExactlyOneNodeGetsTheTopPriorityWhateverTheOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		scores := rapid.SliceOfN(rapid.OneOf(rapid.Int64Range(0, 5), rapid.Int64()), 1, 20).Draw(t, "scores")
		var nodes []string
		for i := range scores {
			nodes = append(nodes, fmt.Sprintf("node-%d", i))
		}
		got := placement.Priorities(nodes, scores)
		best := placement.Best(nodes, scores)
		for i := range scores {
			switch {
			case got[i] < 0 || got[i] > placement.MaxPriority:
				t.Fatalf("priority %d", got[i])
			case (got[i] == placement.MaxPriority) != (i == best):
				t.Fatalf("node %d has priority %d, the best is %d", i, got[i], best)
			case scores[i] > scores[best]:
				t.Fatalf("score %d beats the best, %d", scores[i], scores[best])
			}
			for j := range scores {
				if scores[i] > scores[j] && got[i] < got[j] {
					t.Fatalf("scores %d, %d have priorities %d, %d", scores[i], scores[j], got[i], got[j])
				}
			}
		}
		order := rapid.Permutation(slices.Clone(nodes)).Draw(t, "order")
		shuffled := make([]int64, len(order))
		for i, name := range order {
			shuffled[i] = scores[slices.Index(nodes, name)]
		}
		again := placement.Priorities(order, shuffled)
		for i, name := range order {
			if want := got[slices.Index(nodes, name)]; again[i] != want {
				t.Fatalf("node %s has priority %d in one order, %d in another", name, want, again[i])
			}
		}
	})
}

func TestBeforeIsAnOrder(t *testing.T) {
	for i := range 50 {
		for j := range 50 {
			a, b := fmt.Sprint("n", i), fmt.Sprint("n", j)
			if placement.Before(a, b) == placement.Before(b, a) && i != j || i == j && placement.Before(a, b) {
				t.Errorf("Before(%s, %s) is %v both ways", a, b, placement.Before(a, b))
			}
		}
	}
	if placement.Best(nil, nil) != -1 || placement.Best([]string{"a"}, nil) != -1 {
		t.Error("Best of nothing is not -1")
	}
}
