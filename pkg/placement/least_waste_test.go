package placement_test

import (
	"fmt"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/placement"
	"github.com/tranche-dev/tranche/pkg/placement/waste"
	"github.com/tranche-dev/tranche/pkg/units"
)

// learned makes the policy for nodes like n that has seen shapes.
func learned(n *ledger.NodeView, shapes ...waste.Counted) placement.Policy {
	var c waste.Cluster
	for _, g := range n.GPUs() {
		at := slices.IndexFunc(c.Kinds, func(k waste.Kind) bool { return *k.Class == *g.Class })
		if at < 0 {
			at, c.Kinds = len(c.Kinds), append(c.Kinds, waste.Kind{Class: g.Class})
		}
		c.Kinds[at].GPUs += 100
	}
	c.MilliCPU, c.MaxMilliCPU, c.MaxGPUs = 100*64_000, 64_000, 8
	return placement.LeastWaste(waste.NewTables(shapes, c))
}

func counted(count int, cpu int64, gpus, part int) waste.Counted {
	return waste.Counted{Shape: waste.Shape{MilliCPU: cpu, GPUs: gpus, Part: part}, Count: count}
}

func TestLeastWasteLeavesHolesThatSomebodyFits(t *testing.T) {
	// Pods take 30 or 50. 30 fits both GPUs; the fuller one would keep 20, for
	// which nobody comes, the other 30.
	n := node("n", use(a100, 50), use(a100, 40))
	usual := []waste.Counted{counted(50, 1000, 1, 30), counted(50, 1000, 1, 50)}
	plan, reason := placement.Fit(n, ask(demand{Shares: 30}), "", learned(n, usual...))
	if reason != "" {
		t.Fatal(reason)
	}
	if got := indices(t, plan, "c0"); !slices.Equal(got, []int{1}) {
		t.Errorf("least-waste took GPU %v, want 1", got)
	}
	plan, _ = placement.Fit(n, ask(demand{Shares: 30}), "", placement.Binpack)
	if got := indices(t, plan, "c0"); !slices.Equal(got, []int{0}) {
		t.Errorf("binpack took GPU %v, want 0: the case would show nothing", got)
	}
}

func TestLeastWasteHasNoUseForGPUsWithoutProcessors(t *testing.T) {
	full := node("n", use(a100, 0), use(a100, 0))
	p := learned(full, counted(1, 8000, 1, 100))
	q := placement.New(ask(demand{Shares: 50}), placement.Options{Policy: p, MilliCPU: 2000})
	// Where processors are left for one more GPU only, half a GPU is no loss.
	poor, _ := q.ScoreIn(full, placement.CPU(10_000))
	rich, _ := q.ScoreIn(full, placement.CPU(60_000))
	if poor <= rich {
		t.Errorf("score %d with few processors, not above %d with many", poor, rich)
	}
}

func TestLeastWasteKeepsModelsForWhoNeedsThem(t *testing.T) {
	n := node("n", use(a100, 0), use(a30, 0))
	only := waste.Counted{Shape: waste.Shape{MilliCPU: 1000, GPUs: 1, Part: 100, Models: a100}, Count: 50}
	p := learned(n, only, counted(50, 1000, 1, 100))
	better(
		t, ask(demand{Whole: true}), p,
		node("a30", use(a30, 0), use(a30, 0)),
		node("a100", use(a100, 0), use(a100, 0)),
	)
}

func TestLeastWasteThatKnowsNothingIsBestFit(t *testing.T) {
	n := node("n", use(a100, 20), use(a100, 60), use(a100, 40))
	p := learned(n)
	plan, _ := placement.Fit(n, ask(demand{Shares: 30}), "", p)
	if got := indices(t, plan, "c0"); !slices.Equal(got, []int{1}) {
		t.Errorf("GPU %v, want 1", got)
	}
	better(
		t, ask(demand{Shares: 30}), p,
		node("full", use(a100, 70)),
		node("small", use(a100, 0)),
		node("big", use(a100, 0), use(a100, 0)),
	)
}

func TestLeastWasteLeavesLinkedPairsTogether(t *testing.T) {
	n := node("n", gpu{model: a100, nvlinks: map[int]int{1: 4}}, gpu{model: a100, nvlinks: map[int]int{0: 4}}, use(a100, 0))
	plan, _ := placement.Fit(n, ask(demand{Whole: true}), "", learned(n, counted(1, 1000, 1, 100)))
	if got := indices(t, plan, "c0"); !slices.Equal(got, []int{2}) {
		t.Errorf("GPU %v, want 2, which has no links", got)
	}
}

