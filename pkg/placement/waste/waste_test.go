package waste_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/placement/waste"
	"github.com/tranche-dev/tranche/pkg/units"
)

func share(cpu int64, part int) waste.Shape { return waste.Shape{MilliCPU: cpu, GPUs: 1, Part: part} }

// one is a cluster of one kind.
func one(gpus int) waste.Cluster {
	return waste.Cluster{
		Kinds:    []waste.Kind{{Class: &ledger.Class{Model: "M", MemoryMiB: 16384, SharesPerGPU: 100}, GPUs: gpus}},
		MilliCPU: int64(gpus) * 8000, MaxMilliCPU: 64_000, MaxGPUs: 8,
	}
}

func state(c waste.Cluster, cpu int64, free ...units.Shares) *waste.State {
	s := &waste.State{Free: free, PerGPU: 100, MilliCPU: cpu}
	for range free {
		s.GPUs = append(s.GPUs, ledger.GPUView{Class: c.Kinds[0].Class, Healthy: true})
	}
	return s
}

func TestShapeIsTheNearestOfAPod(t *testing.T) {
	app := func(name string, d contract.Demand) contract.Demand {
		d.ContainerRole = contract.ContainerRole{Name: name}
		d.Count = max(d.Count, 1)
		return d
	}
	init := app("i", contract.Demand{Shares: 80})
	init.Role = contract.RoleInit
	cases := map[string]struct {
		demands []contract.Demand
		perGPU  units.Shares
		want    waste.Shape
	}{
		"no GPU":                     {want: waste.Shape{}},
		"a share":                    {demands: []contract.Demand{app("a", contract.Demand{Shares: 30})}, want: waste.Shape{GPUs: 1, Part: 30}},
		"a share, rounded up":        {demands: []contract.Demand{app("a", contract.Demand{Shares: 1})}, perGPU: 8, want: waste.Shape{GPUs: 1, Part: 13}},
		"memory":                     {demands: []contract.Demand{app("a", contract.Demand{Memory: 4096})}, want: waste.Shape{GPUs: 1, Memory: 4096}},
		"whole GPUs":                 {demands: []contract.Demand{app("a", contract.Demand{Whole: true, Shares: 100, Count: 4})}, want: waste.Shape{GPUs: 4, Part: 100}},
		"parts of several":           {demands: []contract.Demand{app("a", contract.Demand{Shares: 25, Count: 2})}, want: waste.Shape{GPUs: 2, Part: 25}},
		"containers add up":          {demands: []contract.Demand{app("a", contract.Demand{Shares: 25}), app("b", contract.Demand{Shares: 30})}, want: waste.Shape{GPUs: 1, Part: 55}},
		"to more than one GPU":       {demands: []contract.Demand{app("a", contract.Demand{Shares: 70}), app("b", contract.Demand{Shares: 60})}, want: waste.Shape{GPUs: 2, Part: 100}},
		"init containers hand on":    {demands: []contract.Demand{init, app("b", contract.Demand{Shares: 60})}, want: waste.Shape{GPUs: 1, Part: 80}},
		"memory of several adds up":  {demands: []contract.Demand{app("a", contract.Demand{Memory: 10}), app("b", contract.Demand{Memory: 20})}, want: waste.Shape{GPUs: 1, Memory: 30}},
		"memory beside shares is no": {demands: []contract.Demand{app("a", contract.Demand{Memory: 10}), app("b", contract.Demand{Shares: 20})}, want: waste.Shape{GPUs: 1, Part: 20}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			perGPU := tc.perGPU
			if perGPU == 0 {
				perGPU = 100
			}
			tc.want.MilliCPU, tc.want.Models = 500, "A,B"
			got := waste.ShapeOf(contract.Request{Demands: tc.demands, Models: []string{"A", "B"}}, 500, perGPU)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("shape (-want +got):\n%s", diff)
			}
		})
	}
}

// With one size s, a hole x keeps x mod s, up to the chance that nobody comes:
// (1-1)^30 = 0.
func TestHolesOfOneSizeKeepTheRemainder(t *testing.T) {
	c := one(10)
	tables := waste.NewTables([]waste.Counted{{Shape: share(1000, 30), Count: 7}}, c)
	for free := range units.Shares(101) {
		if got, want := tables.Terms(state(c, 64_000, free), waste.Nothing).Holes, float64(free%30)*10; got != want {
			t.Errorf("a hole of %d keeps %g, want %g", free, got, want)
		}
	}
}

