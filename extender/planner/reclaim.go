package planner

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
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
	for _, at := range l.byName {
		for _, i := range at.failed {
			s.noteWant(at.queue, i, now)
		}
		for _, i := range at.short {
			s.noteWant(at.queue, i, now)
		}
	}
	if !s.p.opts.Queues {
		return
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

// begin asks the victims to go and puts by what they leave.
func (s *state) begin(log logr.Logger, w *want, result *reclaim.Result, now time.Time) {
	var evictions []Eviction
	grace := time.Duration(0)
	reserved := s.putBy(w, result.Places, now, now)
	for _, u := range result.Victims {
		event, message := eventReclaimed, fmt.Sprintf("Evicted from queue %s, which uses more than its fair share, for %s of queue %s, which is entitled to what it had.", u.Queue, w.text(), w.queue)
		if u.Queue == w.queue {
			event, message = eventPreempted, fmt.Sprintf("Evicted for %s of the same queue %s, which has a higher priority (%d, against %d).", w.text(), w.queue, w.priority, u.Priority)
		}
		for _, p := range u.Pods {
			c := s.counted[p.UID]
			if c == nil {
				continue
			}
			told := message + " " + afterwards(c.pod)
			charged, _ := s.tree.Charged(p.UID)
			reserved.victims[p.UID] = &victim{pod: ref(c.pod), asked: now, charge: charged.Amounts}
			grace = max(grace, min(c.pod.Grace, mostGrace))
			s.expelled[p.UID] = true
			evictions = append(evictions, Eviction{ref(c.pod), event, told})
		}
	}
	reserved.until = now.Add(grace + goneWithin)
	if len(evictions) > 0 {
		s.made(w, now)
		s.p.effects.EvictTogether(evictions)
	}
	s.p.metrics.Reclaims.WithLabelValues(w.queue).Inc()
	w.explain(s, len(reserved.victims))
	if q := s.queues[w.queue]; q != nil {
		q.fresh = true // those behind it may have room made as well
	}
	log.Info("Room is made", "for", w.text(), "queue", w.queue, "victims", len(reserved.victims))
	s.topUp(now)
}

// afterwards says what becomes of an evicted pod.
func afterwards(pod *view.Pod) string {
	switch pod.Controller {
	case "":
		return "It has no controller, so nobody makes it anew."
	case "Job":
		return "Unless its Job gives up, a new pod takes its place and waits in the queue: let spec.podFailurePolicy of the Job ignore the condition DisruptionTarget, else evictions count against its backoffLimit."
	default:
		return "Its " + pod.Controller + " makes it anew, and it waits in its queue again."
	}
}

// text names it.
func (w *want) text() string {
	if w.pod != nil {
		return fmt.Sprintf("pod %s/%s", w.namespace, w.name)
	}
	return fmt.Sprintf("gang %s/%s", w.namespace, w.name)
}

// explain says what it waits for now.
func (w *want) explain(s *state, victims int) {
	why := &reason{v1alpha1.ReasonReclaiming, fmt.Sprintf("%s in the way of what it asks for in queue %s; what they leave is kept for it", stand(victims), w.queue), 0}
	if victims == 0 {
		why.message = fmt.Sprintf("pods that are on their way out leave enough for what it asks for in queue %s, which is kept for it", w.queue)
	}
	if w.pod != nil {
		s.tellPod(w.pod, why, s.p.opts.Clock.Now())
		return
	}
	w.gang.wait(why)
	w.gang.dirty = true
}

func stand(victims int) string {
	if victims == 1 {
		return "1 pod has been asked to go that stands"
	}
	return fmt.Sprintf("%d pods have been asked to go that stand", victims)
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

// anyoneWent says whether victims of a reservation have gone or are about to.
func (s *state) anyoneWent(r *reservation) bool {
	if !r.credit.IsZero() {
		return true
	}
	for uid := range r.victims {
		if c := s.counted[uid]; c == nil || c.pod.Deleting {
			return true
		}
	}
	return false
}

// evictionRefused leaves pods alone that a disruption budget keeps: others must
// do.
func (s *state) evictionRefused(why string, uids []types.UID, now time.Time) {
	for _, uid := range uids {
		s.leaveAlone(uid, now)
	}
	for _, id := range slices.Sorted(maps.Keys(s.reservations)) {
		r := s.reservations[id]
		if !slices.ContainsFunc(uids, func(uid types.UID) bool { return r.victims[uid] != nil }) {
			continue
		}
		if !s.anyoneWent(r) {
			s.unmade(r.want)
		}
		s.endReservation(id, now)
		r.want.next = now
		r.want.keep(s, why, uids)
		r.want.stir(s)
	}
}
