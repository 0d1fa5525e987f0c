package ledger_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/units"
)

// oracle is the ledger as one would write it without any thought of speed: a
// list of claims, and every number counted anew whenever it is asked for.
type oracle struct {
	nodes  map[string]contract.Inventory
	claims map[types.UID]*oracleClaim
}

type oracleClaim struct {
	pod            ledger.Pod
	node           string
	held           bool
	expires        time.Time
	confirmed      bool
	planned, given charges
}

func (c *oracleClaim) counts() charges {
	if c.given != nil {
		return c.given
	}
	return c.planned
}

func (o *oracle) facts(node string, gpu contract.GPUUUID) *contract.GPU {
	for _, g := range o.nodes[node].GPUs {
		if g.UUID == gpu {
			return &g
		}
	}
	return nil
}

// charged is what all pods but one are charged for a GPU.
func (o *oracle) charged(node string, gpu contract.GPUUUID, held bool, but types.UID) units.Shares {
	var sum units.Shares
	for uid, c := range o.claims {
		if c.node == node && c.held == held && uid != but {
			sum += c.counts()[gpu]
		}
	}
	return sum
}

// hold returns all refusals that would be true, none if it took the claim.
func (o *oracle) hold(c ledger.Claim, expires time.Time) []ledger.Refusal {
	if before := o.claims[c.Pod.UID]; before != nil && !before.held {
		return []ledger.Refusal{ledger.PodAllocated}
	}
	inv, known := o.nodes[c.Node]
	if !known && len(c.Charges) > 0 {
		return []ledger.Refusal{ledger.NodeUnknown}
	}
	var refusals []ledger.Refusal
	for gpu, s := range c.Charges {
		g := o.facts(c.Node, gpu)
		used := o.charged(c.Node, gpu, true, c.Pod.UID) + o.charged(c.Node, gpu, false, c.Pod.UID)
		switch {
		case g == nil:
			refusals = append(refusals, ledger.GPUUnknown)
		case !g.Healthy:
			refusals = append(refusals, ledger.GPUUnhealthy)
		case used+s > inv.SharesPerGPU:
			refusals = append(refusals, ledger.GPUFull)
		}
	}
	if len(refusals) == 0 {
		o.claims[c.Pod.UID] = &oracleClaim{pod: c.Pod, node: c.Node, held: true, expires: expires, planned: c.Charges}
	}
	return refusals
}

func (o *oracle) allocate(c ledger.Claim) {
	before := o.claims[c.Pod.UID]
	after := &oracleClaim{pod: c.Pod, node: c.Node, confirmed: true, planned: c.Charges}
	if before != nil && !before.held && before.node == c.Node && before.given != nil {
		after.given = before.given
	}
	o.claims[c.Pod.UID] = after
}

func (o *oracle) expire(now time.Time) []types.UID {
	var expired []types.UID
	for uid, c := range o.claims {
		if c.held && !c.expires.After(now) {
			expired = append(expired, uid)
		}
	}
	for _, uid := range expired {
		delete(o.claims, uid)
	}
	slices.Sort(expired)
	return expired
}

// gpus lists the GPUs that a dump of the node must show.
func (o *oracle) gpus(node string) map[contract.GPUUUID]bool {
	all := map[contract.GPUUUID]bool{}
	for _, g := range o.nodes[node].GPUs {
		all[g.UUID] = true
	}
	for _, c := range o.claims {
		if c.node == node {
			for gpu := range c.counts() {
				all[gpu] = true
			}
		}
	}
	return all
}

// agree compares a ledger with the oracle in every number.
func (o *oracle) agree(t *rapid.T, l *ledger.Ledger) {
	dump := l.Snapshot().Dump()
	shown := map[string]bool{}
	totals := ledger.Totals{}
	for _, n := range dump.Nodes {
		shown[n.Name] = true
		inv, known := o.nodes[n.Name]
		if n.Inventory != known || n.SharesPerGPU != inv.SharesPerGPU {
			t.Fatalf("node %s: inventory %v, %d shares per GPU; want %v, %d", n.Name, n.Inventory, n.SharesPerGPU, known, inv.SharesPerGPU)
		}
		if known {
			totals.Nodes++
		}
		want := o.gpus(n.Name)
		if len(n.GPUs) != len(want) {
			t.Fatalf("node %s shows %d GPUs, want %d", n.Name, len(n.GPUs), len(want))
		}
		for _, g := range n.GPUs {
			facts := o.facts(n.Name, g.UUID)
			s := ledger.SharesDump{
				Allocated: o.charged(n.Name, g.UUID, false, ""),
				Held:      o.charged(n.Name, g.UUID, true, ""),
			}
			if facts != nil {
				s.Total = inv.SharesPerGPU
				totals.GPUs++
				totals.Shares += s.Total
				totals.Allocated += s.Allocated
				totals.Held += s.Held
				s.Free = s.Total - s.Allocated - s.Held
				if s.Allocated+s.Held > s.Total {
					totals.Overcommitted++
				}
			}
			if diff := cmp.Diff(s, g.Shares); diff != "" {
				t.Fatalf("node %s GPU %s (-want +got):\n%s", n.Name, g.UUID, diff)
			}
			o.agreePods(t, n.Name, g)
		}
	}
	for name := range o.nodes {
		if !shown[name] {
			t.Fatalf("node %s is missing", name)
		}
	}
	for uid, c := range o.claims {
		if !shown[c.node] {
			t.Fatalf("pod %s is on node %s, which is missing", uid, c.node)
		}
	}
	if diff := cmp.Diff(totals, l.Snapshot().Totals()); diff != "" {
		t.Fatalf("totals (-want +got):\n%s", diff)
	}
	if l.Len() != len(o.claims) {
		t.Fatalf("%d claims, want %d", l.Len(), len(o.claims))
	}
}

