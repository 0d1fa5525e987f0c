package planner

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/queue"
	"github.com/tranche-dev/tranche/pkg/reclaim"
)

// This file says who might go for others.

// unitsFor lists who might go for a claimant: what runs in queues that have more
// than their share, and what has a lower priority in its own.
func (s *state) unitsFor(rules *rules, now time.Time) []*reclaim.Unit {
	var list []*reclaim.Unit
	for uid, c := range s.counted {
		if c.pod.Node == "" || c.pod.Deleting || c.pod.Ended || !rules.from[c.queue] || s.members[uid] != nil && s.p.opts.Gangs {
			continue
		}
		if u := s.unitOf(string(uid), c.queue, []types.UID{uid}, now); u != nil {
			list = append(list, u)
		}
	}
	if s.p.opts.Gangs {
		for _, g := range s.gangs {
			list = append(list, s.gangUnits(g, rules, now)...)
		}
	}
	slices.SortFunc(list, func(a, b *reclaim.Unit) int { return cmp.Compare(a.ID, b.ID) })
	return list
}

// gangUnits are the members that a gang can spare, each, and the gang. Of a gang
// that is not whole nobody is taken: it is being repaired, or taken back anyway.
func (s *state) gangUnits(g *gangState, rules *rules, now time.Time) []*reclaim.Unit {
	if !g.started || len(g.members) == 0 {
		return nil
	}
	t := s.stand(g)
	var bound []*member
	for _, m := range t.live {
		if m.pod.Node != "" {
			bound = append(bound, m)
		}
	}
	if len(bound) == 0 || t.bound < t.minCount || !rules.from[s.queueName(bound[0].pod.UID)] {
		return nil
	}
	name := s.queueName(bound[0].pod.UID)
	slices.SortFunc(bound, func(a, b *member) int { return older(a.pod, b.pod) })
	id := g.id()
	all := make([]types.UID, 0, len(bound))
	for _, m := range bound {
		all = append(all, m.pod.UID)
	}
	var list []*reclaim.Unit
	if whole := s.unitOf(id, name, all, now); whole != nil {
		list = append(list, whole)
	}
	for _, m := range bound[min(len(bound), max(t.minCount-t.succeeded, 0)):] {
		if u := s.unitOf(string(m.pod.UID), name, []types.UID{m.pod.UID}, now); u != nil {
			rules.part[u] = id
			list = append(list, u)
		}
	}
	return list
}

// goes says whether a pod has been asked to go for somebody already.
func (s *state) goes(uid types.UID) bool {
	for _, r := range s.reservations {
		if r.victims[uid] != nil {
			return true
		}
	}
	return false
}

// unitOf makes a unit of pods of a queue, nil if one of them must stay.
func (s *state) unitOf(id, name string, uids []types.UID, now time.Time) *reclaim.Unit {
	u := &reclaim.Unit{ID: id, Queue: name}
	var charge queue.Amounts
	for _, uid := range uids {
		c := s.counted[uid]
		if c == nil || s.isStubborn(uid, now) || s.goes(uid) {
			return nil
		}
		has, ok := s.tree.Charged(uid)
		if !ok || has.State != queue.Allocated {
			return nil
		}
		charge = charge.Add(has.Amounts)
		u.Priority = max(u.Priority, c.pod.Priority)
		if c.pod.Started.After(u.Started) {
			u.Started = c.pod.Started
		}
		pod := reclaim.Pod{UID: uid, Node: c.pod.Node}
		if usage := s.usage[uid]; usage != nil {
			pod.Needs = usage.Needs
		}
		u.Pods = append(u.Pods, pod)
	}
	u.Charge = charge
	return u
}
