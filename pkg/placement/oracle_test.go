package placement_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/placement"
	"github.com/tranche-dev/tranche/pkg/units"
)

// world is a small node as the test made it, so that the oracle need not ask
// the ledger for anything.
type world struct {
	inv contract.Inventory
	// used is, per GPU, what others are charged.
	used map[contract.GPUUUID]units.Shares
	view *ledger.NodeView
	l    *ledger.Ledger
}

const self types.UID = "self"

func drawWorld(t *rapid.T) world {
	w := world{inv: contract.Inventory{Version: 1}, used: map[contract.GPUUUID]units.Shares{}, l: ledger.New()}
	w.inv.SharesPerGPU = rapid.SampledFrom([]units.Shares{100, 100, 10, 1000}).Draw(t, "perGPU")
	sizes := []units.MiB{24576, 40960, 81920}
	for i := range rapid.IntRange(0, 4).Draw(t, "gpus") {
		kind := rapid.IntRange(0, 2).Draw(t, "kind")
		g := contract.GPU{UUID: uuid(i), Index: i, Model: fmt.Sprintf("model-%d", kind), MemoryMiB: sizes[kind], NUMA: -1}
		g.Healthy = rapid.IntRange(0, 7).Draw(t, "health") > 0
		g.Isolation = rapid.SampledFrom([]contract.Isolation{contract.IsolationNone, contract.IsolationCgroup}).Draw(t, "isolation")
		for to := range 4 {
			if rapid.IntRange(0, 3).Draw(t, "link") == 0 {
				g.Links = append(g.Links, contract.Link{To: to, Type: contract.LinkNVLink, Count: 2})
			}
		}
		w.inv.GPUs = append(w.inv.GPUs, g)
		if s := drawPart(t, w.inv.SharesPerGPU) - 1; s > 0 && rapid.IntRange(0, 2).Draw(t, "busy") > 0 {
			w.used[g.UUID] = s
			uid := fmt.Sprintf("other-%d", i)
			w.l.Allocate(ledger.Claim{
				Pod: ledger.Pod{UID: types.UID(uid)}, Node: "n",
				Charges: map[contract.GPUUUID]units.Shares{g.UUID: s},
			})
		}
	}
	w.l.SetNode("n", w.inv)
	// The pod itself may hold something already; it must not matter.
	held := map[contract.GPUUUID]units.Shares{}
	for _, g := range w.inv.GPUs {
		if free := w.inv.SharesPerGPU - w.used[g.UUID]; free > 0 && g.Healthy && rapid.Bool().Draw(t, "own") {
			held[g.UUID] = free
		}
	}
	if len(held) > 0 {
		if r := w.l.Hold(ledger.Claim{Pod: ledger.Pod{UID: self}, Node: "n", Charges: held}, inAMinute()); r != "" {
			t.Fatalf("own hold refused: %s", r)
		}
	}
	w.view = w.l.Node("n")
	return w
}

// drawPart is a part of a GPU, often one of those that fill it in few pieces.
func drawPart(t *rapid.T, perGPU units.Shares) units.Shares {
	tenths := rapid.SampledFrom([]int64{1, 2, 3, 4, 5, 6, 7, 10}).Draw(t, "tenths")
	s := units.Shares(tenths) * perGPU / 10
	return min(max(s+units.Shares(rapid.IntRange(-1, 1).Draw(t, "odd")), 1), perGPU)
}

