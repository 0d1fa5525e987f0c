package ledger_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/units"
)

func TestSnapshotSharesWhatDidNotChange(t *testing.T) {
	l := ledger.New()
	for i := range 200 {
		l.SetNode(fmt.Sprintf("n%03d", i), inventory("A"))
	}
	before := l.Snapshot()
	if l.Snapshot() != before {
		t.Error("two snapshots of one version are different ones")
	}
	l.Allocate(claim("a", "n100", charges{"A": 10}))
	after := l.Snapshot()
	for n := range before.Nodes() {
		same := after.Node(n.Name()) == n
		if same == (n.Name() == "n100") {
			t.Errorf("view of %s shared: %v", n.Name(), same)
		}
	}
	old, changed := before.Node("n100"), after.Node("n100")
	if old.GPUs()[0].Free != 100 || changed.GPUs()[0].Free != 90 {
		t.Errorf("free before %d, after %d; want 100 and 90", old.GPUs()[0].Free, changed.GPUs()[0].Free)
	}
	if old.Version() >= changed.Version() || changed.Version() != after.Version() || before.Version() >= after.Version() {
		t.Errorf("versions: node %d to %d, ledger %d to %d", old.Version(), changed.Version(), before.Version(), after.Version())
	}
}

func TestPositionsHoldAsLongAsTheNodesAreTheSame(t *testing.T) {
	l := ledger.New()
	for i := range 150 {
		l.SetNode(fmt.Sprintf("n%03d", i), inventory("A"))
	}
	first := l.Snapshot()
	check := func(s *ledger.Snapshot) {
		t.Helper()
		position := 0
		for n := range s.Nodes() {
			if at, ok := s.Position(n.Name()); !ok || at != position || s.At(at) != n {
				t.Errorf("node %s is at %d, %v; want %d", n.Name(), at, ok, position)
			}
			position++
		}
		if _, ok := s.Position("stranger"); ok {
			t.Error("a node that is not known has a position")
		}
	}
	check(first)
	l.Allocate(claim("a", "n100", charges{"A": 10}))
	second := l.Snapshot()
	if check(second); second.Set() != first.Set() {
		t.Error("a charge makes it another set of nodes")
	}
	l.RemoveNode("n000")
	third := l.Snapshot()
	if check(third); third.Set() == second.Set() {
		t.Error("the set of nodes is the same without one of them")
	}
	l.SetNode("n000", inventory("A"))
	if fourth := l.Snapshot(); fourth.Set() == third.Set() || fourth.Set() == second.Set() {
		t.Error("the set of nodes is an earlier one")
	}
}

// The race detector is the judge: readers use snapshots while the owner of the
// ledger goes on.
func TestSnapshotsAreReadWhileTheLedgerChanges(t *testing.T) {
	l := ledger.New()
	for i := range 100 {
		l.SetNode(fmt.Sprintf("n%03d", i), inventory("A", "B"))
	}
	var current atomic.Pointer[ledger.Snapshot]
	current.Store(l.Snapshot())
	done := make(chan struct{})
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				s := current.Load()
				var held units.Shares
				for n := range s.Nodes() {
					for i := range n.GPUs() {
						held += n.GPUs()[i].Held
					}
					n.HeldBy("1")
				}
				if total := s.Totals().Held; held != total {
					t.Errorf("GPUs hold %d shares, the total is %d", held, total)
					return
				}
				s.Dump()
			}
		})
	}
	for i := range 300 {
		node := fmt.Sprintf("n%03d", i%100)
		mustHold(t, l, claim(fmt.Sprint(i), node, charges{"A": 10}))
		current.Store(l.Snapshot())
		l.Commit(types.UID(fmt.Sprint(i)))
		l.Allocate(claim(fmt.Sprint(i), node, charges{"A": 10}))
		l.Adopt(types.UID(fmt.Sprint(i)), charges{"B": 10})
		if i%3 == 0 {
			l.Release(types.UID(fmt.Sprint(i)))
			l.RemoveNode(node)
			l.SetNode(node, inventory("A", "B"))
		}
		current.Store(l.Snapshot())
	}
	close(done)
	readers.Wait()
}

