package simulate_test

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/tranche-dev/tranche/pkg/placement"
	"github.com/tranche-dev/tranche/pkg/placement/waste"
	"github.com/tranche-dev/tranche/pkg/simulate"
)

func openb(t *testing.T, workload string) (*simulate.Cluster, []simulate.Pod) {
	t.Helper()
	dir := os.Getenv("TRANCHE_OPENB")
	if dir == "" {
		t.Skip("no TRANCHE_OPENB")
	}
	f, err := os.Open(filepath.Join(dir, "openb_node_list_gpu_node.csv"))
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := simulate.ReadNodesCSV(f, 100)
	if err != nil {
		t.Fatal(err)
	}
	g, err := os.Open(filepath.Join(dir, "openb_pod_list_"+workload+".csv"))
	if err != nil {
		t.Fatal(err)
	}
	pods, err := simulate.ReadPodsCSV(g, 100)
	if err != nil {
		t.Fatal(err)
	}
	return &simulate.Cluster{Nodes: nodes, PerGPU: 100}, pods
}

type fgd struct{ tables *waste.Tables }

func (f fgd) delta(d float64) int64 { return int64(100 / (1 + math.Exp(-d/1000))) }

func (f fgd) Cost(c placement.Candidate) int64 {
	before := f.tables.Terms(c.Node, waste.Nothing).Fragmentation
	return -f.delta(before - f.tables.Terms(c.Node, waste.Take{GPU: c.Position, Shares: c.Need}).Fragmentation)
}

func (f fgd) Score(p placement.Placed) int64 {
	return f.delta(f.tables.Terms(p.Before, waste.Nothing).Fragmentation - f.tables.Terms(p.After, waste.Nothing).Fragmentation)
}

type bestfit struct{ c waste.Cluster }

func (b bestfit) Cost(c placement.Candidate) int64 { return int64(c.Free - c.Need) }
func (b bestfit) Score(p placement.Placed) int64 {
	gpu := 0.0
	for _, f := range p.After.Free {
		gpu += float64(f) * 10
	}
	return int64(100 * (1 - 0.5*float64(p.After.MilliCPU)/float64(b.c.MaxMilliCPU) - 0.5*gpu/8000))
}

func TestTry(t *testing.T) {
	name, policy := os.Getenv("W"), os.Getenv("P")
	c, pods := openb(t, name)
	var s100, s130 float64
	lo, n := 42, 5
	if policy == "waste" {
		lo = 47
	}
	if os.Getenv("N") != "" {
		fmt.Sscan(os.Getenv("N"), &n)
	}
	for seed := lo; seed < lo+n; seed++ {
		load := simulate.Draw(pods, c, 1.3, int64(seed))
		o := c.Ordered(load.Order)
		var ch simulate.Chooser
		switch policy {
		case "waste":
			ch = simulate.LeastWaste(o)
		case "binpack":
			ch = simulate.Always(placement.Binpack)
		case "fgd":
			l := waste.NewLearner()
			for i := range pods {
				l.Observe(waste.ShapeOf(pods[i].Request, pods[i].MilliCPU, 100))
			}
			ch = simulate.Always(fgd{l.Tables(o.Kinds())})
		case "bestfit":
			ch = simulate.Always(&bestfit{o.Kinds()})
		}
		out := simulate.Replay(o, load.Arrivals, ch)
		a, _ := out.AllocationAt(100)
		b, _ := out.AllocationAt(130)
		t.Logf("%s %s %d: %.2f %.2f", name, policy, seed, a, b)
		s100 += a / float64(n)
		s130 += b / float64(n)
	}
	fmt.Printf("%s %s mean @100 %.2f @130 %.2f\n", name, policy, s100, s130)
}
