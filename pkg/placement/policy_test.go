package placement_test

import (
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/placement"
	"github.com/tranche-dev/tranche/pkg/units"
)

// beside makes a GPU beside a memory node.
func beside(socket int, used units.Shares) gpu { return gpu{model: a100, used: used, socket: socket} }

// linked makes a GPU with NVLinks to others.
func linked(to map[int]int) gpu { return gpu{model: a100, nvlinks: to} }

func TestPolicyChoosesGPUs(t *testing.T) {
	pairs := []gpu{ // 0-1 and 2-3 by 4 links, 1-2 by 1
		linked(map[int]int{1: 4}), linked(map[int]int{0: 4, 2: 1}), linked(map[int]int{1: 1, 3: 4}), linked(map[int]int{2: 4}),
	}
	busyPairs := slices.Clone(pairs)
	busyPairs[0].used = 10
	cases := map[string]struct {
		gpus   []gpu
		ask    []demand
		policy placement.Policy
		want   [][]int // per container
	}{
		"binpack takes the fullest GPU that has room": {
			gpus: []gpu{use(a100, 0), use(a100, 60), use(a100, 40), use(a100, 70)}, ask: []demand{{Shares: 40}}, want: [][]int{{1}},
		},
		"binpack takes the lower index of equal GPUs": {
			gpus: []gpu{use(a100, 0), use(a100, 50), use(a100, 50)}, ask: []demand{{Shares: 10}}, want: [][]int{{1}},
		},
		"binpack takes the smaller of equally full GPUs": {
			gpus: []gpu{use(a100, 0), use(a30, 0)}, ask: []demand{{Shares: 50}}, want: [][]int{{1}},
		},
		"binpack takes the smaller whole GPU": {
			gpus: []gpu{use(a100, 0), use(a30, 1), use(a30, 0)}, ask: []demand{{Whole: true}}, want: [][]int{{2}},
		},
		"binpack puts memory on the smallest GPU that is big enough": {
			gpus: []gpu{use(a100, 50), use(a30, 0)}, ask: []demand{{Memory: 10 * 1024}}, want: [][]int{{1}},
		},
		"binpack puts memory on a small GPU even if a big one has just that room": {
			gpus: []gpu{use(a100, 87), use(a30, 0)}, ask: []demand{{Memory: 10 * 1024}}, want: [][]int{{1}},
		},
		"binpack puts memory on a big GPU if no small one is big enough": {
			gpus: []gpu{use(a30, 0), use(a100, 0), use(a100, 20)}, ask: []demand{{Memory: 30 * 1024}}, want: [][]int{{2}},
		},
		"binpack puts memory on a big GPU if the small ones are full": {
			gpus: []gpu{use(a30, 80), use(a100, 0)}, ask: []demand{{Memory: 10 * 1024}}, want: [][]int{{1}},
		},
		"binpack puts a pod's containers on one GPU": {
			gpus: []gpu{use(a100, 0), use(a100, 0)}, ask: []demand{{Shares: 30}, {Shares: 40}}, want: [][]int{{0}, {0}},
		},
		"binpack takes a single GPU from the worst linked ones": {
			gpus: append(slices.Clone(pairs), use(a100, 0)), ask: []demand{{Whole: true}}, want: [][]int{{4}},
		},
		"binpack puts memory on the worst linked of equal GPUs": {
			gpus: append(slices.Clone(pairs), use(a100, 0)), ask: []demand{{Memory: 50 * 1024}}, want: [][]int{{4}},
		},
		"binpack leaves a free pair together": {
			gpus: busyPairs, ask: []demand{{Whole: true}}, want: [][]int{{1}},
		},
		"several GPUs are the best linked": {
			gpus: append([]gpu{use(a100, 0)}, shifted(pairs, 1)...), ask: []demand{{Whole: true, Count: 2}}, want: [][]int{{1, 2}},
		},
		"several GPUs are the best linked that have room": {
			gpus: busyPairs, ask: []demand{{Whole: true, Count: 2}}, want: [][]int{{2, 3}},
		},
		"three GPUs keep as many links as they can": {
			gpus: append([]gpu{use(a100, 0), use(a100, 0)}, shifted(pairs, 2)...), ask: []demand{{Shares: 50, Count: 3}}, want: [][]int{{2, 3, 4}},
		},
		"several GPUs are beside one memory node": {
			gpus: []gpu{beside(1, 60), beside(1, 0), beside(2, 0), beside(2, 0)}, ask: []demand{{Shares: 50, Count: 2}}, want: [][]int{{2, 3}},
		},
		"several GPUs of equal memory nodes follow the policy": {
			gpus: []gpu{beside(1, 0), beside(1, 0), beside(2, 30), beside(2, 10)}, ask: []demand{{Shares: 50, Count: 2}}, want: [][]int{{2, 3}},
		},
		"a single GPU parts the fewest of one memory node": {
			gpus: []gpu{beside(1, 0), beside(1, 0), beside(2, 100), beside(2, 0)}, ask: []demand{{Whole: true}}, want: [][]int{{3}},
		},
		"without links several GPUs follow the policy": {
			gpus: []gpu{use(a100, 0), use(a100, 30), use(a100, 0), use(a100, 50)}, ask: []demand{{Shares: 40, Count: 2}}, want: [][]int{{1, 3}},
		},
		"spread takes the emptiest GPU": {
			gpus: []gpu{use(a100, 20), use(a100, 10), use(a100, 30)}, ask: []demand{{Shares: 40}}, policy: placement.Spread, want: [][]int{{1}},
		},
		"spread takes the bigger of equally empty GPUs": {
			gpus: []gpu{use(a30, 0), use(a100, 0)}, ask: []demand{{Shares: 40}}, policy: placement.Spread, want: [][]int{{1}},
		},
		"spread puts a pod's containers on different GPUs": {
			gpus: []gpu{use(a100, 0), use(a100, 0), use(a100, 0)}, ask: []demand{{Shares: 30}, {Shares: 30}}, policy: placement.Spread, want: [][]int{{0}, {1}},
		},
		"several GPUs spread too": {
			gpus: []gpu{use(a100, 10), use(a100, 0), use(a100, 20), use(a100, 5)}, ask: []demand{{Shares: 40, Count: 2}}, policy: placement.Spread, want: [][]int{{1, 3}},
		},
		"the policy gives way where only another placement fits all": {
			// The fullest GPU with room for 40 is the one that the 50 need.
			gpus: []gpu{use(a30, 50), use(a100, 60)}, ask: []demand{{Shares: 40}, {Shares: 50}}, want: [][]int{{1}, {0}},
		},
		"memory gives way where only another placement fits all": {
			// On the small GPU the memory would take all, and the first choice it is.
			gpus: []gpu{use(a30, 0), use(a100, 0)}, ask: []demand{{Memory: 24576}, {Shares: 70}, {Shares: 70}}, want: [][]int{{1}, {1}, {0}},
		},
		"links give way where only another placement fits all": {
			gpus: []gpu{
				linked(map[int]int{1: 4}), {model: a100, used: 10, nvlinks: map[int]int{0: 4}}, use(a100, 50),
			},
			ask: []demand{{Shares: 50, Count: 2}, {Shares: 45}, {Shares: 45}, {Shares: 50}}, want: [][]int{{0, 2}, {1}, {1}, {0}},
		},
		"spread gives way where only another placement fits all": {
			gpus: []gpu{use(a100, 0), use(a100, 40)}, ask: []demand{{Shares: 60}, {Shares: 50}, {Shares: 50}}, policy: placement.Spread,
			want: [][]int{{1}, {0}, {0}},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			plan, reason := placement.Fit(node("n", tc.gpus...), ask(tc.ask...), "", tc.policy)
			if reason != "" {
				t.Fatalf("refused: %s", reason)
			}
			var got [][]int
			for _, d := range ask(tc.ask...).Demands {
				got = append(got, indices(t, plan, d.Name))
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("GPUs per container (-want +got):\n%s", diff)
			}
		})
	}
}