func TestSnapshotListsNodesByName(t *testing.T) {
	l := ledger.New()
	var want []string
	for i := range 300 {
		name := fmt.Sprintf("n%d", (i*7919)%1000)
		want = append(want, name)
		l.SetNode(name, inventory("A"))
	}
	slices.Sort(want)
	var got []string
	for n := range l.Snapshot().Nodes() {
		got = append(got, n.Name())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
	for range l.Snapshot().Nodes() {
		break // the iterator must bear it
	}
}

func TestNodeViewSummarizesHealthyGPUs(t *testing.T) {
	inv := inventory("A", "B", "C", "D")
	inv.GPUs[3].Healthy = false
	l := ledger.New()
	l.SetNode("n", inv)
	l.Allocate(claim("a", "n", charges{"A": 120}))
	mustHold(t, l, claim("b", "n", charges{"B": 30}))
	n := l.Node("n")
	if n.MaxFree() != 100 || n.WhollyFree() != 1 || n.Free() != 150 || n.Capacity() != 300 {
		t.Errorf("MaxFree %d, WhollyFree %d, Free %d, Capacity %d; want 100, 1, 150, 300", n.MaxFree(), n.WhollyFree(), n.Free(), n.Capacity())
	}
	want := ledger.Totals{Nodes: 1, GPUs: 4, Shares: 400, Allocated: 120, Held: 30, Overcommitted: 1}
	if diff := cmp.Diff(want, l.Snapshot().Totals()); diff != "" {
		t.Errorf("Totals (-want +got):\n%s", diff)
	}
	if n.GPUs()[0].WhollyFree() || !n.GPUs()[2].WhollyFree() || n.GPUs()[1].Pods != 1 {
		t.Errorf("GPUs %+v", n.GPUs())
	}
	if got := n.HeldBy("b"); len(got) != 1 || got[0] != (ledger.Charge{GPU: "B", Shares: 30}) {
		t.Errorf("HeldBy(b) = %v", got)
	}
	if got := n.HeldBy("a"); got != nil {
		t.Errorf("HeldBy of a bound pod = %v, want nothing", got)
	}
	if got := uids(n.Claims()); !slices.Equal(got, uids(l.Records())) || l.Len() != 2 {
		t.Errorf("Claims = %v", got)
	}
}

func TestNilViewIsAnUnknownNode(t *testing.T) {
	n := ledger.New().Snapshot().Node("nobody")
	if n != nil || n.Known() || n.Name() != "" || n.Version() != 0 || n.SharesPerGPU() != 0 || n.GPUs() != nil || n.MaxFree() != 0 ||
		n.WhollyFree() != 0 || n.Free() != 0 || n.Capacity() != 0 || n.Claims() != nil || n.HeldBy("a") != nil || n.NearnessDiffers() || n.Nearness(0, 1) != 0 || n.Neighbours(0, 1) || n.Class() != nil {
		t.Error("a nil view is not empty")
	}
	if got := len(n.Dump().GPUs); got != 0 {
		t.Errorf("its dump has %d GPUs", got)
	}
	if ledger.New().Node("nobody") != nil {
		t.Error("Ledger.Node of an unknown node is not nil")
	}
}

func TestClassIsThatOfAllGPUsIfTheyAreAlike(t *testing.T) {
	l := ledger.New()
	mixed, sick := inventory("A", "B"), inventory("A", "B")
	mixed.GPUs[1].MemoryMiB = 40960
	sick.GPUs[1].Healthy = false
	for name, inv := range map[string]contract.Inventory{"alike": inventory("A", "B"), "too": inventory("C"), "mixed": mixed, "sick": sick, "none": inventory()} {
		l.SetNode(name, inv)
	}
	want := ledger.Class{Model: "NVIDIA-A100-SXM4-80GB", MemoryMiB: 81920, Isolation: contract.IsolationNone, SharesPerGPU: 100}
	if c := l.Node("alike").Class(); c == nil || *c != want || c != l.Node("too").Class() || c != l.Node("mixed").GPUs()[0].Class {
		t.Errorf("class of equal GPUs: %+v, want one pointer to %+v", c, want)
	}
	for _, name := range []string{"mixed", "sick", "none"} {
		if c := l.Node(name).Class(); c != nil {
			t.Errorf("class of %s: %+v, want nil", name, c)
		}
	}
}

func TestDumpAsJSON(t *testing.T) {
	inv := inventory("A", "B")
	inv.GPUs[1].Healthy, inv.GPUs[1].Reason = false, "XID 79"
	l := ledger.New()
	l.SetNode("n", inv)
	l.Allocate(claim("2", "n", charges{"A": 40}))
	mustHold(t, l, claim("1", "n", charges{"A": 20}))
	l.Allocate(claim("3", "n", charges{"gone": 7}))
	got, err := json.Marshal(l.Snapshot().Dump())
	if err != nil {
		t.Fatal(err)
	}
	want := `{"version":4,"nodes":[{"name":"n","version":4,"inventory":true,"sharesPerGPU":100,"gpus":[` +
		`{"uuid":"A","index":0,"model":"NVIDIA-A100-SXM4-80GB","memoryMiB":81920,"shares":{"total":100,"allocated":40,"held":20,"free":40},"healthy":true,"pods":[` +
		`{"namespace":"demo","name":"pod-1","uid":"1","shares":20,"state":"held"},{"namespace":"demo","name":"pod-2","uid":"2","shares":40,"state":"allocated"}]},` +
		`{"uuid":"B","index":1,"model":"NVIDIA-A100-SXM4-80GB","memoryMiB":81920,"shares":{"total":100,"allocated":0,"held":0,"free":100},"healthy":false,"reason":"XID 79","pods":[]},` +
		`{"uuid":"gone","index":-1,"model":"","memoryMiB":0,"shares":{"total":0,"allocated":7,"held":0,"free":0},"healthy":false,"reason":"not in the node's inventory","pods":[` +
		`{"namespace":"demo","name":"pod-3","uid":"3","shares":7,"state":"allocated"}]}]}]}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("dump (-want +got):\n%s", diff)
	}
}
