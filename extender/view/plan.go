package view

import (
	"maps"
	"slices"

	"github.com/tranche-dev/tranche/pkg/contract"
)

// Grant is what one container was planned to have of one GPU.
type Grant struct {
	Container string
	contract.Grant
}

// grantsOf is a plan in the order of containers' names. A cluster has a hundred
// thousand of them, and a map takes five times as much memory.
func grantsOf(plan contract.Plan) []Grant {
	n := 0
	for _, grants := range plan.Containers {
		n += len(grants)
	}
	list := make([]Grant, 0, n)
	for _, name := range slices.Sorted(maps.Keys(plan.Containers)) {
		container := Once(name)
		for _, g := range plan.Containers[name] {
			list = append(list, Grant{container, g})
		}
	}
	return list
}

// Planned is the plan that p carries; it names no containers if p has none.
func (p *Pod) Planned() contract.Plan {
	plan := contract.Plan{Version: contract.PlanVersion, Node: p.Node, Containers: map[string][]contract.Grant{}}
	for _, g := range p.Plan {
		plan.Containers[g.Container] = append(plan.Containers[g.Container], g.Grant)
	}
	return plan
}
