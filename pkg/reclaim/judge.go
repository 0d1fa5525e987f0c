package reclaim

import (
	"maps"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/gang"
)

// maxPlans bounds how often one Select asks gang.Plan.
const maxPlans = 200

// manyKinds is from where on it costs more to leave out nodes than to plan on
// them.
const manyKinds = 8

// judge asks gang.Plan whether the members fit without some units.
type judge struct {
	c *cluster
	// takes says which sites take any member as they are.
	takes []bool
	plans int
	// invalid is set if no places will help.
	invalid *gang.Shortfall
}

func newJudge(c *cluster) *judge {
	j := &judge{c: c, takes: make([]bool, len(c.sites))}
	for i := range c.sites {
		j.takes[i] = j.useful(i, &c.sites[i])
	}
	return j
}

// useful says whether a node can make a difference to gang.Plan: if it takes
// any member at all, or has some already.
func (j *judge) useful(at int, st *site) bool {
	if j.c.pinned[at] || len(j.c.kinds) > manyKinds {
		return true
	}
	for _, k := range j.c.kinds {
		if k.allowed[at] && k.fits(st) {
			return true
		}
	}
	return false
}

// fits returns places for all members once the units are gone; nil if there
// are none, or if it has been asked too often.
func (j *judge) fits(units []*Unit) []gang.Place {
	if j.plans++; j.plans > maxPlans {
		return nil
	}
	c, opts := j.c, j.c.Options
	opts.Without = make(map[types.UID]bool, len(opts.Without)+podsOf(units))
	maps.Copy(opts.Without, c.Options.Without)
	freed := map[int]gang.Resources{}
	for _, u := range units {
		for i := range u.Pods {
			opts.Without[u.Pods[i].UID] = true
			if at, ok := c.at[u.Pods[i].Node]; ok {
				freed[at] = freed[at].Add(u.Pods[i].Needs)
			}
		}
	}
	var nodes []*gang.Node
	for at := range c.sites {
		st := c.sites[at]
		more, changed := freed[at]
		if !changed {
			if j.takes[at] {
				nodes = append(nodes, st.node)
			}
			continue
		}
		node := *st.node
		node.Free = node.Free.Add(more)
		st.free, st.gpus = st.free.Add(more), st.gpus.Without(opts.Without)
		if j.takes[at] || j.useful(at, &st) {
			nodes = append(nodes, &node)
		}
	}
	places, short := gang.Plan(nodes, c.Members, c.Topology, opts)
	if short != nil && short.Reason == gang.InvalidMember {
		j.invalid = short
	}
	return places
}
