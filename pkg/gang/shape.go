package gang

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/placement"
)

// ShapeOf returns Member.Shape: equal for members that fit in the same places
// and are placed alike.
func ShapeOf(req contract.Request, needs Resources, c *Constraints, policy placement.Policy) string {
	var b strings.Builder
	for _, d := range req.Demands {
		fmt.Fprintf(&b, "%q %d %d %t %d %d;", d.Name, d.Role, d.Count, d.Whole, d.Shares, d.Memory)
	}
	fmt.Fprintf(&b, "|%t %q %t", req.SameGPUs, req.Models, req.RequireIsolation)
	fmt.Fprintf(&b, "|%d %d %d %d", needs.MilliCPU, needs.Memory, needs.Ephemeral, needs.Pods)
	for _, s := range needs.Scalars {
		fmt.Fprintf(&b, " %q %d", s.Name, s.Value)
	}
	fmt.Fprintf(&b, "|%T%v|%s", policy, policy, c.Key())
	return b.String()
}

// shape is what members of equal Shape have in common, and who they are.
type shape struct {
	// id is the position among the planner's shapes, key Member.Shape.
	id          int
	key         string
	request     contract.Request
	roles       []contract.ContainerRole
	needs       Resources
	constraints *Constraints
	policy      placement.Policy
	// query asks by the members' policy, packing by Binpack.
	query, packing *placement.Query
	groups         []group
	// count is the number of members in all groups.
	count int
	// refused says, per site of the planner, why the shape may never be there,
	// whoever else is; empty if it may. bound bounds how many copies fit there
	// before any is placed.
	refused []string
	bound   []int
	// searched remembers copies of shapes for which that takes a search.
	searched map[string]int
}

// group is the members of a shape that avoid the same nodes.
type group struct {
	avoid map[string]bool
	// members are positions, ascending.
	members []int
}

// shapesOf sorts the members that need a place into shapes, in the order of
// each shape's first member.
func shapesOf(members []Member, opts Options) []*shape {
	var shapes []*shape
	byKey := map[string]*shape{}
	for i := range members {
		m := &members[i]
		if m.Pinned != "" {
			continue
		}
		key := m.Shape
		if key == "" {
			key = ShapeOf(m.Request, m.Needs, m.Constraints, m.Policy)
		}
		s := byKey[key]
		if s == nil {
			s = &shape{id: len(shapes), key: key, request: m.Request, needs: m.Needs, constraints: m.Constraints, policy: m.Policy, searched: map[string]int{}}
			s.query = placement.New(m.Request, placement.Options{Policy: m.Policy, PerGPU: opts.Resources.PerGPU, MilliCPU: m.Needs.MilliCPU})
			s.packing = placement.New(m.Request, placement.Options{PerGPU: opts.Resources.PerGPU})
			s.roles = rolesOf(m.Request)
			byKey[key] = s
			shapes = append(shapes, s)
		}
		s.count++
		at := slices.IndexFunc(s.groups, func(g group) bool { return maps.Equal(g.avoid, m.Avoid) })
		if at < 0 {
			at = len(s.groups)
			s.groups = append(s.groups, group{avoid: m.Avoid})
		}
		s.groups[at].members = append(s.groups[at].members, i)
	}
	return shapes
}
