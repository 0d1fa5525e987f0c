package queue

import (
	"fmt"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func vessels(weightsAndMosts ...int64) []part {
	var parts []part
	for i := 0; i < len(weightsAndMosts); i += 2 {
		name := fmt.Sprintf("%03d", i/2)
		parts = append(parts, part{node: &node{name: name}, weight: weightsAndMosts[i], most: weightsAndMosts[i+1]})
	}
	return parts
}

// filled are the results in the order of names.
func filled(amount int64, parts []part) (got []int64, left int64) {
	left = fill(amount, parts)
	got = make([]int64, len(parts))
	for _, p := range parts {
		var i int
		_, _ = fmt.Sscan(p.node.name, &i)
		got[i] = p.got
	}
	return got, left
}

func TestFill(t *testing.T) {
	cases := map[string]struct {
		amount   int64
		parts    []part
		want     []int64
		wantLeft int64
	}{
		"nobody":                        {10, nil, []int64{}, 10},
		"enough":                        {10, vessels(1, 3, 5, 4), []int64{3, 4}, 3},
		"nothing":                       {0, vessels(1, 3, 5, 4), []int64{0, 0}, 0},
		"one is full, then another":     {20, vessels(1, 2, 1, 6, 2, 50), []int64{2, 6, 12}, 0},
		"full exactly at the level":     {12, vessels(1, 3, 1, 9, 2, 9), []int64{3, 3, 6}, 0},
		"no weight":                     {5, vessels(0, 0, 1, 9), []int64{0, 5}, 0},
		"one unit to the most cut":      {1, vessels(1, 9, 2, 9, 2, 9), []int64{0, 1, 0}, 0},
		"a lid just above":              {3, vessels(1, 1, 3, 9), []int64{1, 2}, 0},
		"amounts beyond any cluster":    {math.MaxInt64, vessels(math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64), []int64{1 << 62, 1<<62 - 1}, 0},
		"more is wanted than an int64 ": {9, vessels(2, math.MaxInt64, 1, math.MaxInt64), []int64{6, 3}, 0},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, left := filled(tc.amount, tc.parts)
			if diff := cmp.Diff(tc.want, got); diff != "" || left != tc.wantLeft {
				t.Errorf("left %d, want %d; got (-want +got):\n%s", left, tc.wantLeft, diff)
			}
		})
	}
}

// TestFillOfEqualWeightsIsSharByShare: among equal weights, filling is to give
// one unit after the other to whoever has least, the first by name.
func TestFillOfEqualWeightsIsShareByShare(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		amount := rapid.Int64Range(0, 60).Draw(t, "amount")
		weight := rapid.Int64Range(1, 1<<40).Draw(t, "weight")
		mosts := rapid.SliceOfN(rapid.Int64Range(0, 12), 0, 8).Draw(t, "mosts")
		var in []int64
		for _, most := range mosts {
			in = append(in, weight, most)
		}
		want, left := make([]int64, len(mosts)), amount
		for ; left > 0; left-- {
			least := -1
			for i := range want {
				if want[i] < mosts[i] && (least < 0 || want[i] < want[least]) {
					least = i
				}
			}
			if least < 0 {
				break
			}
			want[least]++
		}
		got, gotLeft := filled(amount, vessels(in...))
		if diff := cmp.Diff(want, got); diff != "" || left != gotLeft {
			t.Fatalf("%d to %v: left %d, want %d; got (-want +got):\n%s", amount, mosts, gotLeft, left, diff)
		}
	})
}

// TestFillOfWeightsIsAsFairAsWholeUnitsAllow: whoever got less than it could
// use is at most one unit short of the level that anybody else reached.
func TestFillOfWeightsIsAsFairAsWholeUnitsAllow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		amount := rapid.Int64Range(0, 1<<40).Draw(t, "amount")
		parts := vessels(rapid.SliceOfN(rapid.Int64Range(1, 1<<20), 2, 2*9).Filter(func(s []int64) bool { return len(s)%2 == 0 }).Draw(t, "parts")...)
		most := map[string]int64{}
		for i := range parts {
			parts[i].most *= 1 << 10
			most[parts[i].node.name] = parts[i].most
		}
		sum := fill(amount, parts)
		if short := sum; short > 0 {
			for _, p := range parts {
				if p.got != p.most {
					t.Fatalf("%d are left though %+v could use some", short, p)
				}
			}
		}
		for _, p := range parts {
			sum += p.got
			if p.got < 0 || p.got > p.most || p.most != most[p.node.name] {
				t.Fatalf("%+v, want between 0 and its most", p)
			}
			for _, q := range parts {
				if p.got < p.most && compareProducts(max(q.got-1, 0), p.weight, p.got+1, q.weight) > 0 {
					t.Fatalf("%+v would be nearer to its part with a unit of %+v", p, q)
				}
			}
		}
		if sum != amount {
			t.Fatalf("%d were divided, want %d", sum, amount)
		}
	})
}
