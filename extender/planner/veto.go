package planner

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/queue"
)

// This file keeps the scheduler's own preemption from doing harm: it goes by
// priority alone and knows neither gangs nor queues.

// spares says whether pods may go for another one as far as gangs and queues
// are concerned: no gang that is whole may be left in part, and no other queue
// be left with less than it deserves.
func (s *state) spares(pod *view.Pod, victims []types.UID) bool {
	return s.gangsStayWhole(victims) && s.queuesKeepDeserved(pod, victims)
}

func (s *state) gangsStayWhole(victims []types.UID) bool {
	if !s.p.opts.Gangs {
		return true
	}
	lost := map[*gangState]int{}
	for _, uid := range victims {
		if m := s.members[uid]; m != nil {
			lost[m.gang]++
		}
	}
	for g, n := range lost {
		if t := s.stand(g); t.bound-n < t.minCount && n < t.bound-t.succeeded {
			return false
		}
	}
	return true
}

func (s *state) queuesKeepDeserved(pod *view.Pod, victims []types.UID) bool {
	if !s.p.opts.Queues {
		return true
	}
	s.settleBooks()
	mine := map[string]bool{}
	for _, name := range s.upward(s.queueFor(pod)) {
		mine[name] = true
	}
	lost := map[string]queue.Amounts{}
	for _, uid := range victims {
		c, ok := s.tree.Charged(uid)
		if !ok {
			continue
		}
		for _, name := range s.upward(c.Queue) {
			if !mine[name] {
				lost[name] = lost[name].Add(c.Amounts)
			}
		}
	}
	for name, n := range lost {
		u := s.tree.Usage(name)
		left := u.Allocated.Add(u.Held).Sub(n)
		for r := range n {
			if n[r] > 0 && left.Get(queue.Resource(r)) < u.Deserved.Get(queue.Resource(r)) {
				return false
			}
		}
	}
	return true
}
