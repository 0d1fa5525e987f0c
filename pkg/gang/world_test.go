package gang_test

import (
	"fmt"
	"math/rand/v2"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/gang"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/placement"
	"github.com/tranche-dev/tranche/pkg/units"
)

const (
	h200 = "NVIDIA-H200"
	a30  = "NVIDIA-A30"
	zone = "topology.kubernetes.io/zone"
)

var memoryOf = map[string]units.MiB{h200: 143360, a30: 24576}

// world is all that Plan takes.
type world struct {
	nodes    []*gang.Node
	members  []gang.Member
	topology *gang.Topology
	opts     gang.Options
}

func (w *world) plan() ([]gang.Place, *gang.Shortfall) {
	return gang.Plan(w.nodes, w.members, w.topology, w.opts)
}

func newWorld() *world {
	return &world{opts: gang.Options{Resources: contract.DefaultResources()}}
}

// plenty is a node's resources that nothing in these tests uses up.
var plenty = gang.Resources{MilliCPU: 1 << 40, Memory: 1 << 50, Ephemeral: 1 << 50, Pods: 110}

// free adds a node whose GPUs of model have these free shares.
func (w *world) free(name, model string, free ...units.Shares) *gang.Node {
	l := ledger.New()
	l.SetNode(name, inventory(name, model, len(free)))
	for i, f := range free {
		if f < 100 {
			uid := types.UID(fmt.Sprintf("other-%s-%d", name, i))
			l.Allocate(ledger.Claim{Pod: ledger.Pod{UID: uid}, Node: name, Charges: map[contract.GPUUUID]units.Shares{uuid(name, i): 100 - f}})
		}
	}
	n := &gang.Node{Name: name, Labels: map[string]string{}, Free: plenty, Allocatable: plenty, GPUs: l.Node(name)}
	w.nodes = append(w.nodes, n)
	return n
}

// sick adds a node of which no GPU is healthy.
func (w *world) sick(name, model string, gpus int) {
	inv := inventory(name, model, gpus)
	for i := range inv.GPUs {
		inv.GPUs[i].Healthy = false
	}
	l := ledger.New()
	l.SetNode(name, inv)
	w.nodes = append(w.nodes, &gang.Node{Name: name, Free: plenty, Allocatable: plenty, GPUs: l.Node(name)})
}

func uuid(node string, i int) contract.GPUUUID {
	return contract.GPUUUID(fmt.Sprintf("GPU-%s-%d", node, i))
}

func inventory(name, model string, gpus int) contract.Inventory {
	inv := contract.Inventory{Version: 1, SharesPerGPU: 100}
	for i := range gpus {
		inv.GPUs = append(inv.GPUs, contract.GPU{UUID: uuid(name, i), Index: i, Model: model, MemoryMiB: memoryOf[model], Healthy: true, NUMA: -1})
	}
	return inv
}

// ask makes a request of one app container per demand.
func ask(demands ...contract.Demand) contract.Request {
	req := contract.Request{}
	for i, d := range demands {
		d.Name = fmt.Sprintf("c%d", i)
		d.Count = max(d.Count, 1)
		if d.Whole {
			d.Shares = 100
		}
		req.Demands = append(req.Demands, d)
	}
	return req
}

func part(shares units.Shares) contract.Demand      { return contract.Demand{Shares: shares} }
func several(n int, s units.Shares) contract.Demand { return contract.Demand{Count: n, Shares: s} }
func whole(n int) contract.Demand                   { return contract.Demand{Count: n, Whole: true} }
func gigabytes(n units.MiB) contract.Demand         { return contract.Demand{Memory: n << 10} }

// want adds members that ask for the same.
func (w *world) want(n int, req contract.Request, needs gang.Resources) []gang.Member {
	first := len(w.members)
	needs.Pods = 1
	for range n {
		name := fmt.Sprintf("m%d", len(w.members))
		w.members = append(w.members, gang.Member{
			Pod: ledger.Pod{UID: types.UID("uid-" + name), Namespace: "demo", Name: name}, Request: req, Needs: needs,
			Policy: placement.Binpack, Shape: gang.ShapeOf(req, needs, nil, placement.Binpack),
		})
	}
	return w.members[first:]
}

