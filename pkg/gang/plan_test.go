package gang_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/gang"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/placement"
	"github.com/tranche-dev/tranche/pkg/units"
)

// nodesOf plans and returns the members' nodes, sorted.
func nodesOf(t *testing.T, w *world) []string {
	t.Helper()
	places, shortfall := w.plan()
	if shortfall != nil {
		t.Fatal(shortfall.Message())
	}
	if problem := wrong(w, places); problem != "" {
		t.Fatal(problem)
	}
	var names []string
	for _, p := range places {
		names = append(names, p.Node)
	}
	slices.Sort(names)
	return names
}

func wantNodes(t *testing.T, w *world, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, nodesOf(t, w)); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
}

func TestPlanPacksWhereThePolicyWouldWaste(t *testing.T) {
	// Room for 1, 1 and 2: the fullest two first leaves none for the other.
	w := newWorld()
	w.free("n1", h200, 40, 40, 80)
	w.want(2, ask(several(2, 40)), gang.Resources{})
	wantNodes(t, w, "n1", "n1")
}

func TestPlanPacksPodsOfTwoContainers(t *testing.T) {
	// Spread puts the first 60 on the emptiest GPU, where both would fit.
	w := newWorld()
	w.free("n1", h200, 90, 60, 30)
	for i := range w.want(2, ask(part(60), part(30)), gang.Resources{}) {
		w.members[i].Policy, w.members[i].Shape = placement.Spread, ""
	}
	if oneByOne(w) != nil {
		t.Error("they fit one by one: the case shows nothing")
	}
	wantNodes(t, w, "n1", "n1")
}

func TestPlanMovesMembersOutOfTheWayOfPickyOnes(t *testing.T) {
	w := newWorld()
	w.free("n1", h200, 50, 20)
	w.free("n2", h200, 50)
	w.free("n3", h200, 50)
	members := w.want(3, ask(part(50)), gang.Resources{})
	members[1].Avoid = map[string]bool{"n1": true}
	members[2].Avoid = map[string]bool{"n1": true, "n3": true}
	wantNodes(t, w, "n1", "n2", "n3")
}

func TestPlanPutsMembersWhereSinglePodsWouldGo(t *testing.T) {
	compared := 0
	for seed := range uint64(4000) {
		w := random(seed, true)
		w.topology = nil
		for i := range w.members {
			w.members[i].Avoid = nil
		}
		want := oneByOne(w)
		if want == nil || len(w.members[0].Request.Demands) == 0 {
			continue
		}
		places, shortfall := w.plan()
		if shortfall != nil {
			t.Fatalf("seed %d: %s, though one by one they fit", seed, shortfall.Message())
		}
		var got []string
		for _, p := range places {
			got = append(got, fmt.Sprint(p))
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("seed %d: places (-one by one +gang):\n%s", seed, diff)
		}
		compared++
	}
	if compared < 1000 {
		t.Errorf("only %d comparisons", compared)
	}
}

// oneByOne places members as Prioritize would, nil if one finds no room.
func oneByOne(w *world) []string {
	var places []string
	free, gpus := map[string]gang.Resources{}, map[string]*ledger.NodeView{}
	for _, n := range w.nodes {
		free[n.Name], gpus[n.Name] = n.Free, n.GPUs
	}
	for i := range w.members {
		m := &w.members[i]
		q := placement.New(m.Request, placement.Options{Policy: m.Policy})
		var names []string
		var scores []int64
		for _, n := range w.nodes {
			fits, _ := gang.Fits(free[n.Name], m.Needs)
			if score, reason := q.Score(gpus[n.Name]); reason == "" && fits && allowed(w, m, n) {
				names, scores = append(names, n.Name), append(scores, score)
			}
		}
		best := placement.Best(names, scores)
		if best < 0 {
			return nil
		}
		name := names[best]
		plan, _ := q.Plan(gpus[name])
		free[name] = free[name].Sub(m.Needs)
		gpus[name] = gpus[name].With(ledger.Claim{Pod: m.Pod, Charges: plan.Charges(rolesOf(m))})
		places = append(places, fmt.Sprint(gang.Place{Node: name, Plan: plan}))
	}
	slices.Sort(places)
	return places
}

