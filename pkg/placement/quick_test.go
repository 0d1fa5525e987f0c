package placement

import (
	"strconv"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/units"
)

// The short cut must not be seen: where it answers, the search says the same.
func TestQuickAnswersAsTheSearchDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := ledger.New()
		inv := contract.Inventory{Version: 1, SharesPerGPU: 100}
		model := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "model")
		isolation := rapid.SampledFrom([]contract.Isolation{contract.IsolationNone, contract.IsolationCgroup}).Draw(t, "isolation")
		for i := range rapid.IntRange(1, 5).Draw(t, "gpus") {
			g := contract.GPUUUID(strconv.Itoa(i))
			inv.GPUs = append(inv.GPUs, contract.GPU{UUID: g, Index: i, Model: model, MemoryMiB: 40960, Healthy: true, Isolation: isolation})
			if used := rapid.SampledFrom([]units.Shares{0, 0, 30, 50, 70, 100, 120}).Draw(t, "used"); used > 0 {
				l.Allocate(ledger.Claim{Pod: ledger.Pod{UID: types.UID(g)}, Node: "n", Charges: map[contract.GPUUUID]units.Shares{g: used}})
			}
		}
		l.SetNode("n", inv)
		d := contract.Demand{ContainerRole: contract.ContainerRole{Name: "c"}, Count: rapid.IntRange(1, 6).Draw(t, "count")}
		switch rapid.IntRange(0, 2).Draw(t, "kind") {
		case 0:
			d.Whole, d.Shares = true, 100
		case 1:
			d.Memory = units.MiB(rapid.IntRange(1, 50_000).Draw(t, "memory"))
		default:
			d.Shares = units.Shares(rapid.SampledFrom([]int{1, 30, 50, 70, 100}).Draw(t, "shares"))
		}
		req := contract.Request{Demands: []contract.Demand{d}, RequireIsolation: rapid.Bool().Draw(t, "required")}
		if rapid.Bool().Draw(t, "models") {
			req.Models = []string{"a"}
		}
		q, n := New(req, Options{}), l.Node("n")
		reason, ok := q.quick(n)
		if !ok {
			if d.Count == 1 {
				t.Fatal("no short cut for one GPU of equal ones")
			}
			return
		}
		q.search.reset(q, n)
		want := Reason("")
		if !q.search.place(false) {
			want = q.search.explain()
		}
		if reason != want {
			t.Fatalf("quick says %q, the search %q", reason, want)
		}
	})
}

// Whoever tries something out on ledgers of his own may do so for ever.
func TestQueryRemembersEqualClassesOnce(t *testing.T) {
	q := New(contract.Request{Demands: []contract.Demand{{Count: 1, Shares: 1}}}, Options{})
	for range 10 {
		l := ledger.New()
		l.SetNode("n", contract.Inventory{SharesPerGPU: 100, GPUs: []contract.GPU{{UUID: "a", MemoryMiB: 1, Healthy: true}}})
		if reason := q.Check(l.Node("n")); reason != "" {
			t.Fatal(reason)
		}
	}
	if len(q.verdicts) != 1 {
		t.Errorf("%d verdicts on one class", len(q.verdicts))
	}
}
