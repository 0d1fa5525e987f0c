package simulate

import (
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/placement"
	"github.com/tranche-dev/tranche/pkg/placement/waste"
	"github.com/tranche-dev/tranche/pkg/units"
)

// Always places every pod by one policy.
func Always(p placement.Policy) Chooser { return always{p} }

type always struct{ policy placement.Policy }

func (a always) Choose(*Pod) placement.Policy { return a.policy }

// LeastWaste places pods by the policy of that name, which learns from the
// arrivals as they come and knows nothing of those to come.
func LeastWaste(c *Cluster) Chooser {
	l := &learning{learner: waste.NewLearner(), cluster: c.Kinds(), perGPU: c.PerGPU}
	l.policy = placement.LeastWaste(l.learner.Tables(l.cluster))
	return l
}

type learning struct {
	learner *waste.Learner
	cluster waste.Cluster
	perGPU  units.Shares
	policy  placement.Policy
}

func (l *learning) Choose(p *Pod) placement.Policy {
	if l.learner.Observe(waste.ShapeOf(p.Request, p.MilliCPU, l.perGPU)) {
		l.policy = placement.LeastWaste(l.learner.Tables(l.cluster))
	}
	return l.policy
}

// Kinds sums up the nodes for package waste.
func (c *Cluster) Kinds() waste.Cluster {
	l := ledger.New()
	offers := map[string]int64{}
	for i := range c.Nodes {
		l.SetNode(c.Nodes[i].Name, c.Nodes[i].Inventory)
		offers[c.Nodes[i].Name] = c.Nodes[i].MilliCPU
	}
	return waste.ClusterOf(l.Snapshot(), func(node string) int64 { return offers[node] })
}