// Worked by hand: half of the pods take 60, half 40. A hole of 60 gets a 60 if
// one of 30 is that, so it keeps 0 but for 2^-30; then a 40 of the 30 remains.
func TestHolesPreferWhatLeavesLeast(t *testing.T) {
	c := one(10)
	tables := waste.NewTables([]waste.Counted{{Shape: share(1000, 40), Count: 5}, {Shape: share(1000, 60), Count: 5}}, c)
	never := math.Pow(0.5, 30)
	for free, want := range map[units.Shares]float64{39: 390, 40: 400 * never, 60: 200*never + 0, 50: 100 + never*400} {
		if got := tables.Terms(state(c, 64_000, free), waste.Nothing).Holes; math.Abs(got-want) > 1e-4 {
			t.Errorf("a hole of %d keeps %g, want %g", free, got, want)
		}
	}
}

func TestNothingLearnedCostsNothing(t *testing.T) {
	c := one(10)
	tables := waste.NewLearner().Tables(c)
	if got := tables.Cost(state(c, 64_000, 17, 40), waste.Nothing); got != 0 {
		t.Errorf("cost %g, want 0", got)
	}
}

func TestShapesThatNoNodeCanTakeAreNotSavedFor(t *testing.T) {
	c := one(10)
	usual := waste.Counted{Shape: share(1000, 50), Count: 1}
	never := []waste.Counted{
		{Shape: waste.Shape{GPUs: 9, Part: 100}, Count: 100},
		{Shape: waste.Shape{GPUs: 1, Part: 100, Models: "other"}, Count: 100},
		{Shape: waste.Shape{GPUs: 1, Memory: 99_999}, Count: 100},
	}
	with, without := waste.NewTables(append(never, usual), c), waste.NewTables([]waste.Counted{usual}, c)
	for free := range units.Shares(101) {
		s := state(c, 5000, free, 100)
		if diff := cmp.Diff(without.Terms(s, waste.Nothing), with.Terms(s, waste.Nothing)); diff != "" {
			t.Fatalf("free %d (-without +with):\n%s", free, diff)
		}
	}
}

func TestSickGPUsAndOverdrawnOnesHaveNothingFree(t *testing.T) {
	c := one(10)
	tables := waste.NewTables([]waste.Counted{{Shape: share(1000, 50), Count: 1}}, c)
	s := state(c, 64_000, 100, 100, -5)
	s.GPUs[0].Healthy = false
	if got := tables.Terms(s, waste.Nothing).Free; got != 1000 {
		t.Errorf("free %g, want 1000", got)
	}
}

func TestTheGrainOfSharesDoesNotMatter(t *testing.T) {
	c := one(10)
	tables := waste.NewTables(randomShapes(rand.New(rand.NewPCG(3, 4))), c)
	for free := range units.Shares(101) {
		coarse, fine := state(c, 9000, free, 100), state(c, 9000, free*10, 1000)
		fine.PerGPU = 1000
		if diff := cmp.Diff(tables.Terms(coarse, waste.Take{GPU: 1, Shares: 30}), tables.Terms(fine, waste.Take{GPU: 1, Shares: 300})); diff != "" {
			t.Fatalf("free %d (-of 100 +of 1000):\n%s", free, diff)
		}
	}
}

func TestUnusableIsWhatNoUsualPodFits(t *testing.T) {
	c := one(10)
	tables := waste.NewTables([]waste.Counted{{Shape: share(4000, 50), Count: 9}, {Shape: waste.Shape{MilliCPU: 1000, GPUs: 2, Part: 30}, Count: 9}}, c)
	cases := map[string]struct {
		state *waste.State
		want  float64
	}{
		"too small a part":               {state(c, 9000, 49), 490},
		"big enough":                     {state(c, 9000, 50), 0},
		"no processors":                  {state(c, 3999, 50), 500},
		"two parts for a pod of two":     {state(c, 3000, 30, 60), 0},
		"one of three is too small":      {state(c, 3000, 30, 29, 60), 290},
		"nothing free":                   {state(c, 9000, 0, 0), 0},
		"processors for neither of them": {state(c, 500, 100, 100), 2000},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := tables.Unusable(tc.state); got != tc.want {
				t.Errorf("unusable %g, want %g", got, tc.want)
			}
		})
	}
}

