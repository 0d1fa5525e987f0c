package gang

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/units"
)

// nodeAvoided is the refusal of a node in Member.Avoid.
const nodeAvoided = "the scheduler does not accept the node for the pod"

// explain says why the shapes do not fit on sites.
func (p *planner) explain(sites []site) *Shortfall {
	s := &Shortfall{Reason: NoPlace, Nodes: len(sites), Together: p.together}
	for _, shape := range p.shapes {
		s.Asks = append(s.Asks, p.ask(shape, sites))
	}
	slices.SortStableFunc(s.Asks, func(a, b Ask) int { return b.needed() - a.needed() })
	return s
}

// explainDomains says why no domain takes all members.
func (p *planner) explainDomains(t *Topology, domains []*domain, home string, agreed bool) *Shortfall {
	anywhere := p.explain(p.sites)
	if agreed && slices.ContainsFunc(anywhere.Asks, func(a Ask) bool { return a.lacking() }) {
		return anywhere // the topology is not to blame
	}
	s := &Shortfall{Reason: NoDomain, Label: t.NodeLabel, Domain: home, Torn: !agreed, Together: p.together}
	var best *domain
	for _, d := range domains {
		if home != "" && d.value != home || !agreed {
			continue
		}
		if best == nil || d.missing(p.shapes) < best.missing(p.shapes) {
			best = d
		}
	}
	if best == nil {
		s.Asks = anywhere.Asks
		return s
	}
	s.Chosen = home == ""
	s.Domain = best.value
	there := p.explain(p.inDomain(t.NodeLabel, best.value))
	s.Nodes, s.Asks = there.Nodes, there.Asks
	return s
}

// missing is how many members find no room in d, at least.
func (d *domain) missing(shapes []*shape) int {
	n := 0
	for i, s := range shapes {
		n += max(s.count-d.places[i], 0)
	}
	return n
}

// inDomain returns all sites with that value of the label.
func (p *planner) inDomain(label, value string) []site {
	var sites []site
	for i := range p.sites {
		if v, ok := p.sites[i].node.Labels[label]; ok && v == value {
			sites = append(sites, p.sites[i])
		}
	}
	return sites
}

// ask counts what there is for one shape on sites, and if that is too little,
// looks for why.
func (p *planner) ask(s *shape, sites []site) Ask {
	a := Ask{What: s.describe(), Count: s.count}
	places := make([]int, len(sites))
	for i := range sites {
		if s.refused[sites[i].id] != "" {
			continue
		}
		if places[i] = s.bound[sites[i].id]; !s.single() {
			places[i] = p.copies(s, &sites[i], s.count)
		}
		a.Places += places[i]
		a.PlaceNodes += min(places[i], 1)
	}
	if !a.lacking() {
		a.Ever = a.Count
		return a
	}
	why := map[string]int{}
	for i := range sites {
		if refused := s.refused[sites[i].id]; refused != "" {
			why[refused]++
			continue
		}
		a.Ever += p.ever(s, &sites[i], a.Count-a.Ever)
		after := p.after(s, sites[i], places[i])
		why[refusal(s, &after)]++
		a.piece(s, &after)
	}
	for text, nodes := range why {
		a.Refusals = append(a.Refusals, Refusal{text, nodes})
	}
	slices.SortFunc(a.Refusals, func(x, y Refusal) int {
		return cmp.Or(cmp.Compare(y.Nodes, x.Nodes), strings.Compare(x.Why, y.Why))
	})
	return a
}

// after is a site with n members of s on it.
func (p *planner) after(s *shape, st site, n int) site {
	if n == 0 {
		return st
	}
	plans := s.pack(&st, n)
	for i := range plans {
		pod := p.members[s.member(i)].Pod
		st = st.put(pod, s.needs, plans[i], s.roles)
	}
	return st
}

// member is the position of the i-th member of s.
func (s *shape) member(i int) int {
	for _, g := range s.groups {
		if i < len(g.members) {
			return g.members[i]
		}
		i -= len(g.members)
	}
	return 0
}

// refusal says what keeps one more copy of s off a site, empty if nothing does.
func refusal(s *shape, st *site) string {
	if reason := s.check(st); reason != "" {
		return string(reason)
	}
	if ok, lacks := Fits(st.free, s.needs); !ok {
		return lackOf(lacks, s.needs)
	}
	return ""
}

// lackOf says that a node has less of a resource than a pod asks for.
func lackOf(name corev1.ResourceName, needs Resources) string {
	var q *resource.Quantity
	switch name {
	case corev1.ResourcePods:
		return "the node takes no further pods"
	case corev1.ResourceCPU:
		q = resource.NewMilliQuantity(needs.MilliCPU, resource.DecimalSI)
	case corev1.ResourceMemory:
		q = resource.NewQuantity(needs.Memory, resource.BinarySI)
	case corev1.ResourceEphemeralStorage:
		q = resource.NewQuantity(needs.Ephemeral, resource.BinarySI)
	default:
		q = resource.NewQuantity(needs.Of(name), resource.DecimalSI)
	}
	return "the scheduler counts less than " + q.String() + " " + string(name) + " free"
}

// ever is how many copies of s, at most limit, a site would take without any
// other pod.
func (p *planner) ever(s *shape, st *site, limit int) int {
	if limit == 0 {
		return 0
	}
	all := make(map[types.UID]bool, len(st.gpus.Claims()))
	for _, r := range st.gpus.Claims() {
		all[r.Pod.UID] = true
	}
	empty := site{node: st.node, gpus: st.gpus.Without(all), free: s.needs.times(limit)}
	if st.node.Allocatable.Pods > 0 {
		empty.free = st.node.Allocatable
	}
	return p.copies(s, &empty, limit)
}

// piece notes the biggest part of a GPU on st that one more pod might have
// used, were it bigger.
func (a *Ask) piece(s *shape, st *site) {
	if len(s.request.Demands) != 1 {
		return
	}
	d := &s.request.Demands[0]
	if d.Whole || d.Count > 1 {
		return
	}
	for i := range st.gpus.GPUs() {
		g := &st.gpus.GPUs()[i]
		usable := g.Healthy && s.request.AllowsModel(g.Class.Model) && (!s.request.RequireIsolation || g.Class.Isolation.Enforced())
		if !usable || g.Free <= 0 || g.Free >= d.SharesOn(g.Class.MemoryMiB, st.gpus.SharesPerGPU()) {
			continue
		}
		memory := units.MiB(0)
		if d.Memory > 0 {
			memory = units.MemoryForShares(g.Free, g.Class.MemoryMiB, st.gpus.SharesPerGPU())
		}
		if memory > a.PieceMiB || memory == a.PieceMiB && g.Free > a.Piece {
			a.Piece, a.PieceMiB, a.PieceNode = g.Free, memory, st.node.Name
		}
	}
}

// describe says in words what a pod asks of GPUs, or of the node if it uses
// none.
func (s *shape) describe() string {
	if s.plain() {
		return describePlain(s.needs)
	}
	req := s.request
	parts := make([]string, 0, len(req.Demands))
	for i := range req.Demands {
		parts = append(parts, describeDemand(&req.Demands[i]))
	}
	text := strings.Join(parts, " + ")
	if len(parts) > 1 {
		text = "(" + text + ")"
	}
	if len(req.Models) > 0 {
		text += " on " + strings.Join(req.Models, " or ")
	}
	return text
}
