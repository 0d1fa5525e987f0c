package gang

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/placement"
)

// Plan finds places for all members, or says why there are none: places[i]
// belongs to members[i]. It changes nothing, and what it returns belongs to the
// caller, but for the plans of pinned members. Names of nodes and UIDs of pods
// must be unique.
func Plan(nodes []*Node, members []Member, topology *Topology, opts Options) ([]Place, *Shortfall) {
	if s := invalid(members); s != nil {
		return nil, s
	}
	p := newPlanner(nodes, members, opts)
	if len(p.shapes) == 0 {
		return p.pinned, nil
	}
	if topology == nil || topology.NodeLabel == "" {
		if places := p.fill(p.sites); places != nil {
			return places, nil
		}
		return nil, p.explain(p.sites)
	}
	return p.fillDomains(topology)
}

// invalid finds a member that no node could take and no wait would help.
func invalid(members []Member) *Shortfall {
	seen := make(map[types.UID]bool, len(members))
	for i := range members {
		m := &members[i]
		problem := ""
		switch {
		case m.Pod.UID == "":
			problem = "it has no UID"
		case seen[m.Pod.UID]:
			problem = "it is there twice"
		case m.Pinned == "" && placement.New(m.Request, placement.Options{}).Check(nil) == placement.Malformed:
			problem = string(placement.Malformed)
		}
		if problem != "" {
			return &Shortfall{Reason: InvalidMember, Member: i, Pod: m.Pod, Problem: problem}
		}
		seen[m.Pod.UID] = true
	}
	return nil
}

// planner holds what all attempts of one Plan share.
type planner struct {
	members []Member
	opts    Options
	// sites are the nodes with the pinned members on them, in the order of
	// placement.Before.
	sites  []site
	shapes []*shape
	// pinned has the places of the pinned members.
	pinned []Place
	// refused has matches by Constraints.Key.
	refused map[string][]string
	// work is what all attempts have cost; see maxWork. together is the most
	// members that any of them has placed.
	work, together int
}

// site is a node at some point of an attempt. Sites are copied by value: what
// they point to never changes.
type site struct {
	node *Node
	free Resources
	gpus *ledger.NodeView
	// id is the position among the planner's sites.
	id int
}

// put returns s with a pod on it.
func (s site) put(pod ledger.Pod, needs Resources, plan contract.Plan, roles []contract.ContainerRole) site {
	s.free = s.free.Sub(needs)
	if len(plan.Containers) == 0 {
		return s // it uses no GPU
	}
	s.gpus = s.gpus.With(ledger.Claim{Pod: pod, Node: s.node.Name, Charges: plan.Charges(roles)})
	return s
}

func newPlanner(nodes []*Node, members []Member, opts Options) *planner {
	p := &planner{members: members, opts: opts, pinned: make([]Place, len(members)), refused: map[string][]string{}}
	nodes = slices.Clone(nodes)
	slices.SortFunc(nodes, func(a, b *Node) int {
		if placement.Before(a.Name, b.Name) {
			return -1
		}
		return 1
	})
	p.sites = make([]site, len(nodes))
	for i, n := range nodes {
		p.sites[i] = site{node: n, free: n.Free, gpus: n.GPUs.Without(opts.Without), id: i}
	}
	p.pin()
	p.shapes = shapesOf(members, opts)
	for _, s := range p.shapes {
		p.survey(s)
	}
	return p
}

// pin puts the pinned members where they stay.
func (p *planner) pin() {
	var at map[string]int
	for i := range p.members {
		m := &p.members[i]
		if m.Pinned == "" {
			continue
		}
		if at == nil {
			at = make(map[string]int, len(p.sites))
			for j := range p.sites {
				at[p.sites[j].node.Name] = j
			}
		}
		p.pinned[i] = Place{m.Pinned, m.Plan}
		if j, ok := at[m.Pinned]; ok {
			p.sites[j] = p.sites[j].put(m.Pod, m.Needs, m.Plan, rolesOf(m.Request))
		}
	}
}

// rolesOf lists the containers that use GPUs, as contract.Plan.Charges needs
// them.
func rolesOf(req contract.Request) []contract.ContainerRole {
	all := make([]contract.ContainerRole, 0, len(req.Demands))
	for _, d := range req.Demands {
		all = append(all, d.ContainerRole)
	}
	return all
}

// survey asks every site once what it thinks of a shape.
func (p *planner) survey(s *shape) {
	s.refused = slices.Clone(p.matches(s.constraints))
	s.bound = make([]int, len(p.sites))
	for i := range p.sites {
		st := &p.sites[i]
		if s.refused[i] != "" {
			continue
		}
		if s.avoidedBy(st.node.Name) == len(s.groups) {
			s.refused[i] = nodeAvoided
			continue
		}
		s.bound[i] = s.most(st, s.count)
	}
}

// matches returns what Constraints.Match says of each site. The members of a
// gang nearly always have the same constraints, whatever else differs.
func (p *planner) matches(c *Constraints) []string {
	refused, known := p.refused[c.Key()]
	if !known {
		refused = make([]string, len(p.sites))
		for i := range p.sites {
			_, refused[i] = c.Match(p.sites[i].node)
		}
		p.refused[c.Key()] = refused
	}
	return refused
}

// most bounds how many copies of s a site takes, of limit at most. For a shape
// that is one item to package placement it is how many.
func (s *shape) most(st *site, limit int) int {
	n, _ := timesFit(st.free, s.needs, limit)
	if s.plain() {
		return n
	}
	if n == 1 && s.single() { // quicker, and the same
		if s.packing.Check(st.gpus) != "" {
			return 0
		}
		return 1
	}
	return s.packing.Bound(st.gpus, n)
}

// single says that all containers of a pod get their GPUs in one go.
func (s *shape) single() bool { return len(s.request.Demands) <= 1 || s.request.SameGPUs }

// avoidedBy counts the groups that avoid a node.
func (s *shape) avoidedBy(node string) int {
	n := 0
	for _, g := range s.groups {
		if g.avoid[node] {
			n++
		}
	}
	return n
}
