package placement_test

import (
	"math"
	"regexp"
	"testing"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/placement"
	"github.com/tranche-dev/tranche/pkg/units"
)

func TestRefusalsSayWhatWouldHelp(t *testing.T) {
	sick := func(g gpu) gpu { g.sick = true; return g }
	fenced := func(g gpu) gpu { g.isolation = contract.IsolationCgroup; return g }
	only := func(model string, d ...demand) contract.Request {
		req := ask(d...)
		req.Models = []string{model}
		return req
	}
	isolated := func(d ...demand) contract.Request {
		req := ask(d...)
		req.RequireIsolation = true
		return req
	}
	half, whole, pair := demand{Shares: 50}, demand{Whole: true}, demand{Whole: true, Count: 2}
	cases := map[string]struct {
		gpus []gpu
		req  contract.Request
		want placement.Reason
	}{
		"room":                           {gpus: []gpu{use(a100, 50)}, req: ask(half)},
		"nothing asked":                  {gpus: []gpu{use(a100, 100)}, req: ask()},
		"no GPUs":                        {req: ask(half), want: placement.NoGPUs},
		"another model":                  {gpus: []gpu{use(a100, 0)}, req: only(a30, half), want: placement.NoSuchModel},
		"the right model":                {gpus: []gpu{use(a100, 100), use(a30, 0)}, req: only(a30, half)},
		"the right model, full":          {gpus: []gpu{use(a100, 0), use(a30, 60)}, req: only(a30, half), want: placement.NotEnoughFree},
		"no model, and full":             {gpus: []gpu{use(a100, 100)}, req: only(a30, half), want: placement.NoSuchModel},
		"limit not enforced":             {gpus: []gpu{use(a100, 0)}, req: isolated(half), want: placement.NoIsolation},
		"limit enforced":                 {gpus: []gpu{use(a100, 0), fenced(use(a100, 0))}, req: isolated(half)},
		"limit enforced on too few":      {gpus: []gpu{use(a100, 0), fenced(use(a100, 0))}, req: isolated(pair), want: placement.NoIsolation},
		"limit enforced, full":           {gpus: []gpu{use(a100, 0), fenced(use(a100, 60))}, req: isolated(half), want: placement.NotEnoughFree},
		"more memory than there is":      {gpus: []gpu{use(a30, 0), use(a30, 0)}, req: ask(demand{Memory: 25000}), want: placement.TooBig},
		"memory beyond counting":         {gpus: []gpu{use(a30, 0)}, req: ask(demand{Memory: math.MaxInt64}), want: placement.TooBig},
		"as much memory as there is":     {gpus: []gpu{use(a30, 0)}, req: ask(demand{Memory: 24576})},
		"more memory than is free":       {gpus: []gpu{use(a30, 10)}, req: ask(demand{Memory: 24576}), want: placement.NotEnoughFree},
		"memory on more than there are":  {gpus: []gpu{use(a30, 0), use(a100, 0)}, req: ask(demand{Memory: 25000, Count: 2}), want: placement.TooFewGPUs},
		"more GPUs than there are":       {gpus: []gpu{use(a100, 0)}, req: ask(pair), want: placement.TooFewGPUs},
		"more of a model than there are": {gpus: []gpu{use(a100, 0), use(a30, 0)}, req: only(a30, pair), want: placement.TooFewGPUs},
		"all unhealthy":                  {gpus: []gpu{sick(use(a100, 0))}, req: ask(half), want: placement.Unhealthy},
		"unhealthy or full":              {gpus: []gpu{sick(use(a100, 0)), use(a100, 60)}, req: ask(half), want: placement.NotEnoughFree},
		"too few healthy":                {gpus: []gpu{sick(use(a100, 0)), use(a100, 0)}, req: ask(pair), want: placement.Unhealthy},
		"too few healthy for all":        {gpus: []gpu{sick(use(a100, 0)), use(a100, 0)}, req: ask(whole, half), want: placement.Unhealthy},
		"none wholly free":               {gpus: []gpu{use(a100, 1), use(a100, 1)}, req: ask(whole), want: placement.NoWholeGPU},
		"one share missing":              {gpus: []gpu{use(a100, 51), use(a100, 51)}, req: ask(half), want: placement.NotEnoughFree},
		"one GPU missing":                {gpus: []gpu{use(a100, 50), use(a100, 51)}, req: ask(demand{Shares: 50, Count: 2}), want: placement.NotEnoughGPUs},
		"one whole GPU missing":          {gpus: []gpu{use(a100, 0), use(a100, 1)}, req: ask(pair), want: placement.NotEnoughGPUs},
		"each alone but not together":    {gpus: []gpu{use(a100, 20), use(a100, 80)}, req: ask(half, half), want: placement.NotTogether},
		"together more than there is":    {gpus: []gpu{use(a100, 0)}, req: ask(whole, half), want: placement.TooBigTogether},
		"permanent before full":          {gpus: []gpu{use(a100, 100)}, req: ask(half, demand{Memory: 1 << 20}), want: placement.TooBig},
		"together too big, and full":     {gpus: []gpu{use(a100, 100)}, req: ask(whole, half), want: placement.TooBigTogether},
		"overcommitted":                  {gpus: []gpu{use(a100, 170)}, req: ask(demand{Shares: 1}), want: placement.NotEnoughFree},
		"a count of nothing":             {gpus: []gpu{use(a100, 0)}, req: contract.Request{Demands: []demand{{Shares: 1}}}, want: placement.Malformed},
		"a demand of nothing":            {gpus: []gpu{use(a100, 0)}, req: ask(demand{}), want: placement.Malformed},
		"a container twice":              {gpus: []gpu{use(a100, 0)}, req: contract.Request{Demands: []demand{app(0, half), app(0, half)}}, want: placement.Malformed},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := placement.New(tc.req, placement.Options{}).Check(node("n", tc.gpus...)); got != tc.want {
				t.Errorf("Check = %q, want %q", got, tc.want)
			}
		})
	}
}

func TestNodesWithoutInventoryAreRefused(t *testing.T) {
	l := ledger.New()
	l.Allocate(ledger.Claim{Pod: ledger.Pod{UID: "a"}, Node: "bare", Charges: map[contract.GPUUUID]units.Shares{"x": 1}})
	for _, name := range []string{"bare", "nobody"} {
		if _, got := placement.Fit(l.Node(name), ask(demand{Shares: 1}), "", nil); got != placement.NoInventory {
			t.Errorf("node %s: %q, want %q", name, got, placement.NoInventory)
		}
	}
}

func TestNodesOfAnotherGrainAreRefused(t *testing.T) {
	n := node("n", use(a100, 0))
	for perGPU, want := range map[units.Shares]placement.Reason{0: "", 100: "", 50: placement.OtherGrain} {
		q := placement.New(ask(demand{Shares: 1}), placement.Options{PerGPU: perGPU})
		if got := q.Check(n); got != want {
			t.Errorf("grain %d: %q, want %q", perGPU, got, want)
		}
	}
}

// A text with a number or a name in it would change, and make the scheduler try
// the pod again.
func TestReasonsAreFixedDistinctSentences(t *testing.T) {
	seen := map[placement.Reason]bool{}
	for _, r := range placement.Reasons() {
		if seen[r] || !regexp.MustCompile(`^[a-zA-Z',. ]{10,90}$`).MatchString(string(r)) {
			t.Errorf("reason %q", r)
		}
		seen[r] = true
	}
}
