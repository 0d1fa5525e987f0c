package planner

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/gang"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/queue"
	"github.com/tranche-dev/tranche/pkg/reclaim"
)

// This file makes room for those that are entitled to it. Package reclaim finds
// the victims, on nodes as they will be when everybody who is on the way out has
// gone; the queue tree says who may be taken.

// The reasons of events on victims.
const (
	eventReclaimed = "Reclaimed"
	eventPreempted = "Preempted"
	eventDrained   = "QueueDrained"
)

// makeRoom looks after a round at those that found none.
func (r *round) makeRoom(log logr.Logger, l *lanes, now time.Time) {
	s := r.s
	if !s.p.opts.Queues {
		return
	}
	for _, at := range l.byName {
		for _, i := range at.failed {
			s.noteWant(at.queue, i, now)
		}
		for _, i := range at.short {
			s.noteWant(at.queue, i, now)
		}
	}
	s.forgetWants()
	r.noteStuck()
	if s.p.opts.Reclaim && r.reclaim(log, now) {
		return // one at a time: the next look sees what this one did
	}
	r.standBy(log, now)
}

// reclaim lets those that wait have their turns until one of them has begun to
// have room made.
func (r *round) reclaim(log logr.Logger, now time.Time) (began bool) {
	s := r.s
	start := s.p.opts.Clock.Now()
	vain := map[equals]*want{}
	for _, w := range s.wantsInOrder(func(w *want) bool {
		return s.reservations[w.id] == nil && s.rested(w, now) && (!now.Before(w.next) || w.specs != s.specs)
	}) {
		w.specs = s.specs
		if w.pod != nil {
			if equal := vain[w.equals()]; equal != nil {
				w.later(now)
				w.next = equal.next
				continue
			}
		}
		if s.inFlight() >= s.p.opts.EvictionsInFlight || s.p.opts.Clock.Since(start) > planBudget {
			break
		}
		failures := w.failures
		if r.reclaimFor(log, w, now) {
			s.gangsDirty = true
			return true
		}
		if w.pod != nil && w.failures > failures {
			vain[w.equals()] = w
		}
	}
	return false
}

// equals are single pods for which the same can be done.
type equals struct {
	kin
	priority int32
}

func (w *want) equals() equals {
	return equals{kin{w.queue, w.pod.shapeID}, w.priority}
}

// forgetWants drops those that have what they wanted, or are gone. Who comes to
// the front of their queue in their place may have room made.
func (s *state) forgetWants() {
	left := map[string]bool{}
	for id, w := range s.wanting {
		if !w.alive(s) {
			delete(s.wanting, id)
			left[w.queue] = true
		}
	}
	if len(left) == 0 {
		return
	}
	for name := range left {
		if q := s.queues[name]; q != nil && q.backlog > 0 {
			q.fresh, s.gangsDirty = true, true
		}
	}
	for _, g := range s.gangs {
		if g.why == nil || g.asleep {
			continue
		}
		if name, _ := s.gangAsk(slices.Collect(maps.Values(g.members))); left[name] {
			g.dirty, g.tried, s.gangsDirty = true, 0, true
		}
	}
}

// noteStuck says in which queues somebody waits who is entitled to what he asks.
func (r *round) noteStuck() {
	s := r.s
	stuck := map[string]bool{}
	for _, w := range s.wanting {
		if !stuck[w.queue] && r.trialFor(w).Entitled() {
			stuck[w.queue] = true
		}
	}
	r.noteShort()
	for name, q := range s.queues {
		if q.stuck != stuck[name] {
			q.stuck = stuck[name]
			s.gatesStale = true
			s.tell()
		}
	}
}

// noteShort finds those for whom quota is kept; see yields.
func (r *round) noteShort() {
	s := r.s
	short := map[string]*want{}
	for _, w := range s.wanting {
		if w.limitedBy == "" || !s.tree.EntitledBelow(w.queue, w.ask, w.limitedBy) {
			continue
		}
		if o := short[w.limitedBy]; o == nil || cmp.Or(w.created.Compare(o.created), cmp.Compare(w.id, o.id)) < 0 {
			short[w.limitedBy] = w
		}
	}
	for above, w := range s.short {
		if short[above] != w {
			s.capacity++ // others may go on
			s.gangsDirty = true
		}
	}
	s.short = short
}

