package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/tranche-dev/tranche/extender/internal/fixture"
	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/contract"
)

// BenchmarkFilter is a call as kube-scheduler makes it, with HTTPS and JSON,
// about nodes × 8 GPUs with ten running pods each.
func BenchmarkFilter(b *testing.B) {
	for _, nodes := range []int{500, 2000, 5000} {
		k := newKit(b, nil)
		res := contract.DefaultResources()
		names := make([]string, nodes)
		for i := range names {
			names[i] = fmt.Sprintf("node-%05d.cluster.example", i)
			k.planner.ObserveNode(b.Context(), view.NodeOf(fixture.Node(b, names[i], fixture.Inventory(names[i], 8)), res))
			for j := range 10 {
				pod := fixture.Pod(fmt.Sprintf("pod-%d-%d", i, j), "50")
				bound := fixture.Bound(b, pod, names[i], map[string]contract.Grant{"c0": {GPU: fixture.GPU(names[i], j%6), Shares: 50}})
				k.planner.Observe(b.Context(), view.PodOf(bound, res))
			}
		}
		k.settled()
		for name, pod := range map[string]*corev1.Pod{"passes": fixture.Pod("p", "25"), "refused": fixture.Pod("q", "3 GPU")} {
			request, err := json.Marshal(args(pod, names...))
			if err != nil {
				b.Fatal(err)
			}
			b.Run(fmt.Sprintf("nodes=%d/pod=%s", nodes, name), func(b *testing.B) {
				for b.Loop() {
					r, err := k.do(k.client, http.MethodPost, k.url+"/v1/filter", request)
					if err != nil || r.StatusCode != http.StatusOK {
						b.Fatalf("%v, %v", r.Response, err)
					}
				}
			})
		}
	}
}
