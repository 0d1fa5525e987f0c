package reclaim

import (
	"maps"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/gang"
)

// hopeless says what still lacks once every unit is gone that may be taken
// first; nil if nothing does. If it is hopeless, nothing is taken any more.
func (s *selection) hopeless() *gang.Shortfall {
	returnAll(s.Rules, s.set)
	nodes, opts, evicted := s.evictAll()
	if evicted == 0 {
		return s.noVictims()
	}
	if _, short := gang.Plan(nodes, s.Members, s.Topology, opts); short != nil {
		short.Evicted = evicted
		return short
	}
	for _, u := range s.set {
		s.Rules.Take(u)
	}
	return nil
}

// evictAll returns what gang.Plan takes, without all units that may be taken
// first, and how many pods those are.
func (s *selection) evictAll() (nodes []*gang.Node, opts gang.Options, evicted int) {
	opts = s.Options
	opts.Without = make(map[types.UID]bool, len(s.Options.Without)+len(s.Units))
	maps.Copy(opts.Without, s.Options.Without)
	freed := map[int]gang.Resources{}
	for i, u := range s.Units {
		if len(s.on[i]) == 0 || !s.Rules.MayTake(u) {
			continue
		}
		evicted += len(u.Pods)
		for _, pod := range u.Pods {
			opts.Without[pod.UID] = true
			if at, ok := s.at[pod.Node]; ok {
				freed[at] = freed[at].Add(pod.Needs)
			}
		}
	}
	for at := range s.sites {
		node := *s.sites[at].node
		node.Free = node.Free.Add(freed[at])
		nodes = append(nodes, &node)
	}
	return nodes, opts, evicted
}

// noVictims is the shortfall where units would help, but none that may be
// taken.
func (c *cluster) noVictims() *gang.Shortfall {
	_, short := gang.Plan(c.Nodes, c.Members, c.Topology, c.Options)
	if short == nil {
		short = &gang.Shortfall{}
	}
	short.Reason = gang.NoVictims
	return short
}
