package planner

import (
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/gang"
)

const (
	// planPart bounds rounds to a part of the planner's time, however many wait;
	// planBudget is after how long a round is broken off. planPause is the longest
	// between two rounds: who has waited for the first, for victims say, is not to
	// wait for the size of the cluster as well.
	planPart   = 4
	planBudget = 200 * time.Millisecond
	planPause  = 250 * time.Millisecond
	// capFactor bounds how far progress moves a group's deadline, in hold
	// timeouts; backstop is how much later the ledger itself ends a hold.
	capFactor = 5
	backstop  = 30 * time.Second
	// mostAvoided is after how many refused nodes in a row a gang backs off.
	mostAvoided = 8
	// tornFactor is how many hold timeouts a gang of which only a part could be
	// bound may take to become whole before the part is taken back.
	tornFactor = 2
	// evictAgain is when pods that were asked to go are asked again.
	evictAgain = 30 * time.Second
)

// planRound looks at all gangs for which something has changed and at the single
// pods that wait, and plans what can be planned: gangs that have begun first,
// then as the queues' shares say.
func (s *state) planRound(log logr.Logger, now time.Time, timed bool) {
	room := s.served != s.capacity
	if !s.p.Live() || now.Before(s.nextPlan) || !s.gangsDirty && !room && (!timed || !s.expects(now)) {
		return
	}
	if s.divided != s.inventories || s.divideDue {
		s.divided, s.divideDue = s.inventories, false
		s.divideCluster()
	}
	s.settleBooks()
	r := &round{s: s, board: &s.board, failed: map[string]*gang.Shortfall{}, spots: map[spotKey]*spots{}}
	capacity := s.capacity
	s.gangsDirty = false
	done := true
	var due []*dueGang
	l := s.newLanes()
	for _, g := range s.gangs {
		if g.dirty || g.expects(now) || g.why != nil && !g.asleep && g.tried != s.capacity && !now.Before(g.notBefore) {
			due = append(due, &dueGang{g, s.stand(g)})
		}
	}
	slices.SortFunc(due, func(a, b *dueGang) int { return a.compare(b) })
	for i, d := range due {
		if d.contends() {
			l.addGang(d)
			continue
		}
		s.planGang(log, r, d.g, d.t, now)
		l.noteRepair(d)
		if took := s.p.opts.Clock.Since(now); took > planBudget {
			for _, later := range due[i+1:] {
				later.g.dirty, s.gangsDirty = true, true
			}
			done = false
			break
		}
	}
	if done {
		for _, q := range s.queues {
			if q.backlog > 0 && (room || s.newcomers || q.fresh) && !s.standsStill(q) {
				l.addPods(q)
			}
		}
		done = r.serve(log, l, now)
	}
	r.flush()
	if done {
		s.newcomers, s.served = false, capacity
		l.noteLimited()
	} else {
		s.gangsDirty = true
		for name := range l.byName {
			if q := s.queues[name]; q != nil {
				q.fresh = true
			}
		}
	}
	r.makeRoom(log, l, now)
	for _, name := range r.lent {
		s.moved[name] = true
	}
	end := s.p.opts.Clock.Now()
	s.p.metrics.PlanDuration.Observe(max(end.Sub(now), 0).Seconds())
	s.nextPlan = end.Add(min((planPart-1)*end.Sub(now), planPause))
}

// expects says whether time alone changes something about any gang.
func (s *state) expects(now time.Time) bool {
	for _, g := range s.gangs {
		if g.expects(now) {
			return true
		}
	}
	return false
}

// planGang brings one gang as far as it gets, and reports.
func (s *state) planGang(log logr.Logger, r *round, g *gangState, t *standing, now time.Time) {
	g.dirty, g.lacksRoom = false, false
	if !g.notBefore.IsZero() && !now.Before(g.notBefore) {
		g.notBefore, g.tried = time.Time{}, 0
	}
	for _, m := range t.idle {
		if m.place == nil && m.forgives(now) {
			m.avoided(now) // forgets them
			g.tried = 0
		}
	}
	s.settleProgress(log, g, t, now)
	s.expireGang(log, g, t, now)
	why := s.unready(g, t)
	s.setAsleep(g, why != nil && t.committed == 0)
	switch {
	case len(t.live) == 0:
		g.wait(why)
	case why != nil:
		if t.need() > 0 && !g.started {
			s.dropPlaces(g, t.idle, now, "members")
		}
		g.wait(why)
		g.tried = 0
	case t.need() > 0 && !g.started:
		s.planGroup(log, r, g, t, now)
	default:
		s.planEach(log, r, g, t, now)
	}
	s.tell()
	s.tellMembers(g, t, now)
	s.watchTorn(log, g, t, now)
	s.watchStale(log, g, t, now)
	s.spareWhole(g, t)
	s.reportGang(g, s.stand(g), now)
	s.dropGang(g)
}