// wantsInOrder lists some of them as the queues' shares say.
func (s *state) wantsInOrder(which func(w *want) bool) []*want {
	byQueue := map[string][]*want{}
	for _, w := range s.wanting {
		if which(w) {
			byQueue[w.queue] = append(byQueue[w.queue], w)
		}
	}
	if len(byQueue) == 0 {
		return nil
	}
	contest := s.tree.Contest()
	set := func(name string) {
		list := byQueue[name]
		if len(list) == 0 {
			contest.Clear(name)
			return
		}
		contest.Set(name, queue.Head{Ask: list[0].ask, Priority: list[0].priority, Created: list[0].created, ID: list[0].id})
	}
	for name, list := range byQueue {
		slices.SortFunc(list, func(a, b *want) int {
			return cmp.Or(cmp.Compare(b.priority, a.priority), a.created.Compare(b.created), cmp.Compare(a.id, b.id))
		})
		if s.tree.Leaf(name) {
			set(name)
		}
	}
	var order []*want
	for {
		name, ok := contest.Next()
		if !ok {
			return order
		}
		order = append(order, byQueue[name][0])
		byQueue[name] = byQueue[name][1:]
		set(name)
	}
}

// reclaimFor tries to make room for w, and says whether it began to.
func (r *round) reclaimFor(log logr.Logger, w *want, now time.Time) bool {
	s := r.s
	rules := r.rulesFor(w, now)
	if rules == nil {
		w.later(now)
		return false
	}
	patience := surplusPatience
	if rules.trial.WithinDeserved() {
		patience = deservedPatience
	}
	if due := w.since.Add(max(rules.delay, patience)); now.Before(due) {
		w.next = due
		return false
	}
	members, topology := w.seek(s, now)
	if len(members) == 0 {
		return false
	}
	problem := reclaim.Problem{
		Members: members, Topology: topology, Options: gang.Options{Resources: s.p.opts.Resources},
		Units: s.unitsFor(rules, now), Rules: rules, MostVictims: s.p.opts.EvictionsInFlight - s.inFlight(),
	}
	problem.Nodes = r.asIfSettled(w)
	result, _ := reclaim.Select(problem)
	if result == nil {
		w.later(now)
		rules.spareYoung(now)
		if q := s.queues[w.queue]; q != nil && w.failures == 1 {
			q.fresh, s.gangsDirty = true, true // somebody behind it may be luckier
		}
		return false
	}
	w.failures = 0
	w.next = now
	w.kept = ""
	s.begin(log, w, result, now)
	return true
}

// Before anybody is evicted it is waited for a moment, since pods come in bursts,
// and what the first of them is entitled to may be another queue's when all are
// there. What a queue deserves is its own whoever comes; its part of the surplus
// is not.
const (
	deservedPatience = 200 * time.Millisecond
	surplusPatience  = 2 * time.Second
)

// later has w tried again after a while.
func (w *want) later(now time.Time) {
	const most = 30 * time.Second
	w.failures++
	// To the second, so that many are tried in one round.
	w.next = now.Add(min(time.Second<<min(w.failures-1, 6), most)).Truncate(time.Second)
}

// asIfSettled are the nodes as they will be when everybody who is on the way out
// has gone and all other reservations have what they are for.
func (r *round) asIfSettled(w *want) []*gang.Node {
	s := r.s
	r.prepare()
	gone := map[types.UID]bool{}
	free := map[string]gang.Resources{}
	now := s.p.opts.Clock.Now()
	for uid, until := range s.leaving {
		if !s.goesSoon(until, now) {
			continue
		}
		gone[uid] = true
		if u := s.usage[uid]; u != nil {
			free[u.Node] = free[u.Node].Add(u.Needs)
		}
	}
	for uid := range s.lingering {
		gone[uid] = true
	}
	taken := map[string][]ledger.Claim{}
	for _, o := range s.reservations {
		o.seats(gone)
		for uid, v := range o.victims {
			if u := s.usage[uid]; u != nil && !gone[uid] {
				free[u.Node] = free[u.Node].Add(u.Needs)
			}
			gone[v.pod.UID] = true
		}
		if o.want == w {
			continue
		}
		for node, charges := range o.targets {
			taken[node] = append(taken[node], ledger.Claim{Pod: ledger.Pod{UID: o.seat(node)}, Node: node, Charges: charges})
		}
		for i, p := range o.places {
			free[p.Node] = free[p.Node].Sub(o.want.needs(i))
		}
	}
	nodes := make([]*gang.Node, 0, len(r.board.nodes))
	for _, g := range r.board.nodes {
		n := *g
		n.GPUs = n.GPUs.Without(gone)
		for _, claim := range taken[n.Name] {
			n.GPUs = n.GPUs.With(claim)
		}
		if more, ok := free[n.Name]; ok {
			n.Free = n.Free.Add(more)
		}
		nodes = append(nodes, &n)
	}
	return nodes
}

// needs is what the i-th of its pods requests besides GPUs.
func (w *want) needs(i int) gang.Resources {
	switch {
	case w.pod != nil:
		return w.pod.pod.Needs
	case i < len(w.members):
		return w.members[i].pod.Needs
	default:
		return gang.Resources{}
	}
}
