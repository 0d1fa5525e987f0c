package ledger

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

// Dump is a snapshot as GET /v1/state shows it.
type Dump struct {
	Version uint64 `json:"version"`
	// Nodes are sorted by name.
	Nodes []NodeDump `json:"nodes"`
}

// NodeDump is one node.
type NodeDump struct {
	Name    string `json:"name"`
	Version uint64 `json:"version"`
	// Inventory is false while the node plugin's annotation is missing.
	Inventory    bool         `json:"inventory"`
	SharesPerGPU units.Shares `json:"sharesPerGPU"`
	// GPUs are in the order of their index; then, by UUID, those which are
	// charged though the inventory does not list them.
	GPUs []GPUDump `json:"gpus"`
}

// GPUDump is one GPU.
type GPUDump struct {
	UUID contract.GPUUUID `json:"uuid"`
	// Index is -1 if the inventory does not list the GPU.
	Index     int        `json:"index"`
	Model     string     `json:"model"`
	MemoryMiB units.MiB  `json:"memoryMiB"`
	Shares    SharesDump `json:"shares"`
	Healthy   bool       `json:"healthy"`
	Reason    string     `json:"reason,omitempty"`
	// Pods are those charged for the GPU, by namespace, name and UID.
	Pods []PodDump `json:"pods"`
}

// SharesDump is where a GPU's shares are: Total = Allocated + Held + Free. Of a
// GPU that the inventory does not list only Allocated and Held are known: Total
// and Free are 0, for nothing can be had of it.
type SharesDump struct {
	Total     units.Shares `json:"total"`
	Allocated units.Shares `json:"allocated"`
	Held      units.Shares `json:"held"`
	Free      units.Shares `json:"free"`
}

// PodDump is one pod's part of a GPU.
type PodDump struct {
	Namespace string       `json:"namespace"`
	Name      string       `json:"name"`
	UID       types.UID    `json:"uid"`
	Shares    units.Shares `json:"shares"`
	// State is "held" or "allocated".
	State string `json:"state"`
}

// reasonUnlisted is the Reason of a charged GPU without an inventory entry.
const reasonUnlisted = "not in the node's inventory"

// Dump returns s in plain structs that the caller owns.
func (s *Snapshot) Dump() Dump {
	d := Dump{Version: s.version, Nodes: make([]NodeDump, 0, s.Len())}
	for n := range s.Nodes() {
		d.Nodes = append(d.Nodes, n.Dump())
	}
	return d
}

// Dump returns n in plain structs that the caller owns.
func (n *NodeView) Dump() NodeDump {
	if n == nil {
		return NodeDump{GPUs: []GPUDump{}}
	}
	d := NodeDump{Name: n.name, Version: n.version, Inventory: n.known, SharesPerGPU: n.perGPU}
	d.GPUs = make([]GPUDump, 0, len(n.gpus))
	position := make(map[contract.GPUUUID]int, len(n.gpus))
	for i := range n.gpus {
		g := &n.gpus[i]
		position[g.Facts.UUID] = i
		d.GPUs = append(d.GPUs, GPUDump{
			UUID: g.Facts.UUID, Index: g.Facts.Index, Model: g.Facts.Model, MemoryMiB: g.Facts.MemoryMiB,
			Shares:  SharesDump{Total: n.perGPU, Allocated: g.Allocated, Held: g.Held, Free: g.Free},
			Healthy: g.Facts.Healthy, Reason: g.Facts.Reason, Pods: []PodDump{},
		})
	}
	for _, r := range n.records {
		for _, c := range r.Charges {
			i, ok := position[c.GPU]
			if !ok {
				i = len(d.GPUs)
				position[c.GPU] = i
				d.GPUs = append(d.GPUs, GPUDump{UUID: c.GPU, Index: -1, Reason: reasonUnlisted, Pods: []PodDump{}})
			}
			g := &d.GPUs[i]
			g.Pods = append(g.Pods, PodDump{r.Pod.Namespace, r.Pod.Name, r.Pod.UID, c.Shares, r.State.String()})
			if i < len(n.gpus) {
				continue // the view has counted it
			}
			if r.State == Held {
				g.Shares.Held += c.Shares
			} else {
				g.Shares.Allocated += c.Shares
			}
		}
	}
	d.sort(len(n.gpus))
	return d
}

// sort orders the GPUs behind the first listed ones, and all pods.
func (d *NodeDump) sort(listed int) {
	slices.SortFunc(d.GPUs[listed:], func(a, b GPUDump) int { return cmp.Compare(a.UUID, b.UUID) })
	for i := range d.GPUs {
		slices.SortFunc(d.GPUs[i].Pods, PodDump.compare)
	}
}

func (p PodDump) compare(o PodDump) int {
	return cmp.Or(cmp.Compare(p.Namespace, o.Namespace), cmp.Compare(p.Name, o.Name), cmp.Compare(p.UID, o.UID))
}
