package simulate

import (
	"errors"
	"math"
	"os"
	"sync"
	"testing"

	"github.com/tranche-dev/tranche/pkg/placement"
	"github.com/tranche-dev/tranche/pkg/placement/waste"
	trace "github.com/tranche-dev/tranche/tests/openb"
)

// perGPU is the grain that Tranche ships with.
const perGPU = 100

// openb reads the cluster and a workload of the public trace, which is not part of
// this repository: TRANCHE_OPENB names the folder with its CSV files.
func openb(t *testing.T, workload string) (*Cluster, []Pod) {
	t.Helper()
	nodes, pods, err := trace.Open(os.Getenv(trace.Variable), workload)
	if errors.Is(err, trace.ErrNoFolder) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer nodes.Close()
	defer pods.Close()
	c := &Cluster{PerGPU: perGPU}
	if c.Nodes, err = ReadNodesCSV(nodes, perGPU); err != nil {
		t.Fatal(err)
	}
	list, err := ReadPodsCSV(pods, perGPU)
	if err != nil {
		t.Fatal(err)
	}
	return c, list
}

// mean replays the workload with some seeds, first and those after it, and returns
// what is allocated at 100 and 130 %.
func mean(t *testing.T, workload string, first int64, chooser func(*Cluster, []Pod) Chooser) (at100, at130 float64) {
	t.Helper()
	c, pods := openb(t, workload)
	results := make([][2]float64, seeds)
	var wait sync.WaitGroup
	for i := range results {
		wait.Go(func() {
			load := Draw(pods, c, 1.3, first+int64(i))
			ordered := c.Ordered(load.Order)
			out := Replay(ordered, load.Arrivals, chooser(ordered, pods))
			results[i][0], _ = out.AllocationAt(100)
			results[i][1], _ = out.AllocationAt(130)
		})
	}
	wait.Wait()
	for _, r := range results {
		at100 += r[0] / seeds
		at130 += r[1] / seeds
	}
	return at100, at130
}

// fgd is Fragmentation Gradient Descent as published: the node and the GPU where
// fragmentation grows least. It knows the shapes of all pods beforehand.
type fgd struct{ tables *waste.Tables }

func knowing(c *Cluster, pods []Pod) Chooser {
	l := waste.NewLearner()
	for i := range pods {
		l.Observe(waste.ShapeOf(pods[i].Request, pods[i].MilliCPU, perGPU))
	}
	return Always(fgd{l.Tables(c.Kinds())})
}

func (f fgd) score(before, after waste.Terms) int64 {
	return int64(100 / (1 + math.Exp((after.Fragmentation-before.Fragmentation)/1000)))
}

func (f fgd) Cost(c placement.Candidate) int64 {
	take := waste.Take{GPU: c.Position, Shares: c.Need}
	return -f.score(f.tables.Terms(c.Node, waste.Nothing), f.tables.Terms(c.Node, take))
}

func (f fgd) Score(p placement.Placed) int64 {
	return f.score(f.tables.Terms(p.Before, waste.Nothing), f.tables.Terms(p.After, waste.Nothing))
}

// bestFit takes the node with the least left of processors and GPUs, and the
// fullest GPU on it.
type bestFit struct{ maxCPU, maxGPU float64 }

func fitting(c *Cluster, _ []Pod) Chooser {
	k := c.Kinds()
	return Always(bestFit{float64(k.MaxMilliCPU), float64(k.MaxGPUs * perGPU)})
}

func (bestFit) Cost(c placement.Candidate) int64 { return int64(c.Free - c.Need) }

func (b bestFit) Score(p placement.Placed) int64 {
	left := 0.5 * float64(p.After.MilliCPU) / b.maxCPU
	for _, f := range p.After.Free {
		left += 0.5 * float64(f) / b.maxGPU
	}
	return int64(100 * (1 - left))
}

func leastWaste(c *Cluster, _ []Pod) Chooser { return LeastWaste(c) }

// The replay is right if the policies of others reach what their authors'
// simulator says: the means of the seeds 42 to 46 at 130 %.
func TestReplayAgreesWithTheAuthorsFigures(t *testing.T) {
	cases := []struct {
		workload, policy string
		chooser          func(*Cluster, []Pod) Chooser
		want             float64
	}{
		{"default", "FGD", knowing, 95.40},
		{"gpushare60", "FGD", knowing, 91.46},
		{"multigpu30", "FGD", knowing, 96.50},
		{"gpuspec20", "FGD", knowing, 94.85},
		{"default", "BestFit", fitting, 93.16},
	}
	for _, tc := range cases {
		t.Run(tc.workload+"/"+tc.policy, func(t *testing.T) {
			_, got := mean(t, tc.workload, 42, tc.chooser)
			t.Logf("%.2f, the authors have %.2f", got, tc.want)
			if math.Abs(got-tc.want) > 0.3 {
				t.Errorf("allocated %.2f %%, want %.2f ± 0.3", got, tc.want)
			}
		})
	}
}

// FGD's figures are its means of the same seeds, with the shapes known to it
// beforehand; least-waste has to learn them.
func TestLeastWasteFillsMoreThanFGD(t *testing.T) {
	var gain100, gain130 float64
	replayed := 0
	for _, fgd := range trace.FGD {
		t.Run(fgd.Workload, func(t *testing.T) {
			at100, at130 := mean(t, fgd.Workload, 47, leastWaste)
			t.Logf("%.2f at 100 %%, %.2f at 130 %%", at100, at130)
			if at100 < fgd.At100 || at130 < fgd.At130 {
				t.Errorf("allocated %.2f %% at 100 and %.2f %% at 130, less than FGD's %.2f and %.2f", at100, at130, fgd.At100, fgd.At130)
			}
			if fgd.Workload == "default" && at130 < 95.8 {
				t.Errorf("allocated %.2f %% at 130, want 95.8", at130)
			}
			gain100 += (at100 - fgd.At100) / float64(len(trace.FGD))
			gain130 += (at130 - fgd.At130) / float64(len(trace.FGD))
			replayed++
		})
	}
	if replayed < len(trace.FGD) {
		return // the parts have said why
	}
	t.Logf("gain %.2f at 100 %%, %.2f at 130 %%", gain100, gain130)
	if gain100 < trace.Gain100 || gain130 < trace.Gain130 {
		t.Errorf("mean gain over FGD %.2f at 100 %% and %.2f at 130 %%, want %v and %v", gain100, gain130, trace.Gain100, trace.Gain130)
	}
}