// random makes a small world; equal members have one shape.
func random(seed uint64, equal bool) *world {
	r := rand.New(rand.NewPCG(seed, 1))
	w := newWorld()
	nodes := 1 + r.IntN(4)
	for i := range nodes {
		w.randomNode(r, fmt.Sprintf("n%d", i))
	}
	count := 1 + r.IntN(5)
	policy := []placement.Policy{placement.Binpack, placement.Spread}[r.IntN(2)]
	shapes := 1
	if !equal {
		shapes = count
	}
	for range shapes {
		w.randomMembers(r, count/shapes, policy)
	}
	if r.IntN(4) == 0 {
		w.topology = &gang.Topology{NodeLabel: zone, Required: r.IntN(2) == 0}
		if r.IntN(4) == 0 {
			w.topology.Domain = "a"
		}
	}
	return w
}

func (w *world) randomNode(r *rand.Rand, name string) {
	free := make([]units.Shares, 1+r.IntN(4))
	for i := range free {
		free[i] = []units.Shares{0, 10, 25, 30, 50, 50, 60, 75, 100, 100, 100}[r.IntN(11)]
	}
	n := w.free(name, []string{h200, h200, a30}[r.IntN(3)], free...)
	n.Labels[zone] = []string{"a", "b", "c"}[r.IntN(3)]
	if r.IntN(8) == 0 {
		delete(n.Labels, zone)
	}
	if r.IntN(8) == 0 {
		n.GPUs = nil
	}
	if r.IntN(8) == 0 {
		n.Taints = []corev1.Taint{{Key: "nvidia.com/gpu", Effect: corev1.TaintEffectNoSchedule}}
	}
	if r.IntN(3) == 0 {
		n.Free = gang.Resources{MilliCPU: int64(r.IntN(5)) * 1000, Memory: int64(r.IntN(5)) << 30, Pods: int64(r.IntN(5))}
	}
}

func (w *world) randomMembers(r *rand.Rand, n int, policy placement.Policy) {
	demand := func() contract.Demand {
		switch r.IntN(8) {
		case 0:
			return whole(1 + r.IntN(2))
		case 1, 2:
			return gigabytes(units.MiB(1 + r.IntN(30)))
		case 3, 4:
			return several(1+r.IntN(3), []units.Shares{10, 25, 30, 50, 60}[r.IntN(5)])
		default:
			return part([]units.Shares{10, 20, 25, 30, 40, 50, 60, 75, 100}[r.IntN(9)])
		}
	}
	var req contract.Request
	switch r.IntN(7) {
	case 6: // no GPUs
	case 0:
		req = ask(demand(), demand())
	case 1:
		first := demand()
		req = ask(first, first)
		req.Demands[0].Role, req.SameGPUs = contract.RoleInit, true
	default:
		req = ask(demand())
	}
	if r.IntN(5) == 0 {
		req.Models = []string{h200}
	}
	needs := gang.Resources{Pods: 1}
	if r.IntN(2) == 0 {
		needs.MilliCPU, needs.Memory = int64(r.IntN(3))*500, int64(r.IntN(2))<<30
	}
	pod := &corev1.Pod{}
	if r.IntN(2) == 0 {
		pod.Spec.Tolerations = []corev1.Toleration{{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists}}
	}
	constraints := gang.ConstraintsOf(pod)
	members := w.want(n, req, needs)
	avoids := r.IntN(3) == 0
	for i := range members {
		m := &members[i]
		m.Policy, m.Constraints = policy, constraints
		m.Shape = gang.ShapeOf(req, needs, constraints, policy)
		if avoids && r.IntN(2) == 0 {
			m.Avoid = map[string]bool{w.nodes[r.IntN(len(w.nodes))].Name: true}
		}
	}
}

// shuffled is the same world with its nodes in another order.
func (w *world) shuffled(seed uint64) *world {
	o := *w
	o.nodes = slices.Clone(w.nodes)
	r := rand.New(rand.NewPCG(seed, 2))
	r.Shuffle(len(o.nodes), func(i, j int) { o.nodes[i], o.nodes[j] = o.nodes[j], o.nodes[i] })
	return &o
}

// hold makes the nodes show the places as held by the members, and Plan look
// past them.
func (w *world) hold(places []gang.Place) {
	w.opts.Without = map[types.UID]bool{}
	for i, p := range places {
		m := &w.members[i]
		w.opts.Without[m.Pod.UID] = true
		for _, n := range w.nodes {
			if n.Name == p.Node {
				n.GPUs = n.GPUs.With(ledger.Claim{Pod: m.Pod, Node: p.Node, Charges: p.Plan.Charges(rolesOf(m))})
			}
		}
	}
}
