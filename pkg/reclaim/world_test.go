package reclaim_test

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/gang"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/placement"
	"github.com/tranche-dev/tranche/pkg/queue"
	"github.com/tranche-dev/tranche/pkg/reclaim"
	"github.com/tranche-dev/tranche/pkg/units"
)

const rack = "rack"

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// world builds a Problem.
type world struct {
	ledger *ledger.Ledger
	nodes  map[string]*gang.Node
	reclaim.Problem
}

func newWorld() *world {
	w := &world{ledger: ledger.New(), nodes: map[string]*gang.Node{}}
	w.Options.Resources = contract.DefaultResources()
	w.Rules = &rules{}
	return w
}

func uuid(node string, gpu int) contract.GPUUUID {
	return contract.GPUUUID(fmt.Sprintf("GPU-%s-%d", node, gpu))
}

// node adds a node of so many GPUs, 0: without inventory. It offers 64 cores
// and 110 pods.
func (w *world) node(name string, gpus int, labels ...string) {
	inv := contract.Inventory{Version: 1, SharesPerGPU: 100}
	for i := range gpus {
		inv.GPUs = append(inv.GPUs, contract.GPU{UUID: uuid(name, i), Index: i, Model: "H200", MemoryMiB: 143360, Healthy: true, NUMA: -1})
	}
	if gpus > 0 {
		w.ledger.SetNode(name, inv)
	}
	n := &gang.Node{Name: name, Labels: map[string]string{}, Free: gang.Resources{MilliCPU: 64_000, Pods: 110}}
	n.Allocatable = n.Free
	for i := 0; i < len(labels); i += 2 {
		n.Labels[labels[i]] = labels[i+1]
	}
	w.nodes[name] = n
	w.Nodes = append(w.Nodes, n)
}

// on is shares of one GPU of a node.
type on struct {
	node   string
	gpu    int
	shares units.Shares
}

// unit adds a running unit with one pod per place; each requests one core.
func (w *world) unit(id string, places ...on) *reclaim.Unit {
	u := &reclaim.Unit{ID: id, Queue: "q", Started: start, Charge: queue.Amounts{0}}
	for i, p := range places {
		pod := reclaim.Pod{UID: types.UID(fmt.Sprintf("%s-%d", id, i)), Node: p.node, Needs: gang.Resources{MilliCPU: 1000, Pods: 1}}
		charges := map[contract.GPUUUID]units.Shares{}
		if p.shares > 0 {
			charges[uuid(p.node, p.gpu)] = p.shares
		}
		w.ledger.Allocate(ledger.Claim{Pod: ledger.Pod{UID: pod.UID}, Node: p.node, Charges: charges})
		if n := w.nodes[p.node]; n != nil {
			n.Free = n.Free.Sub(pod.Needs)
		}
		u.Pods = append(u.Pods, pod)
		u.Charge[0] += int64(p.shares)
	}
	w.Units = append(w.Units, u)
	return u
}

// want adds members of one core each.
func (w *world) want(n int, demands ...contract.Demand) []gang.Member {
	req := contract.Request{}
	for i, d := range demands {
		d.Name = fmt.Sprintf("c%d", i)
		d.Count = max(d.Count, 1)
		if d.Whole {
			d.Shares = 100
		}
		req.Demands = append(req.Demands, d)
	}
	first := len(w.Members)
	needs := gang.Resources{MilliCPU: 1000, Pods: 1}
	for range n {
		name := fmt.Sprintf("m%d", len(w.Members))
		w.Members = append(w.Members, gang.Member{
			Pod: ledger.Pod{UID: types.UID("uid-" + name), Namespace: "demo", Name: name}, Request: req, Needs: needs,
			Policy: placement.Binpack, Shape: gang.ShapeOf(req, needs, nil, placement.Binpack),
		})
	}
	return w.Members[first:]
}

func part(shares units.Shares) contract.Demand { return contract.Demand{Shares: shares} }
func whole(n int) contract.Demand              { return contract.Demand{Count: n, Whole: true} }

// problem finishes the nodes.
func (w *world) problem() reclaim.Problem {
	s := w.ledger.Snapshot()
	for _, n := range w.Nodes {
		n.GPUs = s.Node(n.Name)
	}
	return w.Problem
}

// choose returns the IDs of the victims, or the reason why there are none.
func (w *world) choose() string {
	result, short := reclaim.Select(w.problem())
	if result == nil {
		return string(short.Reason)
	}
	return ids(result.Victims)
}

func ids(victims []*reclaim.Unit) string {
	var all []string
	for _, u := range victims {
		all = append(all, u.ID)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// rules protect some units and let each queue give only so much: while what is
// taken of it is less than its spare. Without an entry it gives all.
type rules struct {
	protected map[string]bool
	spare     map[string]int64
	// least is what must be taken in all.
	least int64
	taken []*reclaim.Unit
}

func (r *rules) sum(name string) int64 {
	sum := int64(0)
	for _, u := range r.taken {
		if name == "" || u.Queue == name {
			sum += u.Charge[0]
		}
	}
	return sum
}

func (r *rules) MayTake(u *reclaim.Unit) bool {
	spare, limited := r.spare[u.Queue]
	return !r.protected[u.ID] && !slices.Contains(r.taken, u) && (!limited || r.sum(u.Queue) < spare)
}

func (r *rules) Take(u *reclaim.Unit) { r.taken = append(r.taken, u) }

func (r *rules) Return(u *reclaim.Unit) {
	at := slices.Index(r.taken, u)
	if at < 0 {
		panic("returned " + u.ID + ", which was not taken")
	}
	r.taken = slices.Delete(r.taken, at, at+1)
}

func (r *rules) Final() bool { return r.sum("") >= r.least }
