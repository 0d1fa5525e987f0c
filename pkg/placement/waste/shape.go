package waste

import (
	"cmp"
	"slices"
	"strings"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

// Grain is the number of parts that a GPU is counted in here, whatever the
// cluster's own number of shares: finer ones would win nothing.
const Grain = 100

// Shape is what is counted of a pod: which GPUs it needs and how many
// processors beside them.
type Shape struct {
	MilliCPU int64
	// GPUs is the number of different GPUs, 0 for a pod that uses none.
	GPUs int
	// Part is what it takes of each, 1 to Grain, rounded up; 0 if it asks for
	// Memory instead.
	Part   int
	Memory units.MiB
	// Models are the allowed ones, sorted and joined by commas; empty: any.
	Models string
}

// ShapeOf returns the shape of a pod that requests req and milliCPU; perGPU is
// the grain of req.
//
// Pods with several GPU containers are few, and a shape has one demand, so they
// count as the nearest that has: parts of GPUs are added up, and what is more
// than one GPU in all counts as whole ones. Where only some containers ask for
// memory, that is left out.
func ShapeOf(req contract.Request, milliCPU int64, perGPU units.Shares) Shape {
	s := Shape{MilliCPU: max(milliCPU, 0), Models: strings.Join(req.Models, ",")}
	if len(req.Demands) == 1 {
		d := &req.Demands[0]
		s.GPUs = d.Count
		if s.Memory = d.Memory; d.Whole || d.Memory == 0 {
			s.Part, s.Memory = partOf(d, perGPU), 0
		}
		return s
	}
	var parts, peak int
	var memory units.MiB
	for i := range req.Demands {
		d := &req.Demands[i]
		switch {
		case d.Memory > 0 && !d.Whole:
			memory += d.Memory * units.MiB(d.Count)
		case d.Role == contract.RoleInit:
			peak = max(peak, d.Count*partOf(d, perGPU)) // the others get its GPUs
		default:
			parts += d.Count * partOf(d, perGPU)
		}
	}
	switch parts = max(parts, peak); {
	case parts > Grain:
		s.GPUs, s.Part = (parts+Grain-1)/Grain, Grain
	case parts > 0:
		s.GPUs, s.Part = 1, parts
	case memory > 0:
		s.GPUs, s.Memory = 1, memory
	}
	return s
}

// partOf is what d takes of each of its GPUs.
func partOf(d *contract.Demand, perGPU units.Shares) int {
	if d.Whole || perGPU <= 0 {
		return Grain
	}
	return min(max(int((d.Shares*Grain+perGPU-1)/perGPU), 1), Grain)
}

// allows says whether the shape may use GPUs of the model.
func (s *Shape) allows(model string) bool {
	if s.Models == "" {
		return true
	}
	for m := range strings.SplitSeq(s.Models, ",") {
		if m == model {
			return true
		}
	}
	return false
}

// partOn is what the shape takes of a GPU of that size; more than Grain if it
// does not fit there. The shape uses GPUs.
func (s *Shape) partOn(gpu units.MiB) int {
	switch {
	case s.Memory <= 0:
		return s.Part
	case gpu <= 0 || s.Memory > gpu:
		return Grain + 1
	default:
		return int(units.SharesForMemory(s.Memory, gpu, Grain))
	}
}

// compare orders shapes in some fixed way.
func (s *Shape) compare(o *Shape) int {
	return cmp.Or(
		cmp.Compare(s.MilliCPU, o.MilliCPU), cmp.Compare(s.GPUs, o.GPUs), cmp.Compare(s.Part, o.Part),
		cmp.Compare(s.Memory, o.Memory), cmp.Compare(s.Models, o.Models),
	)
}

// Counted is a shape and how many pods of it have come.
type Counted struct {
	Shape Shape
	Count int
}

// byFrequency sorts shapes, the most frequent first, equally frequent ones in a
// fixed order.
func byFrequency(shapes []Counted) {
	slices.SortFunc(shapes, func(a, b Counted) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), a.Shape.compare(&b.Shape))
	})
}
