package planner

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/placement"
)

// What Reserve may answer to a member of a gang.
var (
	// ErrGangNotWhole: another member lost its place while this one waited.
	ErrGangNotWhole = errors.New("the pod's gang is planned anew, since another member lost its place; it will be tried again")
	// ErrGangLate: the others did not come in time.
	ErrGangLate = errors.New("the other members of the pod's gang did not reach their nodes in time; it will be tried again")
	// ErrReplaced: the scheduler has called Bind for the pod again.
	ErrReplaced = errors.New("a later bind of the same pod waits in the place of this one")
)

// arrival is a member that waits in Bind for the others.
type arrival struct {
	// answer gets exactly one answer.
	answer chan reserved
}

type reserved struct {
	r       Reservation
	err     error
	waiting *arrival
}

// dismiss lets an arrival go on with an answer, as soon as readers can see what
// led to it.
func (s *state) dismiss(a *arrival, with reserved) {
	s.later = append(s.later, func() { a.answer <- with })
}

// filterMember answers Filter for a member of a gang. It is a look-up: the
// held node passes, or none.
func (p *Planner) filterMember(ctx context.Context, v *view.Pod, nodes []string) (Verdict, error) {
	var verdict Verdict
	node, ok := p.decided.Load(v.UID)
	decided := ok
	if !decided {
		node, ok = p.places.Load(v.UID)
	}
	reason := GangElsewhere
	switch {
	case unplaceable(v) != "":
		reason, ok = unplaceable(v), false
	case !ok:
		reason = GangWaits
	}
	for i, name := range nodes {
		if ok && name == node {
			verdict.Passed++
		} else {
			verdict.refuse(i, reason, len(nodes))
		}
	}
	if verdict.Passed > 0 || decided || len(nodes) == 0 {
		return verdict, nil
	}
	// The scheduler asks about a nominated node alone first, which may be that
	// of an earlier plan.
	alone := len(nodes) == 1 && v.Member.Nominated == nodes[0]
	klog.FromContext(ctx).V(2).Info("Refused a member of a gang", "pod", klog.KRef(v.Namespace, v.Name), "nodes", len(nodes), "reason", reason)
	return verdict, p.send(ctx, func(_ context.Context, s *state, now time.Time) func() {
		s.askedFor(v, ok && !alone, node, now)
		return nil
	})
}

// askedFor notes that Filter refused a member. notOffered says that its node
// was not among those asked about.
func (s *state) askedFor(v *view.Pod, notOffered bool, node any, now time.Time) {
	m := s.members[v.UID]
	if m == nil {
		if s.pending[v.UID] == nil && s.hear(v, now) == "" {
			s.observeMember(v, now) // the watch is behind
		}
		return
	}
	if g := m.gang; m.place == nil && g.why != nil && g.why.word == v1alpha1.ReasonSchedulerRefuses && !g.notBefore.IsZero() && len(m.avoid) < mostAvoided {
		// The scheduler has found nodes for it: no need to wait any longer.
		g.notBefore, g.tried = time.Time{}, 0
		s.stirGang(v.UID)
	}
	if m.place == nil || !notOffered || m.place.Node != node || s.charged(m) {
		return
	}
	if m.arrival != nil {
		s.dismiss(m.arrival, reserved{err: ErrReplaced}) // the scheduler has given that attempt up
		m.arrival = nil
	}
	s.avoidNode(m, m.place.Node, now)
}

// reserveMember is Reserve for a member of a gang that is not bound yet.
func (s *state) reserveMember(m *member, t Target, now time.Time) reserved {
	g := m.gang
	if reason := unplaceable(m.pod); reason != "" {
		return reserved{err: &RefusedError{reason}}
	}
	if m.place == nil {
		return reserved{err: &RefusedError{GangWaits}}
	}
	if m.place.Node != t.Node {
		return reserved{err: &RefusedError{GangElsewhere}}
	}
	r, ok := s.ledger.Get(t.UID)
	if !ok || !s.renew(r) {
		// A GPU is gone or sick.
		s.unplace(m, now)
		g.tried = 0
		return reserved{err: &RefusedError{placement.Unhealthy}}
	}
	if m.arrival != nil {
		s.dismiss(m.arrival, reserved{err: ErrReplaced})
	}
	m.arrival = &arrival{answer: make(chan reserved, 1)}
	waiting := m.arrival
	if !g.deadline.IsZero() && !m.came {
		// Coming again is no progress.
		g.deadline = now.Add(s.holdTimeout(g))
		if g.deadline.After(g.latest) {
			g.deadline = g.latest
		}
	}
	m.came = true
	s.commitWhole(m, now)
	return reserved{waiting: waiting}
}

