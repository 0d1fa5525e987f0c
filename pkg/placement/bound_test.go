package placement

import (
	"math/rand/v2"
	"strconv"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/units"
)

// puzzle is a node of n GPUs and a pod of up to k containers that fills what is
// free to the last share, but for spare shares per GPU.
func puzzle(r *rand.Rand, n, k int, spare units.Shares) (*ledger.NodeView, contract.Request) {
	filled := make([]units.Shares, n)
	req := contract.Request{}
	for c := range k {
		d := contract.Demand{ContainerRole: contract.ContainerRole{Name: strconv.Itoa(c)}, Count: 1 + r.IntN(4)/3, Shares: units.Shares(1 + r.IntN(60))}
		gpus, fits := r.Perm(n)[:d.Count], true
		for _, g := range gpus {
			fits = fits && filled[g]+d.Shares+spare <= 100
		}
		if !fits {
			continue
		}
		for _, g := range gpus {
			filled[g] += d.Shares
		}
		req.Demands = append(req.Demands, d)
	}
	l := ledger.New()
	inv := contract.Inventory{Version: 1, SharesPerGPU: 100}
	for g, f := range filled {
		uuid := contract.GPUUUID(strconv.Itoa(g))
		inv.GPUs = append(inv.GPUs, contract.GPU{UUID: uuid, Index: g, MemoryMiB: []units.MiB{24576, 81920}[g%2], Healthy: true})
		if used := 100 - f - spare; used > 0 {
			l.Allocate(ledger.Claim{Pod: ledger.Pod{UID: types.UID(uuid)}, Node: "n", Charges: map[contract.GPUUUID]units.Shares{uuid: used}})
		}
	}
	l.SetNode("n", inv)
	return l.Node("n"), req
}

// Up to half a dozen containers the search is exact even where not one share
// may be wasted, with a little slack far beyond.
func TestSearchSolvesPuzzles(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	cases := map[string]struct {
		containers int
		spare      units.Shares
	}{"six containers, no share to spare": {6, 0}, "24 containers, 20 shares to spare on each": {24, 20}}
	for name, tc := range cases {
		for i := range 1000 {
			n, req := puzzle(r, 4+4*(i%3/2), tc.containers, tc.spare)
			for _, policy := range []Policy{Binpack, Spread} {
				if reason := New(req, Options{Policy: policy}).Check(n); reason != "" {
					t.Errorf("%s, puzzle %d, %T: %s", name, i, policy, reason)
				}
			}
		}
	}
}

// Equal containers can be put into equal GPUs in countless ways that are all
// the same.
func TestEqualContainersAreRefusedQuickly(t *testing.T) {
	l := ledger.New()
	inv := contract.Inventory{Version: 1, SharesPerGPU: 100}
	for g := range 8 {
		inv.GPUs = append(inv.GPUs, contract.GPU{UUID: contract.GPUUUID(strconv.Itoa(g)), Index: g, MemoryMiB: 81920, Healthy: true})
	}
	l.SetNode("n", inv)
	req := contract.Request{}
	for c := range 17 { // of which two fit on each GPU, though the sum is free
		req.Demands = append(req.Demands, contract.Demand{ContainerRole: contract.ContainerRole{Name: strconv.Itoa(c)}, Count: 1, Shares: 34})
	}
	q := New(req, Options{})
	q.search.reset(q, l.Node("n"))
	if q.search.place(false) || q.search.steps > 100 {
		t.Errorf("placed or refused in %d steps, want a refusal within 100", q.search.steps)
	}
}

// Where it cannot solve them, it stops, and leaves nothing behind.
func TestSearchIsBounded(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	gaveUp, solved := 0, 0
	for range 300 {
		n, req := puzzle(r, 8, 24, 0)
		q := New(req, Options{Policy: Spread})
		_, reason := q.Score(n)
		if q.search.steps > maxSteps+len(n.GPUs()) {
			t.Fatalf("%d steps", q.search.steps)
		}
		if reason == "" {
			solved++
			continue
		}
		gaveUp++
		if reason != NotTogether {
			t.Fatalf("reason %q, want %q", reason, NotTogether)
		}
		q.search.reset(q, n)
		before := append([]units.Shares(nil), q.search.free...)
		if q.search.place(true) {
			t.Fatal("a second try succeeds")
		}
		for g := range before {
			if q.search.free[g] != before[g] {
				t.Fatalf("a search that gave up left GPU %d with %d free shares instead of %d", g, q.search.free[g], before[g])
			}
		}
	}
	if gaveUp == 0 || solved == 0 {
		t.Errorf("%d puzzles given up, %d solved; the test wants both", gaveUp, solved)
	}
}
