package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/tranche-dev/tranche/pkg/simulate"
	"github.com/tranche-dev/tranche/pkg/units"
)

// packingSeeds are the loads that packing is the mean of.
var packingSeeds = []int64{47, 48, 49, 50, 51}

// fgdPacking is what FGD reaches on those loads when 100 and 130 % of the GPUs are
// asked for, in percent of them, told beforehand which pods will come. Package
// simulate's tests have the policy, and compare it with its authors' figures.
var fgdPacking = []struct {
	workload     string
	at100, at130 float64
}{
	{"default", 95.17, 95.34},
	{"gpushare60", 91.21, 91.36},
	{"multigpu30", 96.36, 96.47},
	{"gpuspec20", 94.68, 94.85},
	{"cpu100", 95.16, 95.31},
}

// readWorkload reads the cluster and a workload of the public trace.
func readWorkload(dir, workload string) (c *simulate.Cluster, pods []simulate.Pod, err error) {
	nodes, err := os.Open(filepath.Join(dir, "openb_node_list_gpu_node.csv"))
	if err != nil {
		return nil, nil, err
	}
	defer nodes.Close()
	list, err := os.Open(filepath.Join(dir, "openb_pod_list_"+workload+".csv"))
	if err != nil {
		return nil, nil, err
	}
	defer list.Close()
	c = &simulate.Cluster{PerGPU: units.DefaultSharesPerGPU}
	c.Nodes, err = simulate.ReadNodesCSV(nodes, c.PerGPU)
	pods, failed := simulate.ReadPodsCSV(list, c.PerGPU)
	return c, pods, errors.Join(err, failed)
}

// packing replays the workloads of the public trace through the extender's own
// ledger and placement, in this process.
func packing(ctx context.Context, dir string) ([]row, error) {
	var rows []row
	var gain100, gain130 float64
	for _, fgd := range fgdPacking {
		c, pods, err := readWorkload(dir, fgd.workload)
		if err != nil {
			return rows, err
		}
		var at100, at130 float64
		var mu sync.Mutex
		var running sync.WaitGroup
		for _, seed := range packingSeeds {
			running.Go(func() {
				load := simulate.Draw(pods, c, 1.3, seed)
				ordered := c.Ordered(load.Order)
				out := simulate.Replay(ordered, load.Arrivals, simulate.LeastWaste(ordered))
				is100, _ := out.AllocationAt(100)
				is130, _ := out.AllocationAt(130)
				mu.Lock()
				defer mu.Unlock()
				at100 += is100 / float64(len(packingSeeds))
				at130 += is130 / float64(len(packingSeeds))
			})
		}
		running.Wait()
		if err := ctx.Err(); err != nil {
			return rows, err
		}
		gain100 += (at100 - fgd.at100) / float64(len(fgdPacking))
		gain130 += (at130 - fgd.at130) / float64(len(fgdPacking))
		rows = append(rows, row{
			fmt.Sprintf("packing, workload %s: GPUs allocated when 100 %% (130 %%) are asked for", fgd.workload),
			fmt.Sprintf("%.2f %% (%.2f %%)", at100, at130), fmt.Sprintf("%.2f %% (%.2f %%): FGD", fgd.at100, fgd.at130),
			fmt.Sprintf("%+.2f (%+.2f) points", at100-fgd.at100, at130-fgd.at130), ">= 0",
		})
	}
	return append(rows, row{"... mean of all", "", "", fmt.Sprintf("%+.2f (%+.2f) points", gain100, gain130), ">= 0.8 (0.7)"}), nil
}
