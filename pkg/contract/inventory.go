package contract

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/tranche-dev/tranche/pkg/units"
)

const inventoryVersion = 1

// Inventory is what the node plugin says of a node in InventoryAnnotation.
type Inventory struct {
	Version int `json:"v"`
	// SharesPerGPU is the grain that the plugin advertises.
	SharesPerGPU units.Shares `json:"sharesPerGPU"`
	// GPUs are sorted by Index.
	GPUs []GPU `json:"gpus"`
}

// GPU describes one physical GPU.
type GPU struct {
	UUID GPUUUID `json:"uuid"`
	// Index is NVML's number of the GPU; it may change at reboot.
	Index int `json:"index"`
	// Model is NVML's product name with spaces as dashes, the same text that
	// NVIDIA's feature discovery puts in nvidia.com/gpu.product.
	Model     string    `json:"model"`
	MemoryMiB units.MiB `json:"memoryMiB"`
	Driver    string    `json:"driver"`
	// Healthy GPUs take new pods. Reason says why another does not.
	Healthy bool   `json:"healthy"`
	Reason  string `json:"reason,omitempty"`
	// NUMA is the memory node next to the GPU, -1 if unknown.
	NUMA  int    `json:"numa"`
	Links []Link `json:"links,omitempty"`
	// Isolation says how the memory limit is enforced.
	Isolation Isolation `json:"isolation"`
}

// Link is a connection between two GPUs of a node.
type Link struct {
	// To is the Index of the other GPU.
	To int `json:"to"`
	// Type is LinkNVLink, or the nearest common ancestor on PCIe.
	Type string `json:"type"`
	// Count is the number of parallel NVLinks, 0 otherwise.
	Count int `json:"count,omitempty"`
}

// LinkNVLink is the Type of links over which GPUs reach each other's memory
// without PCIe. The others are the levels of NVML's nvmlGpuTopologyLevel_t, from
// the nearest to the farthest.
const (
	LinkNVLink = "nvlink"
	LinkBoard  = "board"
	LinkSwitch = "switch"
	LinkBridge = "bridge"
	LinkHost   = "host"
	LinkNUMA   = "numa"
	LinkSystem = "system"
)

// Isolation is the mechanism that keeps a container within its GPU memory.
type Isolation string

// IsolationNone means that nothing but good will keeps a process within its
// share; IsolationCgroup that the driver refuses allocations beyond it.
const (
	IsolationNone   Isolation = "none"
	IsolationCgroup Isolation = "cgroup"
)

// Enforced says whether a memory limit holds against an unwilling process.
func (i Isolation) Enforced() bool { return i == IsolationCgroup }

// ErrInventory is wrapped by every error of ParseInventory.
var ErrInventory = errors.New("annotation " + InventoryAnnotation)

// ParseInventory reads InventoryAnnotation and checks what the ledger relies
// on: known version, a sensible grain, unique UUIDs, positive memory.
func ParseInventory(s string) (Inventory, error) {
	var inv Inventory
	if err := json.Unmarshal([]byte(s), &inv); err != nil {
		return Inventory{}, fmt.Errorf("%w: %w", ErrInventory, err)
	}
	return inv, inv.validate()
}

func (inv Inventory) validate() error {
	if inv.Version != inventoryVersion {
		return fmt.Errorf("%w: version %d is not %d: extender and node plugin are of different releases", ErrInventory, inv.Version, inventoryVersion)
	}
	if inv.SharesPerGPU < 1 || inv.SharesPerGPU > units.MaxSharesPerGPU {
		return fmt.Errorf("%w: sharesPerGPU %d is not between 1 and %d", ErrInventory, inv.SharesPerGPU, units.MaxSharesPerGPU)
	}
	seen := make(map[GPUUUID]bool, len(inv.GPUs))
	for i, g := range inv.GPUs {
		switch {
		case !g.UUID.valid():
			return fmt.Errorf("%w: gpus[%d] has uuid %q", ErrInventory, i, g.UUID)
		case seen[g.UUID]:
			return fmt.Errorf("%w: uuid %s appears twice", ErrInventory, g.UUID)
		case g.MemoryMiB <= 0 || g.MemoryMiB > units.MaxMemory:
			return fmt.Errorf("%w: GPU %s has memoryMiB %d", ErrInventory, g.UUID, g.MemoryMiB)
		}
		seen[g.UUID] = true
	}
	return nil
}

// Format returns the annotation's text. It fails where ParseInventory would.
func (inv Inventory) Format() (string, error) {
	inv.Version = inventoryVersion
	if err := inv.validate(); err != nil {
		return "", err
	}
	b, err := json.Marshal(inv)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrInventory, err)
	}
	return string(b), nil
}