// agreePods checks that every charge belongs to exactly the right pods.
func (o *oracle) agreePods(t *rapid.T, node string, g ledger.GPUDump) {
	got := map[types.UID]string{}
	for _, p := range g.Pods {
		if _, twice := got[p.UID]; twice {
			t.Fatalf("pod %s is twice on GPU %s", p.UID, g.UUID)
		}
		got[p.UID] = fmt.Sprintf("%s/%s %d %s", p.Namespace, p.Name, p.Shares, p.State)
	}
	want := map[types.UID]string{}
	for uid, c := range o.claims {
		s, ok := c.counts()[g.UUID]
		if c.node != node || !ok {
			continue
		}
		state := "allocated"
		if c.held {
			state = "held"
		}
		want[uid] = fmt.Sprintf("%s/%s %d %s", c.pod.Namespace, c.pod.Name, s, state)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("node %s GPU %s pods (-want +got):\n%s", node, g.UUID, diff)
	}
}

// The names are few, so that events meet.
var (
	nodeNames = []string{"m", "n", "o"}
	gpuNames  = []contract.GPUUUID{"A", "B", "C", "D"}
	podNames  = []string{"1", "2", "3", "4", "5", "6", "7", "8"}
)

// drawCharges draws charges of at least so many GPUs.
func drawCharges(t *rapid.T, least int) charges {
	return rapid.MapOfN(rapid.SampledFrom(gpuNames), rapid.Map(rapid.IntRange(1, 60), func(n int) units.Shares { return units.Shares(n) }), least, 3).Draw(t, "charges")
}

func drawClaim(t *rapid.T) ledger.Claim {
	return claim(rapid.SampledFrom(podNames).Draw(t, "pod"), rapid.SampledFrom(nodeNames).Draw(t, "node"), drawCharges(t, 0))
}

func drawInventory(t *rapid.T) contract.Inventory {
	gpus := rapid.SliceOfNDistinct(rapid.SampledFrom(gpuNames), 0, len(gpuNames), rapid.ID).Draw(t, "gpus")
	inv := inventory(gpus...)
	inv.SharesPerGPU = rapid.SampledFrom([]units.Shares{100, 100, 100, 50}).Draw(t, "perGPU")
	for i := range inv.GPUs {
		inv.GPUs[i].Healthy = rapid.IntRange(0, 5).Draw(t, "health") > 0
	}
	return inv
}

