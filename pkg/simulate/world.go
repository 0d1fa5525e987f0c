package simulate

import (
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

// Node is a node with GPUs.
type Node struct {
	Name string
	// MilliCPU and Memory, in bytes, are what pods may request.
	MilliCPU, Memory int64
	Inventory        contract.Inventory
}

// Pod is a pod that is to be placed.
type Pod struct {
	Name string
	// Request is for GPUs, empty if it needs none. MilliCPU and Memory, in
	// bytes, are what it requests besides.
	Request          contract.Request
	MilliCPU, Memory int64
	// Asked is what counts as allocated if it finds room, in thousandths of a
	// GPU: what its author wrote, before it was rounded up to shares.
	Asked int64
	// Gang is empty if it is in none.
	Gang string
}

// Cluster is what pods are placed on.
type Cluster struct {
	// Nodes have names that differ and are tried in this order: equally good nodes go to the first.
	Nodes []Node
	// PerGPU is the grain of the nodes' inventories and the pods' requests.
	PerGPU units.Shares
}

// GPUs is the number of all GPUs.
func (c *Cluster) GPUs() int64 {
	sum := int64(0)
	for i := range c.Nodes {
		sum += int64(len(c.Nodes[i].Inventory.GPUs))
	}
	return sum
}