func TestPlanLeavesPinnedMembersWhereTheyAre(t *testing.T) {
	w := newWorld()
	w.free("n1", h200, 100)
	w.free("n2", h200, 50)
	w.want(3, ask(part(50)), gang.Resources{})
	// It holds what Plan is told to look past, and takes it again.
	plan := contract.Plan{Version: 1, Node: "n1", Containers: map[string][]contract.Grant{"c0": {{GPU: uuid("n1", 0), Shares: 50}}}}
	w.members[0].Pinned, w.members[0].Plan = "n1", plan
	w.hold([]gang.Place{{Node: "n1", Plan: plan}})
	places, shortfall := w.plan()
	if shortfall != nil {
		t.Fatal(shortfall.Message())
	}
	if diff := cmp.Diff(gang.Place{Node: "n1", Plan: plan}, places[0]); diff != "" {
		t.Errorf("pinned (-want +got):\n%s", diff)
	}
	wantNodes(t, w, "n1", "n1", "n2")

	w.want(1, ask(part(50)), gang.Resources{})
	if _, shortfall := w.plan(); shortfall == nil {
		t.Error("four halves in one and a half GPUs")
	}
	// A pinned member whose node is not among them stays too.
	w.members[0].Pinned = "elsewhere"
	if places, _ := w.plan(); places == nil || places[0].Node != "elsewhere" {
		t.Errorf("places %v, want the first elsewhere", places)
	}
}

func TestPlanPutsMembersWithoutGPUsWhereNoneAre(t *testing.T) {
	w := newWorld()
	w.free("gpus", h200, 100).Free = gang.Resources{MilliCPU: 4000, Pods: 9}
	for _, name := range []string{"big", "small"} {
		w.nodes = append(w.nodes, &gang.Node{Name: name, Free: gang.Resources{MilliCPU: 2000, Pods: 9}})
	}
	w.nodes[1].Free.MilliCPU = 3000
	w.want(3, ask(), gang.Resources{MilliCPU: 1500})
	for i := range w.members {
		w.members[i].Shape = ""
	}
	w.members[0].Policy = placement.Spread
	w.want(1, ask(whole(1)), gang.Resources{MilliCPU: 1000})
	// One with GPUs first, then two that pack, then one that spreads.
	wantNodes(t, w, "big", "big", "gpus", "small")
	places, _ := w.plan()
	if p := places[1]; p.Plan.Node != p.Node || p.Plan.Version != contract.PlanVersion || len(p.Plan.Containers) > 0 {
		t.Errorf("plan %+v on %s", p.Plan, p.Node)
	}
}

func TestPlanPutsMembersWithoutGPUsFirstWhereOthersWouldTakeTheirRoom(t *testing.T) {
	// On n1 there is cpu for one of them: the one with the GPU can go to n2.
	w := newWorld()
	w.free("n1", h200, 50).Free = gang.Resources{MilliCPU: 1000, Pods: 9}
	w.free("n2", h200, 100).Free = gang.Resources{MilliCPU: 1000, Pods: 9}
	w.want(1, ask(part(50)), gang.Resources{MilliCPU: 1000})
	w.want(1, ask(), gang.Resources{MilliCPU: 1000})
	w.members[1].Avoid = map[string]bool{"n2": true}
	wantNodes(t, w, "n1", "n2")
}

func TestPlanOfNobody(t *testing.T) {
	w := newWorld()
	if places, shortfall := w.plan(); shortfall != nil || len(places) != 0 {
		t.Errorf("places %v, shortfall %v", places, shortfall)
	}
}