// settleProgress notes what has been reached.
func (s *state) settleProgress(log logr.Logger, g *gangState, t *standing, now time.Time) {
	switch {
	case t.minCount > 0 && !g.started && t.bound >= t.minCount:
		g.started = true
		g.failures, g.notBefore, g.why = 0, time.Time{}, nil
		g.deadline, g.latest = time.Time{}, time.Time{}
		log.Info("Gang started", "gang", klog.KRef(g.key.Namespace, g.key.Name), "bound", t.bound, "minCount", t.minCount)
	case t.anew, g.started && t.bound == 0 && (t.minCount > 0 || len(t.live) == 0):
		// Everybody has gone: who comes now starts together again.
		g.started = false
	}
	if t.bound == t.succeeded {
		s.fillAll(g, now) // nobody is left to wait for successors
	}
	switch {
	case !g.started:
		g.peak = 0
	case g.peak == 0:
		g.peak = t.minCount
	}
	if g.started && t.bound > g.most {
		g.failures = 0 // what stood in the way was got over
	}
	g.most = t.bound
	// Members that turned out not to be needed for the group any more keep
	// their places each for itself.
	if t.need() == 0 || g.started {
		for _, m := range t.idle {
			if m.place != nil && m.deadline.IsZero() {
				m.deadline = now.Add(s.holdTimeout(g))
			}
			if m.arrival != nil {
				s.commit(m) // whom it waited for is not needed any more
			}
		}
		g.deadline, g.latest = time.Time{}, time.Time{}
	}
}

// planGroup finds places for all that g needs to start.
func (s *state) planGroup(log logr.Logger, r *round, g *gangState, t *standing, now time.Time) {
	var why *reason
	need := t.need()
	if t.placed >= need {
		g.pacify()
		if t.placed > need {
			s.commitCome(g, t, now) // fewer are needed than were
		}
		return // it has them; the scheduler is at work
	}
	if now.Before(g.notBefore) || g.tried == s.capacity && g.why != nil && t.placed == 0 {
		return
	}
	slices.SortFunc(t.idle, preferred)
	chosen := t.idle[:need]
	if why := s.gangAdmits(g, chosen); why != nil {
		s.dropPlaces(g, t.idle, now, "quota")
		g.tried = s.capacity
		g.wait(why)
		return
	}
	// Whom the scheduler knows to have a place keeps it if that is possible,
	// whom it has accepted there all the more.
	for _, keep := range []keeper{
		func(m *member) bool { return m.place != nil },
		func(m *member) bool { return m.arrival != nil },
		keepNone,
	} {
		found, short := r.plan(g, chosen, t, keep, false, now)
		if short == nil {
			why = s.gangMayHold(g, chosen, found)
			if why != nil {
				// Of one model it may be too much, and of several not.
				if found, short = r.plan(g, chosen, t, keep, true, now); short == nil {
					why = s.gangMayHold(g, chosen, found)
				}
			}
			if why != nil {
				break
			}
			s.place(log, g, chosen, found, keep, now)
			g.deadline = now.Add(s.holdTimeout(g))
			g.latest = now.Add(capFactor * s.holdTimeout(g))
			return
		}
		why = s.inQueue(&reason{string(short.Reason), short.Message(), 0}, chosen)
		g.lacksRoom = true
		if t.placed == 0 {
			break
		}
	}
	s.dropPlaces(g, t.idle, now, "displaced")
	g.tried = s.capacity
	g.wait(why)
}

// keeper says which of the members that have a place are to keep it.
type keeper func(*member) bool

func keepNone(*member) bool { return false }

// planEach finds places for members of a gang that goes on without them: those
// that it has lost, those beyond its minimum.
func (s *state) planEach(log logr.Logger, r *round, g *gangState, t *standing, now time.Time) {
	var why *reason
	waiting := int32(0)
	slices.SortFunc(t.idle, preferred)
	repairs := len(t.idle)
	if d := (&dueGang{g, t}); d.urgency() == 1 {
		repairs = g.peak - t.committed // the others take their turn
	}
	for i, m := range t.idle {
		if m.place != nil {
			continue
		}
		if repairs--; repairs < 0 {
			g.dirty, s.gangsDirty = true, true
			break
		}
		if now.Before(g.notBefore) {
			why = g.why
			break
		}
		if g.tried == s.capacity && g.why != nil && !m.fresh() {
			why = g.why
			continue
		}
		one := t.idle[i : i+1]
		m.tried = true
		if why = s.gangAdmits(g, one); why != nil {
			waiting++
			why.members = waiting
			g.tried = s.capacity
			continue
		}
		found, short := r.plan(g, one, t, keepNone, false, now)
		if short == nil {
			if why = s.gangMayHold(g, one, found); why != nil {
				g.tried = s.capacity
				continue
			}
			s.fill(g, found[0], now)
			s.place(log, g, one, found, keepNone, now)
			m.deadline = now.Add(s.holdTimeout(g))
			continue
		}
		waiting++
		why = s.withNotes(g.id(), &reason{string(short.Reason), short.Message(), waiting})
		g.tried, g.lacksRoom = s.capacity, true
	}
	switch {
	case t.need() > 0 && g.started && why == nil && t.placed < t.need():
		here := t.committed + len(t.idle)
		why = &reason{v1alpha1.ReasonBelowMinCount, fmt.Sprintf("%d of %d members are left; the gang has started and waits for new ones in the place of those that are lost", min(here, t.minCount), t.minCount), int32(t.need())}
		if here >= t.minCount {
			why = nil // they are on their way
		}
	case len(t.live) == 0:
		why = nil
	}
	g.wait(why)
}

// fresh says that the member was not tried yet.
func (m *member) fresh() bool { return !m.tried }
