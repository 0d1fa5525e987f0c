package waste

import (
	"github.com/tranche-dev/tranche/pkg/ledger"
)

// Cluster is what the tables need to know of the nodes with GPUs.
type Cluster struct {
	Kinds []Kind
	// MilliCPU is what these nodes offer in all, empty.
	MilliCPU int64
	// MaxMilliCPU and MaxGPUs are the most that any of them offers.
	MaxMilliCPU int64
	MaxGPUs     int
}

// Kind is a class of GPUs, and how many there are.
type Kind struct {
	Class *ledger.Class
	GPUs  int
}

// ClusterOf sums up the nodes of a snapshot. milliCPU returns what a node offers
// empty, 0 if that is not known.
func ClusterOf(s *ledger.Snapshot, milliCPU func(node string) int64) Cluster {
	var c Cluster
	at := map[*ledger.Class]int{}
	for n := range s.Nodes() {
		gpus := n.GPUs()
		if len(gpus) == 0 {
			continue
		}
		offers := max(milliCPU(n.Name()), 0)
		c.MilliCPU += offers
		c.MaxMilliCPU, c.MaxGPUs = max(c.MaxMilliCPU, offers), max(c.MaxGPUs, len(gpus))
		for i := range gpus {
			class := gpus[i].Class
			k, known := at[class]
			if !known {
				k = len(c.Kinds)
				at[class] = k
				c.Kinds = append(c.Kinds, Kind{Class: class})
			}
			c.Kinds[k].GPUs++
		}
	}
	return c
}

// gpus is the number of all GPUs.
func (c *Cluster) gpus() int {
	sum := 0
	for _, k := range c.Kinds {
		sum += k.GPUs
	}
	return sum
}

// gpusFor is the number of GPUs of a model that s may use.
func (c *Cluster) gpusFor(s *Shape) int {
	sum := 0
	for _, k := range c.Kinds {
		if s.allows(k.Class.Model) {
			sum += k.GPUs
		}
	}
	return sum
}

// gpusOf is the number of GPUs of the model.
func (c *Cluster) gpusOf(model string) int {
	sum := 0
	for _, k := range c.Kinds {
		if k.Class.Model == model {
			sum += k.GPUs
		}
	}
	return sum
}

// takes is how many thousandths of GPUs the shape takes, on average over the GPUs
// that it may use. 0 if it can use none.
func (c *Cluster) takes(s *Shape) float64 {
	if s.Memory <= 0 {
		return float64(s.GPUs) * float64(s.Part) * perPart
	}
	gpus, sum := 0, 0
	for _, k := range c.Kinds {
		if part := s.partOn(k.Class.MemoryMiB); part <= Grain && s.allows(k.Class.Model) {
			gpus += k.GPUs
			sum += k.GPUs * part
		}
	}
	if gpus == 0 {
		return 0
	}
	return float64(s.GPUs) * float64(sum) / float64(gpus) * perPart
}