// shifted moves GPUs up by some indices.
func shifted(gpus []gpu, by int) []gpu {
	var all []gpu
	for _, g := range gpus {
		links := map[int]int{}
		for to, n := range g.nvlinks {
			links[to+by] = n
		}
		g.nvlinks = links
		all = append(all, g)
	}
	return all
}

func TestSameGPUsIsOneSetForAllContainers(t *testing.T) {
	req := ask(demand{Shares: 60}, demand{Shares: 40}, demand{Shares: 50})
	req.SameGPUs = true
	req.Demands[0].Role = contract.RoleInit
	// 60 first, then 40 + 50: 90 on one GPU, though each would fit the first.
	plan, reason := placement.Fit(node("n", use(a100, 20), use(a100, 10)), req, "", nil)
	if reason != "" {
		t.Fatalf("refused: %s", reason)
	}
	for _, d := range req.Demands {
		if got := indices(t, plan, d.Name); !slices.Equal(got, []int{1}) {
			t.Errorf("container %s is on GPUs %v, want 1", d.Name, got)
		}
	}
	if got := plan.Charges(roles(req)); got[uuid(1)] != 90 {
		t.Errorf("charges %v, want 90", got)
	}
	if _, reason := placement.Fit(node("n", use(a100, 20), use(a100, 11)), req, "", nil); reason != placement.NotEnoughFree {
		t.Errorf("reason %q, want %q", reason, placement.NotEnoughFree)
	}
}

