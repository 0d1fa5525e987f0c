// Package openb is where tests and measurements find the public trace that packing
// is compared on, and what others reach on it. The trace is not part of this
// repository.
package openb

import (
	"errors"
	"io"
	"os"
	"path/filepath"
)

// Variable is the variable that names the folder with the trace's CSV files.
const Variable = "TRANCHE_OPENB"

// ErrNoFolder says that Variable is not set, and what to set it to.
var ErrNoFolder = errors.New("set " + Variable + " to the folder with the CSV files of Alibaba's cluster-trace-gpu-v2023 (docs/how-to/simulate.md says where they are)")

// FGD is what Fragmentation Gradient Descent reaches on each workload when pods have
// asked for 100 and 130 % of the GPUs: percent of them that are allocated, mean of
// the seeds 47 to 51, told beforehand which pods will come. Package simulate's tests
// have the policy, and compare it with its authors' figures.
var FGD = []struct {
	Workload     string
	At100, At130 float64
}{
	{"default", 95.17, 95.34},
	{"gpushare60", 91.21, 91.36},
	{"multigpu30", 96.36, 96.47},
	{"gpuspec20", 94.68, 94.85},
	{"cpu100", 95.16, 95.31},
}

// The least mean gain over FGD on all workloads, in percentage points.
const Gain100, Gain130 = 0.8, 0.7

// Open opens the lists of nodes and of a workload's pods in a folder. The caller
// closes both. The error is ErrNoFolder if the folder is empty.
func Open(folder, workload string) (nodes, pods io.ReadCloser, err error) {
	if folder == "" {
		return nil, nil, ErrNoFolder
	}
	nodes, err = os.Open(filepath.Join(folder, "openb_node_list_gpu_node.csv"))
	if err != nil {
		return nil, nil, err
	}
	pods, err = os.Open(filepath.Join(folder, "openb_pod_list_"+workload+".csv"))
	if err != nil {
		return nil, nil, errors.Join(err, nodes.Close())
	}
	return nodes, pods, nil
}
