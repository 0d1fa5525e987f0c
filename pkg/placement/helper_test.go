package placement_test

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/units"
)

const (
	a100 = "NVIDIA-A100-SXM4-80GB"
	a30  = "NVIDIA-A30"
)

var memoryOf = map[string]units.MiB{a100: 81920, a30: 24576}

// gpu is one GPU of a test's node: its model, and what others use of it.
type gpu struct {
	model     string
	used      units.Shares
	sick      bool
	isolation contract.Isolation
	nvlinks   map[int]int
	// socket is the memory node beside it, from 1; 0 is unknown.
	socket int
}

func uuid(i int) contract.GPUUUID { return contract.GPUUUID(fmt.Sprintf("GPU-%d", i)) }

// node is a view of a node with these GPUs, by way of a real ledger.
func node(name string, gpus ...gpu) *ledger.NodeView { return build(name, gpus...).Node(name) }

func build(name string, gpus ...gpu) *ledger.Ledger {
	l := ledger.New()
	inv := contract.Inventory{Version: 1, SharesPerGPU: 100}
	for i, g := range gpus {
		facts := contract.GPU{
			UUID: uuid(i), Index: i, Model: g.model, MemoryMiB: memoryOf[g.model], Healthy: !g.sick, NUMA: g.socket - 1, Isolation: g.isolation,
		}
		for to := range len(gpus) {
			if n := g.nvlinks[to]; n > 0 {
				facts.Links = append(facts.Links, contract.Link{To: to, Type: contract.LinkNVLink, Count: n})
			}
		}
		inv.GPUs = append(inv.GPUs, facts)
		if g.used > 0 {
			uid := fmt.Sprintf("user-of-%d", i)
			l.Allocate(ledger.Claim{
				Pod: ledger.Pod{UID: types.UID(uid), Namespace: "demo", Name: uid}, Node: name,
				Charges: map[contract.GPUUUID]units.Shares{uuid(i): g.used},
			})
		}
	}
	l.SetNode(name, inv)
	return l
}

// use makes a GPU of model that others use.
func use(model string, used units.Shares) gpu { return gpu{model: model, used: used} }

// demand is an app container c0, c1, … each with one of these.
type demand = contract.Demand

func app(n int, d demand) demand {
	d.ContainerRole = contract.ContainerRole{Name: fmt.Sprintf("c%d", n), Role: contract.RoleApp}
	d.Count = max(d.Count, 1)
	if d.Whole {
		d.Shares = 100
	}
	return d
}

func ask(demands ...demand) contract.Request {
	req := contract.Request{}
	for i, d := range demands {
		req.Demands = append(req.Demands, app(i, d))
	}
	return req
}

// indices are the GPUs of a container by index.
func indices(t *testing.T, p contract.Plan, container string) []int {
	t.Helper()
	var all []int
	for _, g := range p.Containers[container] {
		var i int
		if _, err := fmt.Sscanf(string(g.GPU), "GPU-%d", &i); err != nil {
			t.Fatalf("GPU %q: %v", g.GPU, err)
		}
		all = append(all, i)
	}
	return all
}

func inAMinute() time.Time { return time.Date(2026, 1, 1, 0, 1, 0, 0, time.UTC) }
