package planner

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/queue"
	"github.com/tranche-dev/tranche/pkg/units"
)

// This file has what Filter knows of queues. It may be a moment old: whatever
// holds or commits GPUs asks the tree itself.

// gates is a view of all queues that take pods. It never changes.
type gates struct {
	open map[string]gateOf
	// stuck are the queues in which somebody entitled waits.
	stuck map[string]bool
	// fallback is the default queue.
	fallback string
	// placements are the queues' own policies.
	placements map[string]contract.Placement
}

// gateOf is what a queue has room for.
type gateOf struct {
	// limit and share are in shares of GPUs: below the limits of the queue and
	// all above it, and within what they are entitled to.
	limit, share int64
}

// admitted is where a single pod holds GPUs.
type admitted struct {
	node string
	// kept are the thousandths of processors that are kept for it there.
	kept int64
	// only says that no other node will do, since its queue may have no more of
	// some GPU models.
	only bool
}

// showAdmitted has readers see where a single pod holds GPUs.
func (s *state) showAdmitted(e *pending, node string) {
	a := &admitted{node: node, only: s.modelsLimited(e.pod.UID)}
	if e.kept != nil {
		a.kept = e.kept.needs.MilliCPU
	}
	s.p.admitted.Store(e.pod.UID, a)
}

// modelsLimited says whether a limit on GPU models bears on a pod's queue.
func (s *state) modelsLimited(uid types.UID) bool {
	name := s.queueName(uid)
	if name == "" {
		return false
	}
	room := s.tree.Room(name)
	for r := int(queue.FirstModel); r < len(room); r++ {
		if room[r] != queue.Unlimited {
			return true
		}
	}
	return false
}

// gatesEvery is how often the gates are made anew while charges change.
const gatesEvery = 50 * time.Millisecond

// publishGates makes the gates anew if that is due.
func (p *Planner) publishGates(s *state, now time.Time) {
	if !p.opts.Queues || !s.gatesStale && (!s.gatesDirty || now.Before(s.nextGates)) {
		return
	}
	s.gatesStale, s.gatesDirty, s.nextGates = false, false, now.Add(gatesEvery)
	g := &gates{open: make(map[string]gateOf, len(s.queues)), stuck: map[string]bool{}, fallback: p.opts.DefaultQueue, placements: map[string]contract.Placement{}}
	for name, q := range s.queues {
		if q.view != nil && q.view.Placement != "" {
			g.placements[name] = q.view.Placement
		}
	}
	for _, d := range s.tree.Doors(queue.GPU) {
		g.open[d.Queue] = gateOf{limit: d.Limit, share: d.Share}
		if q := s.queues[d.Queue]; q != nil && q.stuck {
			g.stuck[d.Queue] = true
		}
	}
	p.gates.Store(g)
}

// passes says whether a pod that the planner has not admitted may go on by
// itself: its queue has room, and nobody else is entitled to what it takes
// beyond its queue's share.
func (p *Planner) passes(pod *view.Pod) bool {
	g := p.gates.Load()
	if !p.opts.Queues || g == nil {
		return true
	}
	if _, holds := p.admitted.Load(pod.UID); holds {
		return true // its queue was asked
	}
	if _, waits := p.refused.Load(pod.UID); waits {
		return false // until a round lets it in
	}
	name := pod.Queue
	if name == "" {
		name = g.fallback
	}
	if name == "" {
		return true
	}
	at, ok := g.open[name]
	if !ok {
		return false
	}
	ask := leastShares(pod, p.opts.Resources.PerGPU)
	if ask > at.limit {
		return false
	}
	others := len(g.stuck)
	if g.stuck[name] {
		others--
	}
	return others == 0 || ask <= at.share
}

// leastShares is what a pod takes of GPUs at least.
func leastShares(pod *view.Pod, perGPU units.Shares) int64 {
	var sum int64
	for _, d := range pod.Request.Demands {
		shares := d.Shares
		if d.Whole {
			shares = perGPU
		}
		sum = max(sum, int64(max(shares, 1))*int64(d.Count))
	}
	return sum
}
