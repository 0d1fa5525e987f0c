package queue_test

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/tranche-dev/tranche/pkg/queue"
)

func TestAmounts(t *testing.T) {
	a, b := queue.Amounts{1, 2}, queue.Amounts{3, 0, 5}
	wantEqual(t, "sum", queue.Amounts{4, 2, 5}, a.Add(b))
	wantEqual(t, "difference", queue.Amounts{-2, 2, -5}, a.Sub(b))
	wantEqual(t, "operands", []queue.Amounts{{1, 2}, {3, 0, 5}}, []queue.Amounts{a, b})
	wantEqual(t, "too much", queue.Amounts{math.MaxInt64, math.MinInt64}, queue.Amounts{math.MaxInt64, math.MinInt64}.Add(queue.Amounts{1, -1}))
	wantEqual(t, "too little", queue.Amounts{math.MinInt64, math.MaxInt64}, queue.Amounts{-2, 0}.Sub(queue.Amounts{math.MaxInt64, math.MinInt64}))
	if !a.Equal(queue.Amounts{1, 2, 0}) || a.Equal(b) || a.IsZero() || !(queue.Amounts{0, 0}).IsZero() || a.Get(9) != 0 {
		t.Error("what is beyond the length is zero")
	}
}

// TestAbsurdAmountsDoNoHarm: whatever anybody writes, no number wraps.
func TestAbsurdAmountsDoNoHarm(t *testing.T) {
	absurd := rapid.SampledFrom([]int64{math.MinInt64, -1, 0, 1, 1 << 45, math.MaxInt64 - 1, math.MaxInt64})
	amounts := func(t *rapid.T, label string) queue.Amounts {
		return queue.Amounts(rapid.SliceOfN(absurd, 0, 3).Draw(t, label))
	}
	rapid.Check(t, func(t *rapid.T) {
		tree, o := queue.New(), newOracle()
		plant(t, tree, o)
		for _, name := range queueNames {
			spec := o.specs[name]
			spec.Weight, spec.Deserved, spec.Limit = absurd.Draw(t, "weight"), amounts(t, "deserved"), amounts(t, "limit")
			tree.Set(spec)
			tree.Charge("new", name, queue.Pending, amounts(t, "amounts"))
		}
		for id, c := range o.charges {
			tree.Charge(id, c.Queue, c.State, amounts(t, "amounts"))
		}
		tree.SetCapacity(amounts(t, "capacity"))
		total := tree.Total()
		for r := range queue.FirstModel {
			var fair int64
			for _, name := range tree.Children("") {
				share := tree.Usage(name).FairShare.Get(r)
				if tree.Managed(r) {
					fair += share
				}
				if share < 0 || fair < 0 || tree.Managed(r) && fair > total.FairShare.Get(r) {
					t.Fatalf("%s has a fair share of %d of %d", name, share, total.FairShare.Get(r))
				}
			}
			if total.Demand.Get(r) < 0 {
				t.Fatalf("demand is %d", total.Demand.Get(r))
			}
		}
		for _, name := range queueNames {
			ask := amounts(t, "ask")
			tree.Check(name, ask)
			x := tree.Trial(name, ask)
			for _, other := range queueNames {
				if x.MayTake(other, ask) {
					x.Take(other, ask)
				}
			}
			x.Justified()
		}
	})
}
