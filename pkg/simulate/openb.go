package simulate

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

// The columns that are read of the two kinds of files, by the names that
// Alibaba's trace cluster-trace-gpu-v2023 uses. Others are ignored, and gpu_spec
// may be missing.
const (
	nodeColumns = "sn,cpu_milli,memory_mib,gpu,model"
	podColumns  = "name,cpu_milli,memory_mib,num_gpu,gpu_milli"
	modelColumn = "gpu_spec"
)

// ErrCSV is wrapped by every error of ReadNodesCSV and ReadPodsCSV.
var ErrCSV = errors.New("CSV")

// Limits of what one line may say; no machine has more, and sums stay far from
// the end of int64.
const (
	mostCSVGPUs = 64
	mostCSVCPU  = 1 << 30
	mostCSVMiB  = 1 << 40
)

// csvMemory is the size of every GPU: the trace does not tell, and no pod of it
// asks for GPU memory.
const csvMemory units.MiB = 16 << 10

// ReadNodesCSV reads a list of nodes, one per line under the header
// sn,cpu_milli,memory_mib,gpu,model: its name, processors in thousandths, MiB of
// memory, number and model of its GPUs. Nodes without GPUs are left out.
func ReadNodesCSV(r io.Reader, perGPU units.Shares) ([]Node, error) {
	t, err := readTable(r, nodeColumns)
	if err != nil {
		return nil, err
	}
	var nodes []Node
	seen := map[string]bool{}
	for t.next() {
		n := Node{Name: t.text("sn"), MilliCPU: t.number("cpu_milli", mostCSVCPU), Memory: t.number("memory_mib", mostCSVMiB) << 20}
		gpus, model := t.number("gpu", mostCSVGPUs), t.text("model")
		if n.Name == "" || seen[n.Name] {
			t.fail("sn", n.Name, "a name that no other node has")
		}
		if gpus > 0 && model == "" {
			t.fail("model", model, "the model of the GPUs, such as T4")
		}
		seen[n.Name] = true
		n.Inventory = inventory(n.Name, model, int(gpus), perGPU)
		if gpus > 0 {
			nodes = append(nodes, n)
		}
	}
	return nodes, t.err
}

func inventory(node, model string, gpus int, perGPU units.Shares) contract.Inventory {
	inv := contract.Inventory{Version: 1, SharesPerGPU: perGPU}
	for i := range gpus {
		inv.GPUs = append(inv.GPUs, contract.GPU{
			UUID: contract.GPUUUID(fmt.Sprintf("GPU-%s-%d", node, i)), Index: i, Model: model, MemoryMiB: csvMemory,
			Healthy: true, NUMA: -1, Isolation: contract.IsolationNone,
		})
	}
	return inv
}

// ReadPodsCSV reads a list of pods, one per line under the header
// name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec: its name, processors in
// thousandths, MiB of memory, number of GPUs, thousandths of each, and the models
// that will do, joined by "|" (none: any).
func ReadPodsCSV(r io.Reader, perGPU units.Shares) ([]Pod, error) {
	t, err := readTable(r, podColumns)
	if err != nil {
		return nil, err
	}
	var pods []Pod
	for t.next() {
		p := Pod{Name: t.text("name"), MilliCPU: t.number("cpu_milli", mostCSVCPU), Memory: t.number("memory_mib", mostCSVMiB) << 20}
		gpus, milli := t.number("num_gpu", mostCSVGPUs), t.number("gpu_milli", 1000)
		if p.Name == "" {
			t.fail("name", "", "the pod's name")
		}
		if gpus > 0 && milli == 0 {
			t.fail("gpu_milli", "0", "1 to 1000, since the pod asks for a GPU")
		}
		if gpus > 0 {
			p.Asked = gpus * milli
			p.Request = request(int(gpus), milli, perGPU)
			if spec := t.text(modelColumn); spec != "" {
				p.Request.Models = strings.Split(spec, "|")
				slices.Sort(p.Request.Models)
			}
		}
		pods = append(pods, p)
	}
	return pods, t.err
}

// request is for so many thousandths of each of some GPUs.
func request(gpus int, milli int64, perGPU units.Shares) contract.Request {
	d := contract.Demand{ContainerRole: contract.ContainerRole{Name: "main"}, Count: gpus, Whole: milli == 1000}
	d.Shares = (units.Shares(milli)*perGPU + 999) / 1000
	return contract.Request{Demands: []contract.Demand{d}}
}

// table is a CSV file that is read line by line.
type table struct {
	csv  *csv.Reader
	at   map[string]int
	line []string
	err  error
}

// readTable reads the header.
func readTable(r io.Reader, columns string) (*table, error) {
	t := &table{csv: csv.NewReader(r), at: map[string]int{}}
	header, err := t.csv.Read()
	if err != nil {
		return nil, fmt.Errorf("%w: no first line with the columns %s: %w", ErrCSV, columns, err)
	}
	for i, name := range header {
		t.at[strings.TrimSpace(strings.TrimPrefix(name, "\ufeff"))] = i
	}
	for name := range strings.SplitSeq(columns, ",") {
		if _, ok := t.at[name]; !ok {
			return nil, fmt.Errorf("%w: the first line has no column %s; write %s", ErrCSV, name, columns)
		}
	}
	return t, nil
}

// next reads a line. False: there is none, or something was wrong.
func (t *table) next() bool {
	if t.err != nil {
		return false
	}
	line, err := t.csv.Read()
	if errors.Is(err, io.EOF) {
		return false
	}
	if err != nil {
		t.err = fmt.Errorf("%w: %w", ErrCSV, err)
		return false
	}
	t.line = line
	return true
}

// text is a column of the line, empty if there is no such column.
func (t *table) text(column string) string {
	at, ok := t.at[column]
	if !ok {
		return ""
	}
	return strings.TrimSpace(t.line[at])
}

// number is a column as a whole number between 0 and most. Empty is 0.
func (t *table) number(column string, most int64) int64 {
	text := t.text(column)
	if text == "" {
		return 0
	}
	f, err := strconv.ParseFloat(text, 64) // some tools write 1000.0
	if err != nil || f < 0 || f > float64(most) || f != math.Trunc(f) {
		t.fail(column, text, fmt.Sprintf("a whole number from 0 to %d", most))
		return 0
	}
	return int64(f)
}

// fail keeps the first problem.
func (t *table) fail(column, text, write string) {
	if t.err == nil {
		row, _ := t.csv.FieldPos(0)
		t.err = fmt.Errorf("%w: line %d: %s is %q; write %s", ErrCSV, row, column, text, write)
	}
}
