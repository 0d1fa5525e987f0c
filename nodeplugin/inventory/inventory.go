// Package inventory says on the Node object which GPUs it has: Build makes the
// annotation, Publisher keeps it there.
package inventory

import (
	"github.com/tranche-dev/tranche/nodeplugin/health"
	"github.com/tranche-dev/tranche/nodeplugin/nvml/models"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

// Build makes the inventory of a node. Objection, if not empty, is why none of
// its GPUs may take pods although they work.
func Build(s health.State, perGPU units.Shares, isolation contract.Isolation, objection string) contract.Inventory {
	inv := contract.Inventory{SharesPerGPU: perGPU, GPUs: make([]contract.GPU, 0, len(s.GPUs))}
	for _, g := range s.GPUs {
		one := contract.GPU{
			UUID: g.UUID, Index: g.Index, Model: models.DashedName(g.Product), MemoryMiB: g.Memory, Driver: s.Driver,
			Healthy: g.Healthy, Reason: g.Reason, NUMA: g.NUMA, Links: g.Links, Isolation: isolation,
		}
		if one.Healthy && objection != "" {
			one.Healthy, one.Reason = false, objection
		}
		inv.GPUs = append(inv.GPUs, one)
	}
	return inv
}

// Unfit is the inventory that says of an earlier one that no GPU may take pods.
func Unfit(earlier contract.Inventory, reason string) contract.Inventory {
	gpus := make([]contract.GPU, len(earlier.GPUs))
	for i, g := range earlier.GPUs {
		g.Healthy, g.Reason = false, reason
		gpus[i] = g
	}
	earlier.GPUs = gpus
	return earlier
}