func drawRequest(t *rapid.T, perGPU units.Shares) contract.Request {
	req := contract.Request{}
	req.SameGPUs = rapid.IntRange(0, 4).Draw(t, "sameGPUs") == 0
	n := rapid.IntRange(1, 4).Draw(t, "containers")
	for i := range n {
		d := contract.Demand{ContainerRole: contract.ContainerRole{Name: fmt.Sprintf("c%d", i)}, Count: 1}
		switch rapid.IntRange(0, 5).Draw(t, "kind") {
		case 0:
			d.Whole, d.Shares = true, perGPU
		case 1, 2:
			d.Memory = units.MiB(rapid.IntRange(1, 90).Draw(t, "gib")) * 1000
		default:
			d.Shares = drawPart(t, perGPU)
		}
		if rapid.IntRange(0, 3).Draw(t, "several") == 0 {
			d.Count = rapid.IntRange(2, 5).Draw(t, "count")
		}
		if rapid.IntRange(0, 4).Draw(t, "sidecar") == 0 {
			d.Role = contract.RoleSidecar
		}
		if req.SameGPUs && i < n-1 && rapid.Bool().Draw(t, "init") {
			d.Role = contract.RoleInit
		}
		if req.SameGPUs && i > 0 { // contract.ParsePod allows no other shapes
			d.Count = req.Demands[0].Count
			if d.Count > 1 || d.Whole != req.Demands[0].Whole {
				d.Whole, d.Shares, d.Memory = req.Demands[0].Whole, req.Demands[0].Shares, req.Demands[0].Memory
			}
		}
		req.Demands = append(req.Demands, d)
	}
	if rapid.IntRange(0, 3).Draw(t, "models") == 0 {
		req.Models = rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"model-0", "model-1", "model-9"}), 1, 2, rapid.ID).Draw(t, "allowed")
		slices.Sort(req.Models)
	}
	req.RequireIsolation = rapid.IntRange(0, 5).Draw(t, "isolated") == 0
	return req
}

func roles(req contract.Request) []contract.ContainerRole {
	var all []contract.ContainerRole
	for _, d := range req.Demands {
		all = append(all, d.ContainerRole)
	}
	return all
}

// possible tries every set of GPUs for every container and believes only
// contract.Plan.Charges. With empty it ignores who is on the node, with cured
// also that GPUs are unhealthy.
func (w world) possible(req contract.Request, empty, cured bool) bool {
	plan := contract.Plan{Containers: map[string][]contract.Grant{}}
	fits := func() bool {
		for gpu, s := range plan.Charges(roles(req)) {
			free := w.inv.SharesPerGPU
			if !empty {
				free -= w.used[gpu]
			}
			if s > free {
				return false
			}
		}
		return true
	}
	grants := func(d contract.Demand, set int) bool {
		plan.Containers[d.Name] = nil
		for i, g := range w.inv.GPUs {
			if set&(1<<i) == 0 {
				continue
			}
			if !req.AllowsModel(g.Model) || req.RequireIsolation && g.Isolation == contract.IsolationNone || !g.Healthy && !cured {
				return false
			}
			plan.Containers[d.Name] = append(plan.Containers[d.Name], d.GrantOn(g, w.inv.SharesPerGPU))
		}
		return len(plan.Containers[d.Name]) == d.Count
	}
	if req.SameGPUs {
		for set := range 1 << len(w.inv.GPUs) {
			ok := true
			for _, d := range req.Demands {
				ok = grants(d, set) && ok
			}
			if ok && fits() {
				return true
			}
		}
		return false
	}
	var try func(i int) bool
	try = func(i int) bool {
		if i == len(req.Demands) {
			return fits()
		}
		for set := range 1 << len(w.inv.GPUs) {
			if grants(req.Demands[i], set) && try(i+1) {
				return true
			}
		}
		return false
	}
	return try(0)
}

func policyNamed(t *rapid.T) placement.Policy {
	return placement.For(rapid.SampledFrom([]contract.Placement{contract.PlacementBinpack, contract.PlacementSpread, ""}).Draw(t, "policy"))
}