// renew checks that a hold is still good.
func (s *state) renew(r *ledger.Record) bool {
	return s.ledger.Hold(claimOf(r), r.Expires) == ""
}

// commitWhole charges all members that wait, if all have come, and lets them go
// on: m, who came last, and those who waited. Who came and waited in vain counts
// as well, since the scheduler has accepted it and brings it again: of a large
// gang the first may be tired before the last comes.
func (s *state) commitWhole(m *member, now time.Time) {
	g := m.gang
	if !m.deadline.IsZero() {
		s.commit(m) // nobody waits for it
		g.dirty, s.gangsDirty = true, true
		return
	}
	for _, o := range g.members {
		if o.place != nil && o.deadline.IsZero() && !o.came && !s.charged(o) {
			return // it is on its way
		}
	}
	s.commitCome(g, s.stand(g), now)
}

// commitCome charges the members that have come, if that makes g whole.
func (s *state) commitCome(g *gangState, t *standing, now time.Time) {
	come := 0
	for _, o := range t.idle {
		if o.place != nil && o.came && o.deadline.IsZero() {
			come++
		}
	}
	if come < t.need() && !g.started {
		return
	}
	for _, o := range t.idle {
		if o.arrival != nil && o.deadline.IsZero() {
			s.commit(o)
			g.dirty, s.gangsDirty = true, true
			// Whose call has run out of time comes again.
			g.deadline = now.Add(s.holdTimeout(g))
			g.latest = g.deadline
		}
	}
}

// commit charges one member and ends its wait.
func (s *state) commit(m *member) {
	uid := m.pod.UID
	committed, ok := s.ledger.Commit(uid)
	if !ok {
		s.dismiss(m.arrival, reserved{err: &RefusedError{GangWaits}})
		m.arrival = nil
		return
	}
	s.binding[uid] = committed.Node
	s.p.decided.Store(uid, committed.Node)
	var r Reservation
	if plan := committed.Plan; len(plan.Containers) > 0 {
		r.Plan = &plan // a member without GPUs has none
	}
	s.dismiss(m.arrival, reserved{r: r})
	m.arrival = nil
}

// await waits for the rest of the gang, as long as the scheduler does and not
// longer than is set.
func (p *Planner) await(ctx context.Context, t Target, a *arrival) (Reservation, error) {
	timer := p.opts.Clock.NewTimer(p.opts.GangBindTimeout)
	defer timer.Stop()
	var cause error
	select {
	case got := <-a.answer:
		return got.r, got.err
	case <-p.stopped:
		return Reservation{}, ErrStopped
	case <-ctx.Done():
		cause = fmt.Errorf("the scheduler has stopped waiting: %w", ctx.Err())
	case <-timer.C():
		cause = ErrGangLate
	}
	p.conclude(ctx, func(s *state, _ time.Time) {
		if m := s.members[t.UID]; m != nil && m.arrival == a {
			m.arrival = nil
			s.dismiss(a, reserved{err: cause})
		}
	})
	select {
	case got := <-a.answer: // perhaps the others came at the last moment
		return got.r, got.err
	case <-p.stopped:
		return Reservation{}, ErrStopped
	}
}

// bindFailed notes that the API server refused a member's Binding. The first
// times it keeps its place: the scheduler tries again, and the others run.
func (s *state) bindFailed(m *member, now time.Time) {
	g := m.gang
	g.failures++
	g.dirty, s.gangsDirty = true, true
	why := &reason{v1alpha1.ReasonBindFailed, fmt.Sprintf("binding pod %s to node %s failed; it is tried again", m.pod.Name, m.place.Node), 1}
	if g.failures > mostBindFailures {
		s.unplace(m, now)
		s.fail(g, why, now)
		return
	}
	g.why = why
	if t := s.stand(g); t.need() > 0 && !g.started {
		g.deadline = now.Add(s.holdTimeout(g))
		g.latest = g.deadline
		return
	}
	m.deadline = now.Add(s.holdTimeout(g))
}

// mostBindFailures is how often in a row a member may fail to be bound before
// it loses its place.
const mostBindFailures = 3

// prioritizeMember gives the held node all points.
func (p *Planner) prioritizeMember(pod *corev1.Pod, nodes []string) []int64 {
	priorities := make([]int64, len(nodes))
	node, ok := p.places.Load(pod.UID)
	for i, name := range nodes {
		if ok && name == node {
			priorities[i] = placement.MaxPriority
		}
	}
	return priorities
}
