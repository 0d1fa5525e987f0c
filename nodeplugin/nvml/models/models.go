// Package models is the one table of GPU models that Tranche can simulate: the
// node plugin's simulated NVML and the simulated nodes of the local cluster
// both take names and sizes from here. It imports neither cgo nor go-nvml, so
// that programs without a C compiler can use it.
//
// Where the facts come from: Product is the name that NVML reports and Memory
// its total, as printed by `nvidia-smi --query-gpu=name,memory.total` in public
// listings of real machines (A100, H100, L40S and T4: modal-labs/modal-client
// pull request 2797; L40S also akash-network/provider-configs pull request 99;
// A30: NVIDIA/TensorRT-LLM issue 2398; H200 and B200: several public run logs).
// The totals are what is left after error correction and firmware, so an H100
// has 81559 MiB and not 81920. go-nvml's own mocks round some of them (H100
// 81920, H200 144384, B200 184320) and name a few otherwise; ours are used
// instead. Nothing here was read from a GPU by us.
package models

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

// A Model is a kind of GPU.
type Model struct {
	// Short is what people write, such as "A100-80GB".
	Short string
	// Product is NVML's product name, such as "NVIDIA A100-SXM4-80GB".
	Product string
	// Memory is NVML's total.
	Memory units.MiB
}

// Name is the model as Tranche's inventory and NVIDIA's feature discovery
// write it: the product name with dashes for spaces.
func (m Model) Name() string { return DashedName(m.Product) }

// DashedName turns NVML's product name into the form that labels and
// inventories use.
func DashedName(product string) string {
	return strings.Join(strings.Fields(product), "-")
}

var table = []Model{
	{"A100-40GB", "NVIDIA A100-SXM4-40GB", 40960},
	{"A100-80GB", "NVIDIA A100-SXM4-80GB", 81920},
	{"A30-24GB", "NVIDIA A30", 24576},
	{"B200-180GB", "NVIDIA B200", 183359},
	{"H100-80GB", "NVIDIA H100 80GB HBM3", 81559},
	{"H200-141GB", "NVIDIA H200", 143771},
	{"L40S-48GB", "NVIDIA L40S", 46068},
	{"T4-16GB", "Tesla T4", 15360},
}

// All returns the known models, sorted by Short. The slice is the caller's.
func All() []Model { return slices.Clone(table) }

// Lookup finds a model by its short name, by its short name without the size
// where that is unambiguous ("B200"), or by the name that inventories use. The
// error lists what there is.
func Lookup(name string) (Model, error) {
	var family []Model
	short := make([]string, 0, len(table))
	for _, m := range table {
		if strings.EqualFold(name, m.Short) || name == m.Name() || name == m.Product {
			return m, nil
		}
		if f, _, _ := strings.Cut(m.Short, "-"); strings.EqualFold(name, f) {
			family = append(family, m)
		}
		short = append(short, m.Short)
	}
	if len(family) == 1 {
		return family[0], nil
	}
	return Model{}, fmt.Errorf("GPU model %q is not known; write one of %s", name, strings.Join(short, ", "))
}

// UUID returns the UUID of a simulated GPU: always the same for the same node
// and position, so that restarts find the GPUs they left.
func UUID(node string, position int) contract.GPUUUID {
	h := sha256.Sum256([]byte("tranche simulated GPU\x00" + node + "\x00" + strconv.Itoa(position)))
	return contract.GPUUUID(fmt.Sprintf("GPU-%x-%x-%x-%x-%x", h[0:4], h[4:6], h[6:8], h[8:10], h[10:16]))
}