func agree(t *rapid.T) {
	w := drawWorld(t)
	req := drawRequest(t, w.inv.SharesPerGPU)
	policy := policyNamed(t)
	q := placement.New(req, placement.Options{Policy: policy, Without: self, PerGPU: w.inv.SharesPerGPU})
	// Another node first: what a Query remembers must not matter.
	q.Check(drawWorld(t).view)
	if diff := cmp.Diff(roles(req), q.Roles()); diff != "" {
		t.Fatalf("roles (-want +got):\n%s", diff)
	}
	plan, reason := q.Plan(w.view)
	if want := w.possible(req, false, false); (reason == "") != want {
		t.Fatalf("Plan says %q, possible is %v\nrequest %+v\nGPUs %+v\nused %v", reason, want, req, w.inv.GPUs, w.used)
	}
	if got := q.Check(w.view); got != reason {
		t.Fatalf("Check says %q, Plan %q", got, reason)
	}
	score, got := q.Score(w.view)
	if got != reason {
		t.Fatalf("Score says %q, Plan %q", got, reason)
	}
	if again, _ := q.Score(w.view); again != score || score < 0 {
		t.Fatalf("Score says %d, then %d", score, again)
	}
	if again, r := placement.Fit(w.view, req, self, policy); r != reason || !cmp.Equal(again, plan) {
		t.Fatalf("Fit says %v %q, Plan %v %q", again, r, plan, reason)
	}
	if reason != "" {
		reasonIsTrue(t, w, req, reason)
		return
	}
	planIsRight(t, w, req, plan)
}

// reasonIsTrue checks what a reason says of what would help.
func reasonIsTrue(t *rapid.T, w world, req contract.Request, reason placement.Reason) {
	whenEmpty := w.possible(req, true, false)
	whenCured := w.possible(req, true, true)
	var wantEmpty, wantCured bool
	switch reason {
	case placement.NoGPUs, placement.NoSuchModel, placement.NoIsolation, placement.TooBig, placement.TooFewGPUs, placement.TooBigTogether:
	case placement.Unhealthy:
		wantCured = true
	case placement.NoWholeGPU, placement.NotEnoughFree, placement.NotEnoughGPUs, placement.NotTogether:
		wantEmpty, wantCured = true, true
	default:
		t.Fatalf("unexpected reason %q", reason)
	}
	if whenEmpty != wantEmpty || whenCured != wantCured {
		t.Fatalf("reason %q, but fits when empty: %v, when also healthy: %v\nrequest %+v\nGPUs %+v", reason, whenEmpty, whenCured, req, w.inv.GPUs)
	}
}

// planIsRight checks a plan by what the ledger and the contract say of it.
func planIsRight(t *rapid.T, w world, req contract.Request, plan contract.Plan) {
	text, err := plan.Format()
	if err != nil {
		t.Fatalf("the plan cannot be written: %v", err)
	}
	if parsed, err := contract.ParsePlan(text); err != nil || !cmp.Equal(parsed, plan) {
		t.Fatalf("the plan %s reads as %+v: %v", text, parsed, err)
	}
	if plan.Node != "n" || len(plan.Containers) != len(req.Demands) {
		t.Fatalf("plan %+v for request %+v", plan, req)
	}
	sets := map[string]bool{}
	for _, d := range req.Demands {
		grants := plan.Containers[d.Name]
		if len(grants) != d.Count {
			t.Fatalf("container %s has %d GPUs, want %d", d.Name, len(grants), d.Count)
		}
		set := ""
		for _, got := range grants {
			i := slices.IndexFunc(w.inv.GPUs, func(g contract.GPU) bool { return g.UUID == got.GPU })
			g := w.inv.GPUs[i]
			if !g.Healthy || !req.AllowsModel(g.Model) || req.RequireIsolation && !g.Isolation.Enforced() {
				t.Fatalf("container %s is on GPU %+v", d.Name, g)
			}
			if want := d.GrantOn(g, w.inv.SharesPerGPU); got != want {
				t.Fatalf("container %s has %+v, want %+v", d.Name, got, want)
			}
			set += string(got.GPU) + " "
		}
		sets[set] = true
	}
	if req.SameGPUs && len(sets) != 1 {
		t.Fatalf("containers that must share GPUs have %v", plan.Containers)
	}
	claim := ledger.Claim{Pod: ledger.Pod{UID: self}, Node: "n", Charges: plan.Charges(roles(req)), Plan: plan}
	if r := w.l.Hold(claim, inAMinute()); r != "" {
		t.Fatalf("the ledger refuses plan %+v: %s", plan, r)
	}
}

