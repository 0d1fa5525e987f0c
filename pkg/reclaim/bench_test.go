package reclaim_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/gang"
	"github.com/tranche-dev/tranche/pkg/reclaim"
	"github.com/tranche-dev/tranche/pkg/units"
)

// open rules let everything go.
type open struct{}

func (open) MayTake(*reclaim.Unit) bool { return true }
func (open) Take(*reclaim.Unit)         {}
func (open) Return(*reclaim.Unit)       {}
func (open) Final() bool                { return true }

// full is a cluster of full nodes of 8 GPUs in racks of 10, each GPU with so
// many pods; pods of `size` in a row are one unit.
func full(nodes, podsPerGPU, size int) *world {
	w := newWorld()
	w.Rules = open{}
	var places []on
	for i := range nodes {
		name := fmt.Sprintf("node-%04d", i)
		w.node(name, 8, rack, fmt.Sprintf("r%03d", i/10))
		for k := range 8 * podsPerGPU {
			places = append(places, on{name, k % 8, units.Shares(100 / podsPerGPU)})
			if len(places) == size {
				n := len(w.Units)
				u := w.unit(fmt.Sprintf("u%06d", n), places...)
				u.Started = start.Add(time.Duration(n*7919%100_003) * time.Second)
				u.Priority = int32(n % 3)
				places = nil
			}
		}
	}
	return w
}

func BenchmarkSelect(b *testing.B) {
	together := &gang.Topology{NodeLabel: rack, Required: true}
	cases := []struct {
		name                    string
		nodes, podsPerGPU, size int
		members                 int
		demand                  contract.Demand
		topology                *gang.Topology
		wantPods                int
	}{
		{"nodes=5000/units=40000/one-GPU", 5000, 1, 1, 1, whole(1), nil, 1},
		{"nodes=5000/units=40000/half-a-GPU", 5000, 1, 1, 1, part(50), nil, 1},
		{"nodes=5000/units=40000/eight-GPUs", 5000, 1, 1, 1, whole(8), nil, 8},
		{"nodes=5000/units=10000-gangs/one-GPU", 5000, 1, 4, 1, whole(1), nil, 4},
		{"nodes=5000/units=40000/nine-GPUs-of-eight", 5000, 1, 1, 1, whole(9), nil, -1},
		{"nodes=500/units=4000/gang-of-32", 500, 1, 1, 32, whole(1), nil, 32},
		{"nodes=500/units=4000/gang-of-32-in-a-rack", 500, 1, 1, 32, whole(1), together, 32},
		{"nodes=500/units=12000/gang-of-32", 500, 3, 1, 32, whole(1), nil, 96},
		{"nodes=500/units=12000/gang-of-32-of-two", 500, 3, 1, 32, whole(2), nil, 192},
		{"nodes=500/units=1000-gangs/gang-of-32", 500, 1, 4, 32, whole(1), nil, 32},
	}
	for _, c := range cases {
		b.Run(c.name, func(b *testing.B) {
			w := full(c.nodes, c.podsPerGPU, c.size)
			w.want(c.members, c.demand)
			w.Topology = c.topology
			p := w.problem()
			b.ReportAllocs()
			for b.Loop() {
				result, short := reclaim.Select(p)
				n := -1
				if result != nil {
					n = podsOf(result.Victims)
				}
				if n != c.wantPods {
					b.Fatalf("%d pods, want %d (%v)", n, c.wantPods, short)
				}
			}
		})
	}
}

// BenchmarkSelectForQuota is about room that the rules want, where no node
// lacks any.
func BenchmarkSelectForQuota(b *testing.B) {
	w := full(5000, 1, 1)
	w.node("empty", 8)
	w.want(1, whole(1))
	p := w.problem()
	r := &rules{least: 800}
	p.Rules = r
	for b.Loop() {
		r.taken = nil
		if result, short := reclaim.Select(p); result == nil || len(result.Victims) != 8 {
			b.Fatal(result, short)
		}
	}
}
