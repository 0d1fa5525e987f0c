package gang_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/gang"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/units"
)

// cluster has nodes of 8 GPUs, each GPU with used shares, in one class, with
// the taint and labels that such nodes have.
func cluster(nodes int, used units.Shares) *world {
	w := newWorld()
	l := ledger.New()
	for i := range nodes {
		name := fmt.Sprintf("node-%04d", i)
		l.SetNode(name, inventory(name, h200, 8))
		for g := range 8 {
			for k := range 3 * min(used, 1) { // three pods to a GPU
				l.Allocate(ledger.Claim{
					Pod: ledger.Pod{UID: types.UID(fmt.Sprintf("%s-%d-%d", name, g, k))}, Node: name,
					Charges: map[contract.GPUUUID]units.Shares{uuid(name, g): used / 3},
				})
			}
		}
		w.nodes = append(w.nodes, &gang.Node{
			Name: name, Free: eight(), Allocatable: eight(),
			Labels: map[string]string{zone: fmt.Sprintf("z%d", i%10), "kubernetes.io/hostname": name, "nvidia.com/gpu.product": h200},
			Taints: []corev1.Taint{{Key: "nvidia.com/gpu", Effect: corev1.TaintEffectNoSchedule}},
		})
	}
	s := l.Snapshot()
	for _, n := range w.nodes {
		n.GPUs = s.Node(n.Name)
	}
	return w
}

// eight is what a node of 8 GPUs offers.
func eight() gang.Resources {
	return gang.Resources{MilliCPU: 192_000, Memory: 2 << 40, Ephemeral: 1 << 40, Pods: 110, Scalars: []gang.Scalar{{"nvidia.com/gpu", 8}, {"nvidia.com/gpu-share", 800}}}
}

// equals adds members that select and tolerate GPU nodes.
func (w *world) equals(n int, req contract.Request) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		NodeSelector: map[string]string{"nvidia.com/gpu.product": h200},
		Tolerations:  []corev1.Toleration{{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists}},
	}}
	c := gang.ConstraintsOf(pod)
	needs := gang.Resources{MilliCPU: 4000, Memory: 16 << 30, Pods: 1, Scalars: []gang.Scalar{{"nvidia.com/gpu-share", 50}}}
	for i := range w.want(n, req, needs) {
		m := &w.members[len(w.members)-n+i]
		m.Constraints, m.Shape = c, gang.ShapeOf(req, needs, c, m.Policy)
	}
}

func BenchmarkPlan(b *testing.B) {
	cases := []struct {
		name           string
		nodes, members int
		used           units.Shares
		req            []contract.Request
		topology       *gang.Topology
		wantPlaces     bool
	}{
		{"nodes=500/members=512/fits", 500, 512, 0, []contract.Request{ask(part(50))}, nil, true},
		{"nodes=500/members=512/fits-used", 500, 512, 45, []contract.Request{ask(part(50))}, nil, true},
		{"nodes=500/members=512/zone", 500, 512, 45, []contract.Request{ask(part(50))}, &gang.Topology{NodeLabel: zone, Required: true}, false},
		{"nodes=500/members=512/two-shapes", 500, 512, 0, []contract.Request{ask(part(50)), ask(whole(1))}, nil, true},
		{"nodes=5000/members=8/fits", 5000, 8, 45, []contract.Request{ask(part(50))}, nil, true},
		{"nodes=5000/members=512/cannot", 5000, 512, 60, []contract.Request{ask(part(50))}, nil, false},
		{"nodes=5000/members=512/cannot-two-containers", 5000, 512, 60, []contract.Request{ask(part(50), part(10))}, nil, false},
		{"nodes=5000/members=512/cannot-two-shapes", 5000, 512, 60, []contract.Request{ask(part(50)), ask(part(10))}, nil, false},
		{"nodes=5000/members=8/cannot", 5000, 8, 60, []contract.Request{ask(part(50))}, nil, false},
		{"nodes=5000/members=8/host-domains", 5000, 8, 60, []contract.Request{ask(part(40)), ask(part(20))}, &gang.Topology{NodeLabel: "kubernetes.io/hostname", Required: true}, true},
		{"nodes=5000/members=64/64-shapes", 5000, 64, 45, distinct(64), nil, true},
		{"nodes=5000/members=512/512-shapes", 5000, 512, 45, distinct(512), nil, true},
		{"nodes=5000/members=512/512-shapes-cannot", 5000, 512, 45, append(distinct(511), ask(part(99))), nil, false},
	}
	for _, c := range cases {
		b.Run(c.name, func(b *testing.B) {
			w := cluster(c.nodes, c.used)
			w.topology = c.topology
			for _, req := range c.req {
				w.equals(c.members/len(c.req), req)
			}
			b.ReportAllocs()
			for b.Loop() {
				if places, _ := w.plan(); (places != nil) != c.wantPlaces {
					b.Fatalf("places: %t, want %t", places != nil, c.wantPlaces)
				}
			}
		})
	}
}

// distinct makes requests that all differ.
func distinct(n int) []contract.Request {
	reqs := make([]contract.Request, 0, n)
	for i := range n {
		reqs = append(reqs, ask(contract.Demand{Memory: units.MiB(1000 + i)}))
	}
	return reqs
}
