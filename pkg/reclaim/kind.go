package reclaim

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/gang"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/placement"
	"github.com/tranche-dev/tranche/pkg/units"
)

// kind is what members have in common that fit in the same places.
type kind struct {
	members []int
	first   *gang.Member
	perGPU  units.Shares
	// query asks by the members' policy; nil if they use no GPU.
	query *placement.Query
	items []item
	// allowed says, per site, whether the members' constraints allow it.
	allowed []bool
}

// item is containers that get count different GPUs together, as in package
// placement.
type item struct {
	demands []contract.Demand
	count   int
	// needs remembers need.
	needs map[*ledger.Class]units.Shares
}

// kindsOf groups the members that need a place. Those that are hardest to place
// come first: with the most of GPUs, then the most of anything.
func kindsOf(p *Problem) []*kind {
	byKey := map[string]*kind{}
	var all []*kind
	for i := range p.Members {
		m := &p.Members[i]
		if m.Pinned != "" {
			continue
		}
		key := m.Shape
		if key == "" {
			key = gang.ShapeOf(m.Request, m.Needs, m.Constraints, m.Policy)
		}
		if len(m.Avoid) > 0 {
			key += fmt.Sprintf("|%q", slices.Sorted(maps.Keys(m.Avoid)))
		}
		k := byKey[key]
		if k == nil {
			k = newKind(m, p.Options.Resources.PerGPU)
			byKey[key] = k
			all = append(all, k)
		}
		k.members = append(k.members, i)
	}
	slices.SortStableFunc(all, func(a, b *kind) int {
		return cmp.Or(cmp.Compare(b.size(), a.size()), cmp.Compare(b.first.Needs.MilliCPU, a.first.Needs.MilliCPU))
	})
	return all
}

func newKind(m *gang.Member, perGPU units.Shares) *kind {
	k := &kind{first: m, perGPU: perGPU}
	if len(m.Request.Demands) > 0 {
		k.query = placement.New(m.Request, placement.Options{Policy: m.Policy, PerGPU: perGPU})
	}
	for i, d := range m.Request.Demands {
		if i == 0 || !m.Request.SameGPUs {
			k.items = append(k.items, item{needs: map[*ledger.Class]units.Shares{}})
		}
		it := &k.items[len(k.items)-1]
		it.demands = append(it.demands, d)
		it.count = max(it.count, d.Count)
	}
	return k
}

// size is how hard a kind is to place, roughly: in shares of GPUs of a common
// size, where many GPUs of one node count more than their sum.
func (k *kind) size() units.Shares {
	common := ledger.Class{MemoryMiB: 81920, SharesPerGPU: max(k.perGPU, 1)}
	sum := units.Shares(0)
	for i := range k.items {
		n := units.Shares(k.items[i].count)
		sum += n * n * k.items[i].cost(&common)
	}
	return sum
}

// need is what it takes of a GPU of that class.
func (it *item) need(c *ledger.Class) units.Shares {
	n, known := it.needs[c]
	if !known {
		n = it.cost(c)
		it.needs[c] = n
	}
	return n
}

// cost lets package contract add up what containers on one GPU are charged.
func (it *item) cost(c *ledger.Class) units.Shares {
	plan := contract.Plan{Containers: map[string][]contract.Grant{}}
	var roles []contract.ContainerRole
	for _, d := range it.demands {
		if d.Memory > c.MemoryMiB {
			return c.SharesPerGPU + 1
		}
		plan.Containers[d.Name] = []contract.Grant{{Shares: d.SharesOn(c.MemoryMiB, c.SharesPerGPU)}}
		roles = append(roles, d.ContainerRole)
	}
	return plan.Charges(roles)[""]
}

// suits says whether the kind may use a GPU, whoever is on it now.
func (k *kind) suits(g *ledger.GPUView) bool {
	req := &k.first.Request
	return g.Healthy && req.AllowsModel(g.Class.Model) && (!req.RequireIsolation || g.Class.Isolation.Enforced()) &&
		g.Class.MemoryMiB > 0 && g.Class.MemoryMiB <= units.MaxMemory
}

// fits says whether one member finds room on a site as it is.
func (k *kind) fits(st *site) bool {
	if ok, _ := gang.Fits(st.free, k.first.Needs); !ok {
		return false
	}
	return k.query == nil || k.query.Check(st.gpus) == ""
}
