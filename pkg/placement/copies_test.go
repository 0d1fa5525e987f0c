package placement_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/placement"
	"github.com/tranche-dev/tranche/pkg/units"
)

// mostCopies tries everything: how often need, one item per container, fits.
// free are the shares of each GPU, in equal GPUs.
func mostCopies(free []units.Shares, demands []contract.Demand, limit int) int {
	if limit == 0 {
		return 0
	}
	best := 0
	var item func(i, from, missing int)
	item = func(i, from, missing int) {
		if best == limit {
			return
		}
		if missing == 0 {
			if i++; i == len(demands) {
				best = max(best, 1+mostCopies(free, demands, limit-1))
				return
			}
			from, missing = 0, demands[i].Count
		}
		for g := from; g+missing <= len(free); g++ {
			if need := demands[i].SharesOn(81920, 100); need <= free[g] {
				free[g] -= need
				item(i, g+1, missing-1)
				free[g] += need
			}
		}
	}
	item(0, 0, demands[0].Count)
	return best
}

func TestCopiesFindsTheMostThatFit(t *testing.T) {
	const limit = 4
	more := 0
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 0))
		var gpus []gpu
		var free []units.Shares
		for range 1 + r.IntN(4) {
			f := []units.Shares{0, 20, 30, 50, 60, 75, 100}[r.IntN(7)]
			gpus, free = append(gpus, use(a100, 100-f)), append(free, f)
		}
		var demands []contract.Demand
		for range 1 + r.IntN(2) {
			demands = append(demands, demand{Count: 1 + r.IntN(2), Shares: []units.Shares{10, 25, 30, 40, 50}[r.IntN(5)]})
		}
		req := ask(demands...)
		n, q := node("n", gpus...), placement.New(req, placement.Options{})
		got, want := q.Copies(n, limit), mostCopies(free, req.Demands, limit)
		if got != want {
			t.Fatalf("seed %d: %d copies of %v on GPUs with %v free, want %d", seed, got, req.Demands, free, want)
		}
		if bound := q.Bound(n, limit); bound < got || len(demands) == 1 && bound != got {
			t.Fatalf("seed %d: bound %d of %d copies", seed, bound, got)
		}
		plans := q.Pack(n, got)
		if len(plans) != got {
			t.Fatalf("seed %d: %d plans for %d copies", seed, len(plans), got)
		}
		checkPacked(t, seed, n, q, plans)
		if plans := q.Pack(n, got+1); got < limit && plans != nil {
			t.Fatalf("seed %d: %d plans, but only %d copies fit: %v", seed, len(plans), got, plans)
		}
		if got > inTurn(q, n, limit) {
			more++
		}
	}
	if more == 0 {
		t.Error("to place one after the other was always as good: the cases are too easy")
	}
}

// checkPacked charges all plans and finds no GPU beyond its shares.
func checkPacked(t *testing.T, seed uint64, n *ledger.NodeView, q *placement.Query, plans []contract.Plan) {
	t.Helper()
	left := map[contract.GPUUUID]units.Shares{}
	for _, g := range n.GPUs() {
		left[g.Facts.UUID] = g.Free
	}
	for _, p := range plans {
		if _, err := p.Format(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for gpu, s := range p.Charges(q.Roles()) {
			if left[gpu] -= s; left[gpu] < 0 {
				t.Fatalf("seed %d: %v is beyond what is free on %s", seed, plans, gpu)
			}
		}
	}
}

// inTurn places as single pods are placed.
func inTurn(q *placement.Query, n *ledger.NodeView, limit int) int {
	for k := range limit {
		plan, reason := q.Plan(n)
		if reason != "" {
			return k
		}
		uid := types.UID(fmt.Sprintf("copy-%d", k))
		n = n.With(ledger.Claim{Pod: ledger.Pod{UID: uid}, Charges: plan.Charges(q.Roles())})
	}
	return limit
}

func TestCopiesOfSeveralGPUsNeedsTheRightPairs(t *testing.T) {
	// GPUs with room for 1, 1 and 2: two pods of two GPUs fit only if neither
	// takes the first two.
	n := node("n", use(a100, 60), use(a100, 60), use(a100, 20))
	q := placement.New(ask(demand{Count: 2, Shares: 40}), placement.Options{})
	if got := inTurn(q, n, 9); got != 1 {
		t.Errorf("%d pods fit one after the other: the case shows nothing", got)
	}
	if got := q.Copies(n, 9); got != 2 {
		t.Errorf("%d copies, want 2", got)
	}
	if plans := q.Pack(n, 2); len(plans) != 2 {
		t.Errorf("plans %v, want two", plans)
	}
}

func TestCopiesOfContainersOnSameGPUs(t *testing.T) {
	req := ask(demand{Shares: 40}, demand{Shares: 30})
	req.Demands[0].Role, req.SameGPUs = contract.RoleInit, true
	n := node("n", use(a100, 0), use(a100, 30))
	// The init container's 40 are the peak: 2 on the first GPU, 1 on the other.
	if got := placement.New(req, placement.Options{}).Copies(n, 9); got != 3 {
		t.Errorf("%d copies, want 3", got)
	}
}

func TestCopiesWhereNothingFits(t *testing.T) {
	n := node("n", use(a100, 0))
	cases := map[string]struct {
		req  contract.Request
		opts placement.Options
		node *ledger.NodeView
	}{
		"no inventory":   {ask(demand{Shares: 1}), placement.Options{}, nil},
		"no GPUs":        {ask(demand{Shares: 1}), placement.Options{}, node("e")},
		"other grain":    {ask(demand{Shares: 1}), placement.Options{PerGPU: 10}, n},
		"malformed":      {ask(demand{}), placement.Options{}, n},
		"too much":       {ask(demand{Memory: 90000}), placement.Options{}, n},
		"too many":       {ask(demand{Count: 2, Shares: 1}), placement.Options{}, n},
		"another model":  {contract.Request{Demands: ask(demand{Shares: 1}).Demands, Models: []string{a30}}, placement.Options{}, n},
		"sick":           {ask(demand{Shares: 1}), placement.Options{}, node("s", gpu{model: a100, sick: true})},
		"not both of it": {ask(demand{Shares: 60}, demand{Shares: 50}), placement.Options{}, n},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			q := placement.New(tc.req, tc.opts)
			if got := q.Copies(tc.node, 3); got != 0 {
				t.Errorf("%d copies, want none", got)
			}
			if plans := q.Pack(tc.node, 1); plans != nil {
				t.Errorf("plans %v, want none", plans)
			}
		})
	}
}