func TestOwnHoldDoesNotCountAgainstThePod(t *testing.T) {
	l := build("n", use(a100, 30))
	hold := ledger.Claim{Pod: ledger.Pod{UID: "me"}, Node: "n", Charges: map[contract.GPUUUID]units.Shares{uuid(0): 60}}
	if r := l.Hold(hold, inAMinute()); r != "" {
		t.Fatal(r)
	}
	n := l.Node("n")
	if _, reason := placement.Fit(n, ask(demand{Shares: 70}), "me", nil); reason != "" {
		t.Errorf("with its own hold the pod is refused: %s", reason)
	}
	if _, reason := placement.Fit(n, ask(demand{Shares: 11}), "other", nil); reason != placement.NotEnoughFree {
		t.Errorf("another pod gets %q, want %q", reason, placement.NotEnoughFree)
	}
	mine, _ := placement.New(ask(demand{Shares: 20}), placement.Options{Without: "me"}).Score(n)
	none, _ := placement.New(ask(demand{Shares: 20}), placement.Options{}).Score(build("n", use(a100, 30)).Node("n"))
	if mine != none {
		t.Errorf("score %d with the own hold, %d without it", mine, none)
	}
}

// better lists nodes, the best first.
func better(t *testing.T, req contract.Request, policy placement.Policy, nodes ...*ledger.NodeView) {
	t.Helper()
	last := int64(math.MinInt64)
	for _, n := range slices.Backward(nodes) {
		score, reason := placement.New(req, placement.Options{Policy: policy}).Score(n)
		if reason != "" {
			t.Fatalf("node %s refuses: %s", n.Name(), reason)
		}
		if score <= last {
			t.Errorf("node %s has score %d, not above %d", n.Name(), score, last)
		}
		last = score
	}
}

func TestBinpackPrefersTheMostUsedNode(t *testing.T) {
	better(
		t, ask(demand{Shares: 25}), placement.Binpack,
		node("fuller", use(a100, 70), use(a100, 50)),
		node("half", use(a100, 75), use(a100, 0)),
		node("used", use(a100, 10), use(a100, 10)),
		node("small", use(a30, 0), use(a30, 0)),
		node("big", use(a100, 0), use(a100, 0)),
	)
}

func TestBinpackPrefersTheNodeWithTheTighterGPUAmongEquallyUsedOnes(t *testing.T) {
	better(
		t, ask(demand{Shares: 25}), placement.Binpack,
		node("tight", use(a100, 75), use(a100, 25)),
		node("loose", use(a100, 50), use(a100, 50)),
	)
}

func TestBinpackKeepsBigGPUsForBigRequests(t *testing.T) {
	better(
		t, ask(demand{Memory: 10 * 1024}), placement.Binpack,
		node("small-used", use(a30, 30), use(a30, 0)),
		node("small-empty", use(a30, 0), use(a30, 0)),
		node("big-used", use(a100, 80), use(a100, 80)),
	)
}

func TestSpreadPrefersTheEmptiestNode(t *testing.T) {
	better(
		t, ask(demand{Shares: 25}), placement.Spread,
		node("big", use(a100, 0), use(a100, 0)),
		node("small", use(a30, 0), use(a30, 0)),
		node("used", use(a100, 10), use(a100, 10)),
		node("half", use(a100, 70), use(a100, 0)),
		node("fuller", use(a100, 70), use(a100, 50)),
	)
}

func TestUnhealthyGPUsMakeANodeLookNeitherEmptyNorFull(t *testing.T) {
	sick := use(a100, 0)
	sick.sick = true
	better(
		t, ask(demand{Shares: 25}), placement.Binpack,
		node("half-dead", use(a100, 50), sick),
		node("alive", use(a100, 50), use(a100, 20)),
	)
	dying := use(a100, 100)
	dying.sick = true
	better(
		t, ask(demand{Shares: 25}), placement.Binpack,
		node("fuller", use(a100, 80), use(a100, 55)),
		node("half-dead", use(a100, 50), dying),
	)
}

func TestPolicyIsChosenByName(t *testing.T) {
	for name, want := range map[contract.Placement]placement.Policy{
		contract.PlacementSpread: placement.Spread, contract.PlacementBinpack: placement.Binpack, "": placement.Binpack, "odd": placement.Binpack,
	} {
		if got := placement.For(name); got != want {
			t.Errorf("For(%q) = %T, want %T", name, got, want)
		}
	}
}
