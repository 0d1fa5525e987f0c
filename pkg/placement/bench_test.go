package placement_test

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/placement"
	"github.com/tranche-dev/tranche/pkg/units"
)

// cluster has nodes of 8 linked GPUs of two models; used(i) of each GPU of node
// i is taken.
func cluster(nodes int, used func(i int) units.Shares) *ledger.Snapshot {
	l := ledger.New()
	for i := range nodes {
		name := fmt.Sprintf("node-%04d", i)
		inv := contract.Inventory{Version: 1, SharesPerGPU: 100}
		taken := map[contract.GPUUUID]units.Shares{}
		for g := range 8 {
			facts := contract.GPU{
				UUID: contract.GPUUUID(fmt.Sprintf("GPU-%04d-%d", i, g)), Index: g, Model: a100, MemoryMiB: memoryOf[a100],
				Healthy: true, Isolation: contract.IsolationNone,
			}
			if i%2 == 1 {
				facts.Model, facts.MemoryMiB = a30, memoryOf[a30]
				facts.Links = []contract.Link{{To: g ^ 1, Type: contract.LinkNVLink, Count: 4}}
			}
			inv.GPUs = append(inv.GPUs, facts)
			taken[facts.UUID] = used(i)
		}
		l.SetNode(name, inv)
		l.Allocate(ledger.Claim{Pod: ledger.Pod{UID: types.UID(name)}, Node: name, Charges: taken})
	}
	return l.Snapshot()
}

// requests are what benchmarks and allocation tests ask for.
func requests() map[string]contract.Request {
	models := ask(demand{Shares: 25})
	models.Models = []string{"NVIDIA-H100-80GB-HBM3", a30}
	return map[string]contract.Request{
		"share":          ask(demand{Shares: 25}),
		"memory":         ask(demand{Memory: 10 * 1024}),
		"whole":          ask(demand{Whole: true}),
		"models":         models,
		"two-GPUs":       ask(demand{Whole: true, Count: 2}),
		"two-containers": ask(demand{Shares: 25}, demand{Memory: 10 * 1024}),
	}
}

// BenchmarkFit asks all nodes: Check is what Filter needs, Score Prioritize.
// "full" nodes refuse, which includes finding the reason.
func BenchmarkFit(b *testing.B) {
	states := map[string]func(int) units.Shares{
		"empty": func(int) units.Shares { return 0 },
		"full":  func(int) units.Shares { return 90 },
		"mixed": func(i int) units.Shares { return units.Shares(i * 37 % 101) },
	}
	for _, state := range []string{"empty", "mixed", "full"} {
		s := cluster(5000, states[state])
		var nodes []*ledger.NodeView
		for n := range s.Nodes() {
			nodes = append(nodes, n)
		}
		for _, name := range []string{"share", "memory", "whole", "models", "two-GPUs", "two-containers"} {
			b.Run(fmt.Sprintf("Check/%s/%s/nodes=5000/gpus=8", state, name), func(b *testing.B) {
				q := placement.New(requests()[name], placement.Options{Without: "self"})
				b.ReportAllocs()
				for b.Loop() {
					for _, n := range nodes {
						q.Check(n)
					}
				}
			})
			b.Run(fmt.Sprintf("Score/%s/%s/nodes=5000/gpus=8", state, name), func(b *testing.B) {
				q := placement.New(requests()[name], placement.Options{Without: "self"})
				b.ReportAllocs()
				for b.Loop() {
					for _, n := range nodes {
						q.Score(n)
					}
				}
			})
		}
	}
}

func BenchmarkPriorities(b *testing.B) {
	b.Run("nodes=5000", func(b *testing.B) {
		var names []string
		var scores []int64
		for i := range 5000 {
			names = append(names, fmt.Sprintf("node-%04d", i))
			scores = append(scores, int64(i*37%101))
		}
		for b.Loop() {
			placement.Priorities(names, scores)
		}
	})
}

func TestCheckAndScoreAllocateNothing(t *testing.T) {
	s := cluster(20, func(i int) units.Shares { return units.Shares(i * 37 % 101) })
	for name, req := range requests() {
		t.Run(name, func(t *testing.T) {
			q := placement.New(req, placement.Options{Without: "self"})
			got := testing.AllocsPerRun(10, func() {
				for n := range s.Nodes() {
					q.Check(n)
					q.Score(n)
				}
			})
			if got > 0 {
				t.Errorf("%v allocations", got)
			}
		})
	}
}
