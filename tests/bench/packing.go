package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/tranche-dev/tranche/pkg/simulate"
	"github.com/tranche-dev/tranche/pkg/units"
	"github.com/tranche-dev/tranche/tests/openb"
)

// packingSeeds are the loads that packing is the mean of.
var packingSeeds = []int64{47, 48, 49, 50, 51}

// readWorkload reads the cluster and a workload of the public trace.
func readWorkload(dir, workload string) (c *simulate.Cluster, pods []simulate.Pod, err error) {
	nodes, list, err := openb.Open(dir, workload)
	if err != nil {
		return nil, nil, err
	}
	defer nodes.Close()
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
	for _, fgd := range openb.FGD {
		c, pods, err := readWorkload(dir, fgd.Workload)
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
		gain100 += (at100 - fgd.At100) / float64(len(openb.FGD))
		gain130 += (at130 - fgd.At130) / float64(len(openb.FGD))
		rows = append(rows, row{
			fmt.Sprintf("packing, workload %s: GPUs allocated when 100 %% (130 %%) are asked for", fgd.Workload),
			fmt.Sprintf("%.2f %% (%.2f %%)", at100, at130), fmt.Sprintf("%.2f %% (%.2f %%): FGD", fgd.At100, fgd.At130),
			fmt.Sprintf("%+.2f (%+.2f) points", at100-fgd.At100, at130-fgd.At130), ">= 0",
		})
	}
	return append(rows, row{"... mean of all", "", "", fmt.Sprintf("%+.2f (%+.2f) points", gain100, gain130), fmt.Sprintf(">= %v (%v)", openb.Gain100, openb.Gain130)}), nil
}