func TestFitFindsAPlacementIfAndOnlyIfThereIsOne(t *testing.T) { rapid.Check(t, agree) }

func FuzzFitFindsAPlacementIfAndOnlyIfThereIsOne(f *testing.F) { f.Fuzz(rapid.MakeFuzz(agree)) }

// nonsense is what no parser lets through.
func nonsense(t *rapid.T) {
	number := rapid.OneOf(rapid.Int64Range(-2, 101), rapid.Int64(), rapid.SampledFrom([]int64{math.MaxInt64, math.MinInt64, 1 << 30}))
	name := rapid.SampledFrom([]string{"", "a", "b"})
	l := ledger.New()
	inv := contract.Inventory{SharesPerGPU: units.Shares(number.Draw(t, "perGPU"))}
	for range rapid.IntRange(0, 4).Draw(t, "gpus") {
		g := contract.GPU{
			UUID: contract.GPUUUID(name.Draw(t, "uuid")), Index: int(number.Draw(t, "index")), Model: name.Draw(t, "model"),
			MemoryMiB: units.MiB(number.Draw(t, "memory")), Healthy: rapid.Bool().Draw(t, "healthy"), Isolation: contract.Isolation(name.Draw(t, "isolation")),
			Links: []contract.Link{{To: int(number.Draw(t, "to")), Type: contract.LinkNVLink, Count: int(number.Draw(t, "links"))}},
		}
		inv.GPUs = append(inv.GPUs, g)
	}
	l.SetNode("n", inv)
	req := contract.Request{SameGPUs: rapid.Bool().Draw(t, "same"), RequireIsolation: rapid.Bool().Draw(t, "isolated")}
	for range rapid.IntRange(0, 4).Draw(t, "demands") {
		req.Demands = append(req.Demands, contract.Demand{
			ContainerRole: contract.ContainerRole{Name: name.Draw(t, "container"), Role: contract.Role(rapid.IntRange(-1, 4).Draw(t, "role"))},
			Count:         int(number.Draw(t, "count")), Whole: rapid.Bool().Draw(t, "whole"),
			Shares: units.Shares(number.Draw(t, "shares")), Memory: units.MiB(number.Draw(t, "mib")),
		})
	}
	n := l.Snapshot().Node(rapid.SampledFrom([]string{"n", "nobody"}).Draw(t, "node"))
	q := placement.New(req, placement.Options{Policy: policyNamed(t)})
	plan, reason := q.Plan(n)
	if _, r := q.Score(n); r != reason {
		t.Fatalf("Score says %q, Plan %q", r, reason)
	}
	if r := q.Check(n); r != reason {
		t.Fatalf("Check says %q, Plan %q", r, reason)
	}
	if reason != "" {
		if !slices.Contains(placement.Reasons(), reason) {
			t.Fatalf("unknown reason %q", reason)
		}
		return
	}
	for _, grants := range plan.Containers {
		for _, got := range grants {
			if i := slices.IndexFunc(n.GPUs(), func(g ledger.GPUView) bool { return g.Facts.UUID == got.GPU }); got.MemoryMiB > n.GPUs()[i].Facts.MemoryMiB {
				t.Fatalf("%+v on a GPU of %d MiB", got, n.GPUs()[i].Facts.MemoryMiB)
			}
		}
	}
	for gpu, s := range plan.Charges(roles(req)) {
		if s > n.SharesPerGPU() {
			t.Fatalf("GPU %s is charged %d of %d shares", gpu, s, n.SharesPerGPU())
		}
	}
}

func TestNonsenseNeitherPanicsNorOvercommits(t *testing.T) { rapid.Check(t, nonsense) }

func FuzzNonsenseNeitherPanicsNorOvercommits(f *testing.F) { f.Fuzz(rapid.MakeFuzz(nonsense)) }
