package gang_test

import (
	"fmt"
	"slices"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/gang"
	"github.com/tranche-dev/tranche/pkg/units"
)

// stock is what nodes have left, in the plainest form.
type stock struct {
	gpus map[contract.GPUUUID]units.Shares
	rest map[string]gang.Resources
}

func stockOf(w *world) stock {
	s := stock{map[contract.GPUUUID]units.Shares{}, map[string]gang.Resources{}}
	for _, n := range w.nodes {
		s.rest[n.Name] = n.Free
		for _, g := range n.GPUs.GPUs() {
			s.gpus[g.Facts.UUID] = g.Free
			for _, c := range n.GPUs.Claims() {
				if w.opts.Without[c.Pod.UID] {
					s.gpus[g.Facts.UUID] += c.On(g.Facts.UUID)
				}
			}
		}
	}
	return s
}

// take charges a member; false, with nothing changed, if there is no room.
func (s *stock) take(m *gang.Member, node string, plan contract.Plan) bool {
	charges := plan.Charges(rolesOf(m))
	for gpu, n := range charges {
		if s.gpus[gpu] < n {
			return false
		}
	}
	if ok, _ := gang.Fits(s.rest[node], m.Needs); !ok {
		return false
	}
	for gpu, n := range charges {
		s.gpus[gpu] -= n
	}
	s.rest[node] = s.rest[node].Sub(m.Needs)
	return true
}

func (s *stock) give(m *gang.Member, node string, plan contract.Plan) {
	for gpu, n := range plan.Charges(rolesOf(m)) {
		s.gpus[gpu] += n
	}
	s.rest[node] = s.rest[node].Add(m.Needs)
}

func rolesOf(m *gang.Member) []contract.ContainerRole {
	var roles []contract.ContainerRole
	for _, d := range m.Request.Demands {
		roles = append(roles, d.ContainerRole)
	}
	return roles
}

// oracle tries everything: whether there is a placement at all.
type oracle struct {
	w     *world
	stock stock
	// domain restricts the nodes, if any does.
	domain string
	dead   map[string]bool
}

func possible(w *world) bool {
	domains := []string{""}
	if t := w.topology; t != nil && t.Required {
		domains = []string{"a", "b", "c"}
		if t.Domain != "" {
			domains = []string{t.Domain}
		}
	}
	return slices.ContainsFunc(domains, func(d string) bool {
		o := oracle{w, stockOf(w), d, map[string]bool{}}
		return o.from(0)
	})
}

// from places members[k:].
func (o *oracle) from(k int) bool {
	if k == len(o.w.members) {
		return true
	}
	key := fmt.Sprint(k, o.stock)
	if o.dead[key] {
		return false
	}
	m := &o.w.members[k]
	for _, n := range o.w.nodes {
		if !allowed(o.w, m, n) || o.domain != "" && n.Labels[zone] != o.domain {
			continue
		}
		found := everyPlan(m.Request, n, func(p contract.Plan) bool {
			if !o.stock.take(m, n.Name, p) {
				return false
			}
			defer o.stock.give(m, n.Name, p)
			return o.from(k + 1)
		})
		if found {
			return true
		}
	}
	o.dead[key] = true
	return false
}

// allowed says whether a member may be on a node at all.
func allowed(w *world, m *gang.Member, n *gang.Node) bool {
	match, _ := m.Constraints.Match(n)
	return match && !m.Avoid[n.Name] && (len(m.Request.Demands) == 0 || n.GPUs.SharesPerGPU() == w.opts.Resources.PerGPU)
}

// everyPlan calls try with all plans that give a request GPUs of n, until one
// is good.
func everyPlan(req contract.Request, n *gang.Node, try func(contract.Plan) bool) bool {
	p := contract.Plan{Version: 1, Node: n.Name, Containers: map[string][]contract.Grant{}}
	var container func(i int) bool
	container = func(i int) bool {
		if i == len(req.Demands) {
			return try(p)
		}
		d := req.Demands[i]
		if req.SameGPUs && i > 0 {
			var grants []contract.Grant
			for _, g := range p.Containers[req.Demands[0].Name] {
				grants = append(grants, grant(d, n, g.GPU))
			}
			p.Containers[d.Name] = grants
			return container(i + 1)
		}
		return everySet(len(n.GPUs.GPUs()), d.Count, func(set []int) bool {
			var grants []contract.Grant
			for _, at := range set {
				g := n.GPUs.GPUs()[at]
				if !g.Healthy || !req.AllowsModel(g.Facts.Model) || d.Memory > g.Facts.MemoryMiB {
					return false
				}
				grants = append(grants, d.GrantOn(*g.Facts, 100))
			}
			p.Containers[d.Name] = grants
			return container(i + 1)
		})
	}
	return container(0)
}

func grant(d contract.Demand, n *gang.Node, gpu contract.GPUUUID) contract.Grant {
	for _, g := range n.GPUs.GPUs() {
		if g.Facts.UUID == gpu {
			return d.GrantOn(*g.Facts, 100)
		}
	}
	panic("no such GPU: " + gpu)
}

// everySet calls try with all sets of k of n, until one is good.
func everySet(n, k int, try func([]int) bool) bool {
	var set []int
	var grow func(from int) bool
	grow = func(from int) bool {
		if len(set) == k {
			return try(set)
		}
		for i := from; i < n; i++ {
			set = append(set, i)
			if grow(i + 1) {
				return true
			}
			set = set[:len(set)-1]
		}
		return false
	}
	return grow(0)
}

// wrong says what is not right about places, empty if nothing is.
func wrong(w *world, places []gang.Place) string {
	if len(places) != len(w.members) {
		return fmt.Sprintf("%d places for %d members", len(places), len(w.members))
	}
	s := stockOf(w)
	byName := map[string]*gang.Node{}
	for _, n := range w.nodes {
		byName[n.Name] = n
	}
	domains := map[string]bool{}
	for i, p := range places {
		m, n := &w.members[i], byName[p.Node]
		if m.Pinned != "" {
			if p.Node != m.Pinned || fmt.Sprint(p.Plan) != fmt.Sprint(m.Plan) {
				return fmt.Sprintf("pinned %s moved", m.Pod.Name)
			}
			if n == nil {
				continue
			}
		} else if n == nil || !allowed(w, m, n) {
			return fmt.Sprintf("%s is on %q, where it may not be", m.Pod.Name, p.Node)
		}
		domains[n.Labels[zone]] = true
		if m.Pinned == "" && !asAsked(m.Request, n, p.Plan) {
			return fmt.Sprintf("%s got %v on %s for %v", m.Pod.Name, p.Plan, p.Node, m.Request)
		}
		if !s.take(m, p.Node, p.Plan) {
			return fmt.Sprintf("no room for %s on %s: %v", m.Pod.Name, p.Node, p.Plan)
		}
	}
	if t := w.topology; t != nil && t.Required && (len(domains) != 1 || domains[""] || t.Domain != "" && !domains[t.Domain]) {
		return fmt.Sprintf("domains %v instead of one (%q)", domains, t.Domain)
	}
	return ""
}

// asAsked says whether a plan is one of all those for the request.
func asAsked(req contract.Request, n *gang.Node, plan contract.Plan) bool {
	want := fmt.Sprint(plan)
	return everyPlan(req, n, func(p contract.Plan) bool { return fmt.Sprint(p) == want })
}
