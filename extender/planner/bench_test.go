package planner

import (
	"fmt"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/tranche-dev/tranche/extender/internal/fixture"
	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/contract"
)

// busy is a planner with nodes × 8 GPUs and ten pods on each node.
func busy(b *testing.B, nodes int) (*Planner, []string) {
	b.Helper()
	p, _ := newPlanner(b, &effects{})
	ctx := b.Context()
	var owner sync.WaitGroup
	owner.Go(func() { p.Run(ctx) })
	b.Cleanup(owner.Wait)
	names := make([]string, nodes)
	for i := range names {
		names[i] = fmt.Sprintf("node-%05d", i)
		p.ObserveNode(ctx, view.NodeOf(fixture.Node(b, names[i], fixture.Inventory(names[i], 8)), p.opts.Resources))
		for j := range 10 {
			pod := fixture.Pod(fmt.Sprintf("pod-%d-%d", i, j), "50")
			p.Observe(ctx, view.PodOf(fixture.Bound(b, pod, names[i], one(fixture.GPU(names[i], j%6), 50)), p.opts.Resources))
		}
	}
	if err := p.Ping(ctx); err != nil {
		b.Fatal(err)
	}
	return p, names
}

func BenchmarkFilter(b *testing.B) {
	memory := func() *corev1.Pod {
		pod := fixture.Pod("memory", "25")
		pod.Annotations[contract.MemoryAnnotation] = "20Gi"
		return pod
	}
	for _, nodes := range []int{500, 2000, 5000} {
		p, names := busy(b, nodes)
		for shape, pod := range map[string]*corev1.Pod{"share": fixture.Pod("share", "25"), "memory": memory(), "whole": fixture.Pod("whole", "2 GPU"), "refused": fixture.Pod("refused", "3 GPU")} {
			b.Run(fmt.Sprintf("nodes=%d/pod=%s", nodes, shape), func(b *testing.B) {
				for b.Loop() {
					if _, err := p.Filter(b.Context(), pod, names); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func BenchmarkPrioritize(b *testing.B) {
	for _, nodes := range []int{500, 5000} {
		p, names := busy(b, nodes)
		pod := fixture.Pod("share", "25")
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			for b.Loop() {
				if _, err := p.Prioritize(b.Context(), pod, names); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