// run draws events, applies them to ledger and oracle, and compares after each.
func run(t *rapid.T) (*ledger.Ledger, *oracle) {
	l := ledger.New()
	o := &oracle{nodes: map[string]contract.Inventory{}, claims: map[types.UID]*oracleClaim{}}
	now := start
	type taken struct {
		snapshot *ledger.Snapshot
		dump     ledger.Dump
	}
	var snapshots []taken
	version := l.Version()
	for range rapid.IntRange(1, 60).Draw(t, "events") {
		event := rapid.SampledFrom([]string{
			"set", "set", "remove", "hold", "hold", "hold", "hold", "allocate", "allocate", "commit", "commit", "rollback", "adopt", "release", "expire", "snapshot",
		}).Draw(t, "event")
		uid := types.UID(rapid.SampledFrom(podNames).Draw(t, "uid"))
		switch event {
		case "set":
			name, inv := rapid.SampledFrom(nodeNames).Draw(t, "node"), drawInventory(t)
			before, known := o.nodes[name]
			if got, want := l.SetNode(name, inv), !known || !cmp.Equal(before, inv); got != want {
				t.Fatalf("SetNode says %v, want %v", got, want)
			}
			o.nodes[name] = inv
		case "remove":
			name := rapid.SampledFrom(nodeNames).Draw(t, "node")
			_, known := o.nodes[name]
			if got := l.RemoveNode(name); got != known {
				t.Fatalf("RemoveNode says %v, want %v", got, known)
			}
			delete(o.nodes, name)
		case "hold":
			c, expires := drawClaim(t), now.Add(time.Duration(rapid.IntRange(0, 30).Draw(t, "seconds"))*time.Second)
			want, got := o.hold(c, expires), l.Hold(c, expires)
			if got == "" && len(want) > 0 || got != "" && !slices.Contains(want, got) {
				t.Fatalf("Hold says %q, want one of %q", got, want)
			}
			if got == "" { // invariant 1: what is newly granted always fits
				for gpu := range c.Charges {
					used := o.charged(c.Node, gpu, true, "") + o.charged(c.Node, gpu, false, "")
					if used > o.nodes[c.Node].SharesPerGPU {
						t.Fatalf("a hold took GPU %s of %s to %d shares", gpu, c.Node, used)
					}
				}
			}
		case "allocate":
			c := drawClaim(t)
			l.Allocate(c)
			o.allocate(c)
		case "commit":
			c := o.claims[uid]
			r, got := l.Commit(uid)
			if want := c != nil && c.held; got != want {
				t.Fatalf("Commit says %v, want %v", got, want)
			}
			if got {
				c.held, c.expires = false, time.Time{}
				if (len(r.Plan.Containers) > 0) != (len(c.planned) > 0) || r.Plan.Node != c.node {
					t.Fatalf("Commit gives plan %+v", r.Plan)
				}
			}
		case "rollback":
			c := o.claims[uid]
			got := l.Rollback(uid, now.Add(time.Second))
			if want := c != nil && !c.held && !c.confirmed; got != want {
				t.Fatalf("Rollback says %v, want %v", got, want)
			}
			if got {
				c.held, c.expires = true, now.Add(time.Second)
			}
		case "adopt":
			c, given := o.claims[uid], drawCharges(t, 1)
			got := l.Adopt(uid, given)
			if want := c != nil && !c.held && !maps.Equal(c.counts(), given); got != want {
				t.Fatalf("Adopt says %v, want %v", got, want)
			}
			if got {
				c.given, c.confirmed = given, true
				if maps.Equal(c.given, c.planned) {
					c.given = nil
				}
			}
		case "release":
			_, want := o.claims[uid]
			if _, got := l.Release(uid); got != want {
				t.Fatalf("Release says %v, want %v", got, want)
			}
			delete(o.claims, uid)
		case "expire":
			now = now.Add(time.Duration(rapid.IntRange(0, 20).Draw(t, "seconds")) * time.Second)
			got := uids(l.Expire(now))
			slices.Sort(got)
			if want := o.expire(now); !slices.Equal(got, want) {
				t.Fatalf("Expire gives %v, want %v", got, want)
			}
			if next, ok := l.NextExpiry(); ok && !next.After(now) {
				t.Fatalf("a hold that ended at %v is still there at %v", next, now)
			}
		case "snapshot":
			s := l.Snapshot()
			snapshots = append(snapshots, taken{s, s.Dump()})
		}
		o.agree(t, l)
		if l.Version() < version {
			t.Fatalf("version went from %d back to %d", version, l.Version())
		}
		version = l.Version()
	}
	for _, s := range snapshots {
		if diff := cmp.Diff(s.dump, s.snapshot.Dump()); diff != "" {
			t.Fatalf("a snapshot changed after it was taken (-then +now):\n%s", diff)
		}
	}
	return l, o
}

func TestLedgerAgreesWithARecount(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { run(t) })
}

func FuzzLedgerAgreesWithARecount(f *testing.F) {
	f.Fuzz(rapid.MakeFuzz(func(t *rapid.T) { run(t) }))
}

// withoutVersions makes dumps of ledgers with different histories comparable.
func withoutVersions(d ledger.Dump) ledger.Dump {
	d.Version = 0
	for i := range d.Nodes {
		d.Nodes[i].Version = 0
	}
	return d
}

// Invariant 5: the API server knows which pods are bound and what the kubelet
// gave them. Whatever happened before, replaying that in any order, and
// repeating some of it, gives the ledger of the one who saw it happen.
func TestReplayingThePodsInAnyOrderGivesAnEqualLedger(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, o := run(t)
		for uid, c := range o.claims {
			if c.held {
				l.Release(uid)
			}
		}
		replayed := ledger.New()
		var events []func()
		for _, name := range slices.Sorted(maps.Keys(o.nodes)) {
			inv := o.nodes[name]
			events = append(events, func() { replayed.SetNode(name, inv) })
		}
		for _, uid := range slices.Sorted(maps.Keys(o.claims)) {
			c := o.claims[uid]
			if c.held {
				continue
			}
			event := func() {
				again := claim(string(uid), c.node, c.planned)
				again.Pod = c.pod
				replayed.Allocate(again)
				if c.given != nil {
					replayed.Adopt(uid, c.given)
				}
			}
			events = append(events, event)
			if rapid.Bool().Draw(t, "twice") {
				events = append(events, event)
			}
		}
		for _, i := range rapid.Permutation(indices(len(events))).Draw(t, "order") {
			events[i]()
		}
		if diff := cmp.Diff(withoutVersions(l.Snapshot().Dump()), withoutVersions(replayed.Snapshot().Dump())); diff != "" {
			t.Fatalf("dumps (-lived +replayed):\n%s", diff)
		}
		ignorePlan := cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".Plan" }, cmp.Ignore())
		if diff := cmp.Diff(l.Records(), replayed.Records(), ignorePlan); diff != "" {
			t.Fatalf("records (-lived +replayed):\n%s", diff)
		}
	})
}

func indices(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}