func TestKindsOfGPUsAreToldApartByWhatTheyAre(t *testing.T) {
	c := one(10)
	c.Kinds = append(c.Kinds, waste.Kind{Class: &ledger.Class{Model: "N", MemoryMiB: 16384, SharesPerGPU: 100}, GPUs: 10})
	tables := waste.NewTables([]waste.Counted{{Shape: waste.Shape{GPUs: 1, Part: 50, Models: "N"}, Count: 1}}, c)
	mixed := state(c, 64_000, 100, 100, 100)
	mixed.GPUs[1].Class = &ledger.Class{Model: "N", MemoryMiB: 16384, SharesPerGPU: 100} // another ledger's
	if got := tables.Terms(mixed, waste.Nothing).Fragmentation; got != 2000 {
		t.Errorf("fragmentation %g, want 2000: only the N can be used", got)
	}
	mixed.GPUs[1].Class = &ledger.Class{Model: "new", MemoryMiB: 1}
	if got := tables.Terms(mixed, waste.Nothing).Fragmentation; got != 3000 {
		t.Errorf("fragmentation %g, want 3000: nothing is known to use a new model", got)
	}
}

func TestCostIsANumberWhateverIsLearned(t *testing.T) {
	clusters := map[string]waste.Cluster{"usual": one(10), "no processors": {Kinds: one(10).Kinds, MaxGPUs: 8}, "empty": {}}
	shapes := map[string][]waste.Counted{
		"no GPUs":       {{Shape: waste.Shape{MilliCPU: 5}, Count: 9}},
		"no processors": {{Shape: share(0, 100), Count: 9}},
		"huge":          {{Shape: share(math.MaxInt64, 100), Count: math.MaxInt32}},
		"none":          nil,
	}
	for cluster, c := range clusters {
		for name, s := range shapes {
			t.Run(fmt.Sprint(cluster, "/", name), func(t *testing.T) {
				tables := waste.NewTables(s, c)
				for _, cpu := range []int64{0, -7, math.MaxInt64, waste.UnknownCPU} {
					st := state(one(10), cpu, 0, 30, 100)
					after := state(one(10), cpu, 0, 0, 100)
					p := &waste.Placement{Class: one(10).Kinds[0].Class, Before: *st, After: *after}
					if got := tables.Score(p); math.IsNaN(got) || math.IsInf(got, 0) {
						t.Errorf("score %g with %d milliCPU", got, cpu)
					}
				}
			})
		}
	}
}

func TestManyOddShapesStillOrderProcessors(t *testing.T) {
	l := waste.NewLearner()
	for i := range int64(3000) {
		l.Observe(share(1000+i, 50))
	}
	c := one(10)
	tables := l.Tables(c)
	last := math.Inf(1)
	for _, cpu := range []int64{0, 999, 1100, 1500, 2000, 4000} {
		got := tables.Terms(state(c, cpu, 100), waste.Nothing).Fragmentation
		if got > last {
			t.Errorf("with %d milliCPU the fragmentation is %g, more than with fewer", cpu, got)
		}
		last = got
	}
	if last != 0 {
		t.Errorf("fragmentation %g where all fit, want 0", last)
	}
}

func TestTablesAreDueAfterEachQuarter(t *testing.T) {
	l, c := waste.NewLearner(), one(10)
	var at []int
	for i := 1; i <= 3000; i++ {
		if l.Observe(share(1000, 50)) {
			l.Tables(c)
			at = append(at, i)
		}
	}
	want := []int{1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 18, 22, 27, 33, 41, 51, 63, 78, 97, 121, 151, 188, 235, 293, 366, 457, 571, 713, 891, 1113, 1391, 1738, 2172, 2672}
	if diff := cmp.Diff(want, at); diff != "" {
		t.Errorf("due after (-want +got):\n%s", diff)
	}
}

func TestWhatIsLearnedSurvivesARestart(t *testing.T) {
	l := waste.NewLearner()
	for i := range 100 {
		l.Observe(share(int64(i%7), 1+i%13))
	}
	again := waste.NewLearner(l.Shapes()...)
	if diff := cmp.Diff(l.Shapes(), again.Shapes()); diff != "" {
		t.Errorf("shapes (-before +after):\n%s", diff)
	}
}

func TestOldShapesAreForgotten(t *testing.T) {
	l := waste.NewLearner()
	for range 1000 {
		l.Observe(share(1, 1))
	}
	for range 400_000 {
		l.Observe(share(2, 2))
	}
	shapes := l.Shapes()
	if len(shapes) != 1 || shapes[0].Shape != share(2, 2) || shapes[0].Count > 20_000 {
		t.Errorf("left are %v", shapes)
	}
}
