package planner

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/gang"
	"github.com/tranche-dev/tranche/pkg/queue"
)

// gangAsk is the queue of the chosen members of a gang and what those that have no place would
// be charged at least.
func (s *state) gangAsk(chosen []*member) (string, queue.Amounts) {
	var name string
	var ask queue.Amounts
	for _, m := range chosen {
		c := s.counted[m.pod.UID]
		if c == nil {
			continue
		}
		name = c.queue
		if m.place == nil {
			ask = ask.Add(c.ask)
		}
	}
	return name, ask
}

// gangAdmits says why the queue of g does not take the chosen members.
func (s *state) gangAdmits(g *gangState, chosen []*member) *reason {
	s.settleBooks()
	name, ask := s.gangAsk(chosen)
	if name == "" || ask.IsZero() {
		return nil
	}
	why := s.admits(name, g.key.Namespace, gangOrPod(chosen), ask, g.replaced()...)
	if why == nil && !g.started {
		why = s.yields(g.id(), name, gangOrPod(chosen), chosen[0].pod.Priority, ask, s.p.opts.Clock.Now())
	}
	if why == nil {
		if _, some := s.narrowed(chosen[0].pod.Request, name, s.wants(chosen[0].pod.UID)); !some && chosen[0].pod.UsesGPU {
			why = s.modelsFull(name)
		}
	}
	return why
}

// gangMayHold says why the queue of g does not let the chosen members hold what
// was found, which may be more than the least that was asked about.
func (s *state) gangMayHold(g *gangState, chosen []*member, found []gang.Place) *reason {
	if !s.p.opts.Queues {
		return nil
	}
	var more queue.Amounts
	name := ""
	for i, m := range chosen {
		c := s.counted[m.pod.UID]
		if c == nil {
			continue
		}
		name = c.queue
		cost := s.planCost(m.pod, found[i].Plan, found[i].Node)
		if has, ok := s.tree.Charged(m.pod.UID); ok && has.State != queue.Pending {
			cost = cost.Sub(has.Amounts)
		}
		more = more.Add(cost)
	}
	if more = beyond(more, nil); more.IsZero() {
		return nil
	}
	return s.admits(name, g.key.Namespace, gangOrPod(chosen), more, g.replaced()...)
}

func gangOrPod(chosen []*member) string {
	if len(chosen) == 1 {
		return "the pod"
	}
	return fmt.Sprintf("the gang of %d", len(chosen))
}

// setAsleep notes whether the members of g are demand of their queue.
func (s *state) setAsleep(g *gangState, asleep bool) {
	if g.asleep == asleep {
		return
	}
	g.asleep = asleep
	for uid := range g.members {
		s.book(uid)
	}
}

// queueOfGang is the queue of g, nil if there is no such object.
func (s *state) queueOfGang(g *gangState) *view.Queue {
	for uid := range g.members {
		if c := s.counted[uid]; c != nil {
			if q := s.queues[c.queue]; q != nil {
				return q.view
			}
			return nil
		}
	}
	return nil
}

// holdTimeout is how long places are kept for g without progress: as its queue
// says, else as is set. Members may wait in Bind for that long, so it is never
// less than they may.
func (s *state) holdTimeout(g *gangState) time.Duration {
	if q := s.queueOfGang(g); q != nil && q.HoldTimeout != nil {
		return max(*q.HoldTimeout, s.p.opts.GangBindTimeout+time.Second)
	}
	return s.p.opts.GangHoldTimeout
}

// staleness is how long g may be below its minimum, if its object does not say.
func (s *state) staleness(g *gangState) time.Duration {
	if q := s.queueOfGang(g); q != nil && q.Staleness != nil {
		return *q.Staleness
	}
	return s.p.opts.StalenessGracePeriod
}

// inQueue adds to a reason for which there is no room what the gang asks of its
// queue, and which budget is in its way.
func (s *state) inQueue(why *reason, chosen []*member) *reason {
	if name, ask := s.gangAsk(chosen); s.divides(name) {
		why.message += s.standingText(name, gangOrPod(chosen), ask)
	}
	return s.withNotes(chosen[0].gang.id(), why)
}

// replaced is what is charged in the place of g's members to come: credits, and
// what lost members had.
func (g *gangState) replaced() []types.UID {
	list := []types.UID{creditFor(g.id())}
	for uid := range g.vacancies {
		list = append(list, uid)
	}
	return list
}
