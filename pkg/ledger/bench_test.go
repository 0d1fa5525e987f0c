package ledger_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
)

// cluster has nodes of 8 GPUs, each with pods pods of 5 shares per GPU.
func cluster(nodes, pods int) *ledger.Ledger {
	l := ledger.New()
	for i := range nodes {
		name := fmt.Sprintf("node-%04d", i)
		var gpus []contract.GPUUUID
		for g := range 8 {
			gpus = append(gpus, contract.GPUUUID(fmt.Sprintf("GPU-%04d-%d", i, g)))
		}
		l.SetNode(name, inventory(gpus...))
		for p := range pods * 8 {
			l.Allocate(claim(fmt.Sprintf("%s-%d", name, p), name, charges{gpus[p%8]: 5}))
		}
	}
	return l
}

// BenchmarkHoldAndSnapshot is what the planner does per placed pod: one hold,
// one snapshot for the readers, then the release that keeps the size constant.
func BenchmarkHoldAndSnapshot(b *testing.B) {
	for _, pods := range []int{0, 4} {
		b.Run(fmt.Sprintf("nodes=5000/gpus=8/pods=%d", 5000*8*pods), func(b *testing.B) {
			l := cluster(5000, pods)
			l.Snapshot()
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				i++
				name := fmt.Sprintf("node-%04d", i%5000)
				gpu := contract.GPUUUID(fmt.Sprintf("GPU-%04d-%d", i%5000, i%8))
				if refusal := l.Hold(claim("new", name, charges{gpu: 50}), start.Add(time.Minute)); refusal != "" {
					b.Fatal(refusal)
				}
				l.Snapshot()
				l.Release("new")
			}
		})
	}
}

// BenchmarkRebuild is what a new leader does before it answers.
func BenchmarkRebuild(b *testing.B) {
	b.Run("nodes=500/gpus=8/pods=16000", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			cluster(500, 4).Snapshot()
		}
	})
}

func BenchmarkNode(b *testing.B) {
	b.Run("nodes=5000", func(b *testing.B) {
		s := cluster(5000, 0).Snapshot()
		var names []string
		for n := range s.Nodes() {
			names = append(names, n.Name())
		}
		for b.Loop() {
			for _, name := range names {
				if s.Node(name) == nil {
					b.Fatal(name)
				}
			}
		}
	})
}
