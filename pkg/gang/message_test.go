package gang_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/gang"
	"github.com/tranche-dev/tranche/pkg/units"
)

func TestMessageSaysWhatIsMissing(t *testing.T) {
	models := func(req contract.Request, m ...string) contract.Request {
		req.Models = m
		return req
	}
	inZone := func(n *gang.Node, z string) { n.Labels[zone] = z }
	cases := map[string]struct {
		world      func(w *world)
		wantReason gang.Reason
		want       string
	}{
		"too few pieces": {
			world: func(w *world) {
				w.free("n1", h200, 50, 100)
				w.free("n7", h200, 40, 10)
				w.want(4, models(ask(part(50)), h200), gang.Resources{})
			},
			wantReason: gang.NoPlace,
			want:       "needs 4 × 50 shares on NVIDIA-H200; 3 places are free on 1 of 2 nodes; the largest other free piece is 40 shares on node n7; 1 more place is needed; 2 nodes: no single GPU has enough free shares",
		},
		"no piece is big enough": {
			world: func(w *world) {
				w.free("n1", h200, 30, 10)
				w.want(2, ask(gigabytes(60)), gang.Resources{})
			},
			wantReason: gang.NoPlace,
			want:       "needs 2 × 60 GiB of a GPU; no place is free on 1 node; the largest free piece is 42 GiB on node n1; 2 more places are needed; 1 node: no single GPU has enough free shares",
		},
		"no node has that many GPUs": {
			world: func(w *world) {
				w.free("n1", h200, 100, 100)
				w.free("n2", h200, 100, 100)
				w.want(2, ask(whole(4)), gang.Resources{})
			},
			wantReason: gang.NoPlace,
			want:       "needs 2 × 4 whole GPUs; no place is free on 2 nodes; 2 more places are needed; 2 nodes: asks for more GPUs than this node has of the asked kind; even an empty cluster has no place for it: change what the pods ask for or add nodes",
		},
		"cpu lacks": {
			world: func(w *world) {
				w.free("n1", h200, 100, 100).Free = gang.Resources{MilliCPU: 9000, Memory: 1 << 40, Pods: 3}
				w.want(3, ask(several(2, 30)), gang.Resources{MilliCPU: 4500})
			},
			wantReason: gang.NoPlace,
			want:       "needs 3 × 30 shares of each of 2 GPUs; 2 places are free on 1 of 1 node; 1 more place is needed; 1 node: the scheduler counts less than 4500m cpu free",
		},
		"memory and pods lack": {
			world: func(w *world) {
				w.free("n1", h200, 100, 100).Free = gang.Resources{MilliCPU: 9000, Memory: 1 << 30, Pods: 3}
				w.free("n2", h200, 100, 100).Free = gang.Resources{MilliCPU: 9000, Memory: 1 << 40}
				w.free("n3", h200, 100, 100).Free = gang.Resources{MilliCPU: 9000, Memory: 1 << 40}
				w.want(1, ask(part(50), whole(1)), gang.Resources{Memory: 64 << 30})
				w.members[0].Request.Demands[1].Shares = 100
			},
			wantReason: gang.NoPlace,
			want:       "needs 1 × (50 shares + 1 whole GPU); no place is free on 3 nodes; 1 more place is needed; 2 nodes: the node takes no further pods; 1 node: the scheduler counts less than 64Gi memory free",
		},
		"the scheduler's own count of shares lacks": {
			world: func(w *world) {
				n := w.free("n1", h200, 100)
				n.Free.Scalars = []gang.Scalar{{"nvidia.com/gpu-share", 40}}
				n.Allocatable.Scalars = []gang.Scalar{{"nvidia.com/gpu-share", 100}}
				w.want(1, ask(part(50)), gang.Resources{Scalars: []gang.Scalar{{"nvidia.com/gpu-share", 50}}})
			},
			wantReason: gang.NoPlace,
			want:       "needs 1 × 50 shares; no place is free on 1 node; 1 more place is needed; 1 node: the scheduler counts less than 50 nvidia.com/gpu-share free",
		},
		"taints and cordons": {
			world: func(w *world) {
				w.free("n1", h200, 100).Unschedulable = true
				for _, name := range []string{"n2", "n3"} {
					w.free(name, h200, 100).Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoExecute}}
				}
				w.want(1, ask(part(50)), gang.Resources{})
			},
			wantReason: gang.NoPlace,
			want:       "needs 1 × 50 shares; no place is free on 3 nodes; 1 more place is needed; 2 nodes: the node has a taint that the pod does not tolerate; 1 node: the node is marked unschedulable",
		},
		"the scheduler refuses": {
			world: func(w *world) {
				w.free("n1", h200, 100)
				w.want(1, ask(part(50)), gang.Resources{})
				w.members[0].Avoid = map[string]bool{"n1": true}
			},
			wantReason: gang.NoPlace,
			want:       "needs 1 × 50 shares; no place is free on 1 node; 1 more place is needed; 1 node: the scheduler does not accept the node for the pod",
		},
		"the scheduler refuses some": {
			world: func(w *world) {
				w.free("n1", h200, 50)
				w.free("n2", h200, 50)
				w.want(2, ask(part(50)), gang.Resources{})
				w.members[0].Avoid = map[string]bool{"n1": true, "n2": true}
			},
			wantReason: gang.NoPlace,
			want:       "needs 2 × 50 shares; there is room, but not on nodes that the scheduler accepts for each of them",
		},
		"no nodes": {
			world:      func(w *world) { w.want(2, ask(part(1)), gang.Resources{}) },
			wantReason: gang.NoPlace,
			want:       "needs 2 × 1 share; the cluster has no nodes",
		},
		"two kinds, one lacks": {
			world: func(w *world) {
				w.free("n1", h200, 100, 40)
				w.want(1, ask(part(10)), gang.Resources{})
				w.want(2, ask(whole(1)), gang.Resources{})
			},
			wantReason: gang.NoPlace,
			want:       "needs 2 × 1 whole GPU and 1 × 10 shares; 1 place for 1 whole GPU is free on 1 of 1 node; 1 more place is needed; 1 node: no GPU of this node is wholly free",
		},
		"two kinds, not together": {
			world: func(w *world) {
				w.free("n1", h200, 100)
				w.want(1, ask(part(10)), gang.Resources{})
				w.want(1, ask(whole(1)), gang.Resources{})
			},
			wantReason: gang.NoPlace,
			want:       "needs 1 × 10 shares and 1 × 1 whole GPU; each kind alone would find room, but places were found for only 1 of 2 together",
		},
		"many kinds": {
			world: func(w *world) {
				w.free("n1", h200, 20)
				for i := range 5 {
					w.want(1, ask(part(units.Shares(30+i))), gang.Resources{})
				}
			},
			wantReason: gang.NoPlace,
			want:       "needs 1 × 30 shares, 1 × 31 shares, 1 × 32 shares and 2 other kinds; no place for 30 shares is free on 1 node; the largest free piece is 20 shares on node n1; 1 more place is needed; 1 node: no single GPU has enough free shares",
		},
		"sick GPUs": {
			world: func(w *world) {
				w.sick("n1", h200, 2)
				w.want(1, ask(whole(1)), gang.Resources{})
			},
			wantReason: gang.NoPlace,
			want:       "needs 1 × 1 whole GPU; no place is free on 1 node; 1 more place is needed; 1 node: the node's GPUs are unhealthy",
		},
		"node selector": {
			world: func(w *world) {
				w.free("n1", h200, 100)
				w.want(1, ask(part(50)), gang.Resources{})
				w.members[0].Constraints = gang.ConstraintsOf(&corev1.Pod{Spec: corev1.PodSpec{NodeSelector: map[string]string{"k": "v"}}})
			},
			wantReason: gang.NoPlace,
			want:       "needs 1 × 50 shares; no place is free on 1 node; 1 more place is needed; 1 node: the node does not match the pod's node selector or required node affinity; even an empty cluster has no place for it: change what the pods ask for or add nodes",
		},
		"no domain": {
			world: func(w *world) {
				inZone(w.free("n1", h200, 50), "a")
				inZone(w.free("n2", h200, 50, 60), "b")
				w.want(3, ask(part(50)), gang.Resources{})
				w.topology = &gang.Topology{NodeLabel: zone, Required: true}
			},
			wantReason: gang.NoDomain,
			want:       "needs 3 × 50 shares in one domain of topology.kubernetes.io/zone, of which \"b\" comes nearest; 2 places are free on 1 of 1 node; the largest other free piece is 10 shares on node n2; 1 more place is needed; 1 node: no single GPU has enough free shares",
		},
		"not where the others are": {
			world: func(w *world) {
				inZone(w.free("n1", h200, 50), "a")
				inZone(w.free("n2", h200, 50, 60), "b")
				w.want(2, ask(part(50)), gang.Resources{})
				w.topology = &gang.Topology{NodeLabel: zone, Required: true, Domain: "a"}
			},
			wantReason: gang.NoDomain,
			want:       "needs 2 × 50 shares in the domain \"a\" of topology.kubernetes.io/zone, where other members are; 1 place is free on 1 of 1 node; 1 more place is needed; 1 node: no single GPU has enough free shares",
		},
		"a domain that is gone": {
			world: func(w *world) {
				inZone(w.free("n1", h200, 50), "a")
				w.want(1, ask(part(50)), gang.Resources{})
				w.topology = &gang.Topology{NodeLabel: zone, Required: true, Domain: "x"}
			},
			wantReason: gang.NoDomain,
			want:       "needs 1 × 50 shares in the domain \"x\" of topology.kubernetes.io/zone, where other members are; no node there takes any of them",
		},
		"no labels": {
			world: func(w *world) {
				w.free("n1", h200, 50)
				w.want(1, ask(part(50)), gang.Resources{})
				w.topology = &gang.Topology{NodeLabel: zone, Required: true}
			},
			wantReason: gang.NoDomain,
			want:       "needs 1 × 50 shares in one domain of topology.kubernetes.io/zone; no node with that label takes any of them",
		},
		"pinned apart": {
			world: func(w *world) {
				inZone(w.free("n1", h200, 50), "a")
				inZone(w.free("n2", h200, 50), "b")
				w.want(3, ask(part(10)), gang.Resources{})
				w.members[0].Pinned, w.members[1].Pinned = "n1", "n2"
				w.topology = &gang.Topology{NodeLabel: zone, Required: true}
			},
			wantReason: gang.NoDomain,
			want:       "needs 1 × 10 shares in one domain of topology.kubernetes.io/zone; members that run already are in several of these domains, or in none",
		},
		"not even empty": {
			world: func(w *world) {
				w.free("n1", h200, 100, 20)
				w.want(5, ask(part(50)), gang.Resources{})
			},
			wantReason: gang.NoPlace,
			want:       "needs 5 × 50 shares; 2 places are free on 1 of 1 node; the largest other free piece is 20 shares on node n1; 3 more places are needed; 1 node: no single GPU has enough free shares; even an empty cluster has only 4 places: ask for less, start fewer pods or add nodes",
		},
		"not even empty, by cpu": {
			world: func(w *world) {
				n := w.free("n1", h200, 100, 20)
				n.Free, n.Allocatable = gang.Resources{MilliCPU: 500, Pods: 5}, gang.Resources{MilliCPU: 1500, Pods: 5}
				w.want(2, ask(part(50)), gang.Resources{MilliCPU: 1000})
			},
			wantReason: gang.NoPlace,
			want:       "needs 2 × 50 shares; no place is free on 1 node; the largest free piece is 20 shares on node n1; 2 more places are needed; 1 node: the scheduler counts less than 1 cpu free; even an empty cluster has only 1 place: ask for less, start fewer pods or add nodes",
		},
		"without GPUs": {
			world: func(w *world) {
				w.free("n1", h200, 100).Free = gang.Resources{MilliCPU: 5000, Memory: 64 << 30, Pods: 5}
				w.nodes = append(w.nodes, &gang.Node{Name: "n2", Free: gang.Resources{MilliCPU: 64000, Memory: 6 << 30, Pods: 5}})
				w.want(4, ask(), gang.Resources{MilliCPU: 2000, Memory: 4 << 30})
			},
			wantReason: gang.NoPlace,
			want:       "needs 4 × (2 cpu, 4Gi memory); 3 places are free on 2 of 2 nodes; 1 more place is needed; 1 node: the scheduler counts less than 2 cpu free; 1 node: the scheduler counts less than 4Gi memory free",
		},
		"without GPUs or anything": {
			world: func(w *world) {
				w.nodes = append(w.nodes, &gang.Node{Name: "n1", Allocatable: gang.Resources{Pods: 110}})
				w.want(1, ask(), gang.Resources{})
			},
			wantReason: gang.NoPlace,
			want:       "needs 1 × a pod that requests nothing; no place is free on 1 node; 1 more place is needed; 1 node: the node takes no further pods",
		},
		"with and without GPUs": {
			world: func(w *world) {
				w.free("n1", h200, 40).Free = gang.Resources{MilliCPU: 5000, Pods: 5}
				w.want(1, ask(), gang.Resources{MilliCPU: 500})
				w.want(2, ask(part(30)), gang.Resources{MilliCPU: 1000})
			},
			wantReason: gang.NoPlace,
			want:       "needs 2 × 30 shares and 1 × 500m cpu; 1 place for 30 shares is free on 1 of 1 node; the largest other free piece is 10 shares on node n1; 1 more place is needed; 1 node: no single GPU has enough free shares",
		},
		"malformed": {
			world: func(w *world) {
				w.free("n1", h200, 100)
				w.want(1, ask(part(0)), gang.Resources{})
			},
			wantReason: gang.InvalidMember,
			want:       "member demo/m0 cannot be planned: the pod's GPU request is malformed",
		},
		"twice": {
			world: func(w *world) {
				w.free("n1", h200, 100)
				w.want(2, ask(part(1)), gang.Resources{})
				w.members[1].Pod = w.members[0].Pod
			},
			wantReason: gang.InvalidMember,
			want:       "member demo/m0 cannot be planned: it is there twice",
		},
		"no UID": {
			world: func(w *world) {
				w.want(1, ask(part(1)), gang.Resources{})
				w.members[0].Pod.UID = ""
			},
			wantReason: gang.InvalidMember,
			want:       "member demo/m0 cannot be planned: it has no UID",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			tc.world(w)
			places, shortfall := w.plan()
			if shortfall == nil {
				t.Fatalf("Plan found %v", places)
			}
			if shortfall.Reason != tc.wantReason {
				t.Errorf("reason %s, want %s", shortfall.Reason, tc.wantReason)
			}
			if diff := cmp.Diff(tc.want, shortfall.Message()); diff != "" {
				t.Errorf("message (-want +got):\n%s", diff)
			}
		})
	}
}
