package ledger_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/units"
)

// face is all that a view shows, but its version.
type face struct {
	Dump                    ledger.NodeDump
	Name                    string
	Known, LinksDiffer      bool
	MaxFree, Free, Capacity units.Shares
	WhollyFree              int
	Class                   *ledger.Class
	GPUs                    []ledger.GPUView
	Links                   []int
	Held                    map[types.UID][]ledger.Charge
}

func faceOf(n *ledger.NodeView) face {
	f := face{
		Dump: n.Dump(), Name: n.Name(), Known: n.Known(), LinksDiffer: n.NearnessDiffers(), MaxFree: n.MaxFree(), Free: n.Free(),
		Capacity: n.Capacity(), WhollyFree: n.WhollyFree(), Class: n.Class(), Held: map[types.UID][]ledger.Charge{},
	}
	f.Dump.Version = 0
	f.GPUs = append(f.GPUs, n.GPUs()...)
	for a := range f.GPUs {
		for b := range f.GPUs {
			f.Links = append(f.Links, n.Nearness(a, b))
		}
	}
	for _, r := range n.Claims() {
		if held := n.HeldBy(r.Pod.UID); held != nil {
			f.Held[r.Pod.UID] = held
		}
	}
	return f
}

// randomLedger has one node, "a", in any state that a ledger can be in.
func randomLedger(t *rapid.T) *ledger.Ledger {
	l := ledger.New()
	gpus := rapid.IntRange(0, 4).Draw(t, "gpus")
	if rapid.IntRange(0, 5).Draw(t, "known") > 0 {
		inv := contract.Inventory{Version: 1, SharesPerGPU: 100}
		for i := range gpus {
			g := contract.GPU{UUID: trialGPU(i), Index: i, Model: "A", MemoryMiB: 1000, Healthy: rapid.IntRange(0, 4).Draw(t, "healthy") > 0}
			if i == 1 && rapid.Bool().Draw(t, "linked") {
				g.Links = []contract.Link{{To: 0, Type: contract.LinkNVLink, Count: 2}}
			}
			if rapid.IntRange(0, 4).Draw(t, "model") == 0 {
				g.Model = "B"
			}
			inv.GPUs = append(inv.GPUs, g)
		}
		l.SetNode("a", inv)
	}
	for range rapid.IntRange(0, 8).Draw(t, "claims") {
		c := randomClaim(t)
		switch rapid.IntRange(0, 2).Draw(t, "how") {
		case 0:
			_ = l.Hold(c, start.Add(time.Minute)) // refusals change nothing
		case 1:
			l.Allocate(c)
		default:
			l.Allocate(c)
			l.Adopt(c.Pod.UID, randomClaim(t).Charges)
		}
	}
	return l
}

// trialGPU may name one that the node does not have.
func trialGPU(i int) contract.GPUUUID { return contract.GPUUUID(fmt.Sprintf("GPU-%d", i)) }

func randomClaim(t *rapid.T) ledger.Claim {
	c := charges{}
	for range rapid.IntRange(0, 3).Draw(t, "charges") {
		c[trialGPU(rapid.IntRange(0, 4).Draw(t, "gpu"))] = units.Shares(rapid.IntRange(-1, 120).Draw(t, "shares"))
	}
	uid := fmt.Sprint(rapid.IntRange(0, 5).Draw(t, "uid"))
	return ledger.Claim{Pod: pod(uid), Node: "a", Charges: c}
}

func TestWithShowsWhatALedgerWould(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := randomLedger(t)
		before := l.Node("a")
		unchanged := faceOf(before)
		trial := before
		for range rapid.IntRange(1, 3).Draw(t, "trials") {
			c := randomClaim(t)
			trial = trial.With(c)
			l.Release(c.Pod.UID)
			l.Allocate(c)
		}
		if diff := cmp.Diff(faceOf(l.Node("a")), faceOf(trial)); diff != "" {
			t.Errorf("With (-ledger +trial):\n%s", diff)
		}
		if trial.Version() != 0 {
			t.Errorf("Version is %d, which might be a ledger's", trial.Version())
		}
		if diff := cmp.Diff(unchanged, faceOf(before)); diff != "" {
			t.Errorf("With changed the view it started from (-before +after):\n%s", diff)
		}
	})
}

func TestWithoutShowsWhatALedgerWould(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := randomLedger(t)
		before := l.Node("a")
		unchanged := faceOf(before)
		gone := map[types.UID]bool{}
		for range rapid.IntRange(0, 4).Draw(t, "gone") {
			gone[types.UID(fmt.Sprint(rapid.IntRange(0, 7).Draw(t, "uid")))] = true
		}
		trial := before.Without(gone)
		for uid := range gone {
			l.Release(uid)
		}
		after := l.Node("a")
		if diff := cmp.Diff(faceOf(after), faceOf(trial)); diff != "" {
			t.Errorf("Without (-ledger +trial):\n%s", diff)
		}
		if (after == nil) != (trial == nil) {
			t.Errorf("the ledger's view is nil: %t, the trial's: %t", after == nil, trial == nil)
		}
		if diff := cmp.Diff(unchanged, faceOf(before)); diff != "" {
			t.Errorf("Without changed the view it started from (-before +after):\n%s", diff)
		}
	})
}

func TestWithoutOfNobodyIsTheSameView(t *testing.T) {
	l := ledger.New()
	l.SetNode("a", inventory("GPU-0"))
	n := l.Node("a")
	if n.Without(nil) != n || n.Without(map[types.UID]bool{"x": true}) != n {
		t.Error("a view was copied though nothing changes")
	}
}

func BenchmarkWith(b *testing.B) {
	l := ledger.New()
	l.SetNode("a", inventory("GPU-0", "GPU-1", "GPU-2", "GPU-3", "GPU-4", "GPU-5", "GPU-6", "GPU-7"))
	for i := range 28 {
		l.Allocate(ledger.Claim{Pod: pod(fmt.Sprint(i)), Node: "a", Charges: charges{trialGPU(i % 8): 20}})
	}
	n, c := l.Node("a"), ledger.Claim{Pod: pod("new"), Node: "a", Charges: charges{"GPU-3": 20}}
	b.ReportAllocs()
	for b.Loop() {
		n.With(c)
	}
}