func TestLeastWasteRatesWhatItPlans(t *testing.T) {
	n := node("n", use(a100, 50), use(a100, 0), use(a30, 30))
	p := learned(n, counted(50, 1000, 1, 30), counted(50, 1000, 2, 50))
	for name, req := range requests() {
		t.Run(name, func(t *testing.T) {
			q := placement.New(req, placement.Options{Policy: p, MilliCPU: 500})
			_, want := q.ScoreIn(n, placement.CPU(5000))
			first, reason := q.PlanIn(n, placement.CPU(5000))
			again, _ := q.PlanIn(n, placement.CPU(5000))
			if reason != want || reason != q.Check(n) {
				t.Errorf("Plan says %q, Score %q, Check %q", reason, want, q.Check(n))
			}
			if fmt.Sprint(first) != fmt.Sprint(again) {
				t.Errorf("plans differ: %v, %v", first, again)
			}
		})
	}
}

// workload is as varied as real ones are.
func workload() []waste.Counted {
	l := waste.NewLearner()
	for i := range 3000 {
		s := waste.Shape{MilliCPU: int64(1000 * (1 + i%40)), GPUs: 1, Part: 1 + i*37%100}
		switch i % 10 {
		case 0, 1, 2:
			s.Part = 100
		case 3:
			s.GPUs, s.Part = 2, 100
		case 4:
			s.GPUs, s.Part = 8, 100
		case 5:
			s.GPUs, s.Part = 0, 0
		}
		l.Observe(s)
	}
	return l.Shapes()
}

// mixedNodes have GPUs each of which is used to another part.
func mixedNodes(count int) (nodes []*ledger.NodeView, c waste.Cluster) {
	s := cluster(count, func(i int) units.Shares { return units.Shares(i * 37 % 101) })
	for n := range s.Nodes() {
		nodes = append(nodes, n)
	}
	return nodes, waste.ClusterOf(s, func(string) int64 { return 96_000 })
}

func TestLeastWasteAllocatesNothing(t *testing.T) {
	nodes, c := mixedNodes(20)
	p := placement.LeastWaste(waste.NewTables(workload(), c))
	for name, req := range requests() {
		t.Run(name, func(t *testing.T) {
			q := placement.New(req, placement.Options{Policy: p, MilliCPU: 4000})
			got := testing.AllocsPerRun(10, func() {
				for i, n := range nodes {
					q.ScoreIn(n, placement.CPU(int64(4000*i)))
				}
			})
			if got > 0 {
				t.Errorf("%v allocations", got)
			}
		})
	}
}

// BenchmarkLeastWaste rates nodes whose 8 GPUs are all used to another part.
func BenchmarkLeastWaste(b *testing.B) {
	l := ledger.New()
	var nodes []*ledger.NodeView
	for i := range 500 {
		n := build("n", slices.Repeat([]gpu{use(a100, 0)}, 8)...).Node("n")
		inv, name := contract.Inventory{Version: 1, SharesPerGPU: 100}, fmt.Sprint(i)
		taken := map[contract.GPUUUID]units.Shares{}
		for g, v := range n.GPUs() {
			inv.GPUs = append(inv.GPUs, *v.Facts)
			taken[v.Facts.UUID] = units.Shares((i*7 + g*13) % 101)
		}
		l.SetNode(name, inv)
		l.Allocate(ledger.Claim{Pod: ledger.Pod{UID: types.UID(name)}, Node: name, Charges: taken})
		nodes = append(nodes, l.Node(name))
	}
	c := waste.ClusterOf(l.Snapshot(), func(string) int64 { return 96_000 })
	p := placement.LeastWaste(waste.NewTables(workload(), c))
	for _, name := range []string{"share", "memory", "whole", "two-GPUs"} {
		b.Run(fmt.Sprintf("Score/%s/nodes=500/gpus=8", name), func(b *testing.B) {
			q := placement.New(requests()[name], placement.Options{Policy: p, MilliCPU: 4000})
			b.ReportAllocs()
			for b.Loop() {
				for i, n := range nodes {
					q.ScoreIn(n, placement.CPU(int64(i*200)))
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(nodes)), "ns/node")
		})
	}
	b.Run("Tables", func(b *testing.B) {
		shapes := workload()
		b.ReportAllocs()
		for b.Loop() {
			waste.NewTables(shapes, c)
		}
	})
}
