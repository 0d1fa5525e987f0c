package reclaim

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/gang"
	"github.com/tranche-dev/tranche/pkg/ledger"
)

// site is a node with what is left on it at some point. Sites are copied by
// value: what they point to never changes.
type site struct {
	node *gang.Node
	free gang.Resources
	gpus *ledger.NodeView
	// seats are the units with pods here, by preference. All of the sites of
	// one Select share them.
	seats []seat
}

// seat is a unit's part of one site.
type seat struct {
	unit *Unit
	// at is the unit's position among Problem.Units.
	at int
	// needs is what its pods here request together.
	needs gang.Resources
}

// evict takes the seat's pods off the site.
func (st *site) evict(s *seat) {
	gone := map[types.UID]bool{}
	for i := range s.unit.Pods {
		gone[s.unit.Pods[i].UID] = true
	}
	st.free = st.free.Add(s.needs)
	st.gpus = st.gpus.Without(gone)
}

// put places a member.
func (st *site) put(m *gang.Member, plan contract.Plan, roles []contract.ContainerRole) {
	st.free = st.free.Sub(m.Needs)
	if len(plan.Containers) > 0 {
		st.gpus = st.gpus.With(ledger.Claim{Pod: m.Pod, Node: st.node.Name, Charges: plan.Charges(roles)})
	}
}

// cluster is what all attempts of one Select share.
type cluster struct {
	*Problem
	// sites are the nodes by name, with the pinned members on them.
	sites []site
	at    map[string]int
	kinds []*kind
	// on are the sites where each unit has pods.
	on [][]int
	// pinned says which sites have pinned members.
	pinned map[int]bool
	// steps is what all searches have cost; see allSteps.
	steps  int
	search search
}

func newCluster(p *Problem) *cluster {
	c := &cluster{Problem: p, at: make(map[string]int, len(p.Nodes)), pinned: map[int]bool{}}
	nodes := slices.SortedFunc(slices.Values(p.Nodes), func(a, b *gang.Node) int { return cmp.Compare(a.Name, b.Name) })
	for i, n := range nodes {
		c.sites = append(c.sites, site{node: n, free: n.Free, gpus: n.GPUs.Without(p.Options.Without)})
		c.at[n.Name] = i
	}
	for i := range p.Members {
		m := &p.Members[i]
		if at, ok := c.at[m.Pinned]; ok && m.Pinned != "" {
			c.sites[at].put(m, m.Plan, roles(m.Request))
			c.pinned[at] = true
		}
	}
	c.kinds = kindsOf(p)
	matches := map[string][]bool{} // by Constraints.Key: most members' are equal
	for _, k := range c.kinds {
		key := k.first.Constraints.Key()
		if matches[key] == nil {
			matches[key] = c.matching(k.first.Constraints)
		}
		k.allowed = matches[key]
		if len(k.first.Avoid) > 0 {
			k.allowed = slices.Clone(k.allowed)
			for name := range k.first.Avoid {
				if at, ok := c.at[name]; ok {
					k.allowed[at] = false
				}
			}
		}
	}
	return c
}

func (c *cluster) matching(constraints *gang.Constraints) []bool {
	match := make([]bool, len(c.sites))
	for i := range c.sites {
		match[i], _ = constraints.Match(c.sites[i].node)
	}
	return match
}

// seat puts the units on the sites. Only pods on known nodes make room.
func (c *cluster) seat() {
	c.on = make([][]int, len(c.Units))
	var on []int // one after the other: most units have one pod
	for i, u := range c.Units {
		first := len(on)
		for j := range u.Pods {
			pod := &u.Pods[j]
			at, ok := c.at[pod.Node]
			if !ok {
				continue
			}
			st := &c.sites[at]
			if last := len(st.seats) - 1; last < 0 || st.seats[last].at != i {
				if st.seats == nil {
					st.seats = make([]seat, 0, 8) // a node's GPUs
				}
				st.seats = append(st.seats, seat{unit: u, at: i})
				on = append(on, at)
			}
			s := &st.seats[len(st.seats)-1]
			s.needs = s.needs.Add(pod.Needs)
		}
		c.on[i] = on[first:len(on):len(on)]
	}
	for i := range c.sites {
		slices.SortFunc(c.sites[i].seats, func(a, b seat) int { return cmp.Or(byPreference(a.unit, b.unit), cmp.Compare(a.at, b.at)) })
	}
}

// roles lists the containers that use GPUs, as contract.Plan.Charges needs them.
func roles(req contract.Request) []contract.ContainerRole {
	all := make([]contract.ContainerRole, 0, len(req.Demands))
	for _, d := range req.Demands {
		all = append(all, d.ContainerRole)
	}
	return all
}