// zones makes a world of nodes "zone-number" with these free shares each.
func zones(nodes map[string][]units.Shares) *world {
	w := newWorld()
	for _, name := range slices.Sorted(func(yield func(string) bool) {
		for name := range nodes {
			if !yield(name) {
				return
			}
		}
	}) {
		n := w.free(name, h200, nodes[name]...)
		if name[0] != '-' {
			n.Labels[zone] = name[:1]
		}
	}
	return w
}

func TestPlanKeepsMembersInOneDomain(t *testing.T) {
	nodes := map[string][]units.Shares{"a1": {50}, "a2": {50}, "b1": {50, 50}, "b2": {50, 50}, "c1": {50, 50}, "c2": {50}, "-1": {100, 100, 100}}
	cases := map[string]struct {
		members  int
		topology gang.Topology
		want     []string
	}{
		"the tightest that fits":           {3, gang.Topology{Required: true}, []string{"c1", "c1", "c2"}},
		"the only one that fits":           {4, gang.Topology{Required: true}, []string{"b1", "b1", "b2", "b2"}},
		"none fits":                        {5, gang.Topology{Required: true}, nil},
		"where the others are":             {2, gang.Topology{Required: true, Domain: "b"}, []string{"b1", "b1"}},
		"no room where the others are":     {3, gang.Topology{Required: true, Domain: "a"}, nil},
		"preferred, and one fits":          {3, gang.Topology{}, []string{"c1", "c1", "c2"}},
		"preferred, and two do":            {7, gang.Topology{}, []string{"b1", "b1", "b2", "b2", "c1", "c1", "c2"}},
		"preferred, home and one more":     {5, gang.Topology{Domain: "a"}, nil},
		"preferred, and none are enough":   {12, gang.Topology{}, nil},
		"preferred, home is big enough":    {1, gang.Topology{Domain: "b"}, []string{"b1"}},
		"preferred, home does not exist":   {3, gang.Topology{Domain: "x"}, nil},
		"required, home that is not there": {1, gang.Topology{Required: true, Domain: "x"}, nil},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := zones(nodes)
			tc.topology.NodeLabel = zone
			w.topology = &tc.topology
			w.want(tc.members, ask(part(50)), gang.Resources{})
			places, shortfall := w.plan()
			switch {
			case tc.want != nil:
				wantNodes(t, w, tc.want...)
			case tc.topology.Required && shortfall == nil:
				t.Errorf("Plan found %v", places)
			case !tc.topology.Required:
				t.Log(nodesOf(t, w))
			}
		})
	}
}

func TestPlanTakesTheDomainOfPinnedMembers(t *testing.T) {
	w := zones(map[string][]units.Shares{"a1": {50}, "b1": {100, 100}})
	w.topology = &gang.Topology{NodeLabel: zone, Required: true}
	w.want(2, ask(part(50)), gang.Resources{})
	w.members[0].Pinned = "b1"
	wantNodes(t, w, "b1", "b1")
	w.members[0].Pinned = "a1"
	wantNodes(t, w, "a1", "a1")
}

func TestPlanOfBigGangsIsValid(t *testing.T) {
	cases := map[string]struct {
		used     units.Shares
		topology *gang.Topology
		req      []contract.Request
	}{
		"empty":               {0, nil, []contract.Request{ask(part(50))}},
		"used":                {45, nil, []contract.Request{ask(part(50))}},
		"several GPUs":        {45, nil, []contract.Request{ask(several(3, 50))}},
		"several shapes":      {0, nil, []contract.Request{ask(part(50)), ask(whole(4)), ask(part(30), gigabytes(20))}},
		"in one of the zones": {45, &gang.Topology{NodeLabel: zone, Required: true}, []contract.Request{ask(part(10))}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := cluster(120, tc.used)
			w.topology = tc.topology
			for _, req := range tc.req {
				w.equals(96, req)
			}
			nodesOf(t, w)
		})
	}
}
