package planner

import (
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/gang"
	"github.com/tranche-dev/tranche/pkg/ledger"
)

// place holds what was found, all of it, and hands the pods to the scheduler.
func (s *state) place(log logr.Logger, g *gangState, chosen []*member, found []gang.Place, keep keeper, now time.Time) {
	s.endReservation(g.id(), now)
	// All that move go before the first arrives: they may change places.
	for _, m := range chosen {
		if m.place != nil && !keep(m) {
			s.unplace(m, now)
		}
	}
	expires := now.Add(capFactor*s.holdTimeout(g) + backstop)
	admissions := make([]Admission, 0, len(chosen))
	for i, m := range chosen {
		if m.place != nil {
			continue
		}
		p := found[i]
		claim := ledger.Claim{Pod: ref(m.pod), Node: p.Node, Charges: p.Plan.Charges(m.pod.Roles), Plan: p.Plan}
		if refusal := s.ledger.Hold(claim, expires); refusal != "" {
			// The plan was made from this very ledger, so this is a contradiction
			// between planner and ledger; the ledger is the careful one.
			log.Error(nil, "Ledger refuses what was planned for a gang", "gang", klog.KRef(g.key.Namespace, g.key.Name), "pod", klog.KRef(m.pod.Namespace, m.pod.Name), "node", p.Node, "refusal", refusal)
			s.rollback(g, chosen, &reason{v1alpha1.ReasonNoPlace, "the places that were found are not there any more; they are sought anew", 0}, now, "displaced")
			return
		}
		m.place = &gang.Place{Node: p.Node, Plan: p.Plan}
		m.needs = m.pod.Needs
		m.came = false
		s.keep(m)
		s.p.places.Store(m.pod.UID, p.Node)
		admission := Admission{Pod: ref(m.pod), Gated: m.pod.Member.Gated, Version: s.ledger.Version()}
		if s.p.opts.Nominate {
			admission.Node = p.Node
		}
		admissions = append(admissions, admission)
	}
	g.pacify()
	s.p.effects.Admit(admissions)
	log.V(2).Info("Gang placed", "gang", klog.KRef(g.key.Namespace, g.key.Name), "members", len(chosen), "moved", len(admissions))
}

// pacify drops the reason why g waits, unless it has failed at this stage
// before: then that is still the best that can be said.
func (g *gangState) pacify() {
	if g.failures == 0 {
		g.why = nil
	}
}

// keep and unkeep count what a place keeps of its node's cpu, memory and the
// like.
func (s *state) keep(m *member) {
	if n := s.nodes[m.place.Node]; n != nil {
		n.kept = n.kept.Add(m.needs)
		s.tellRoom(m.place.Node, n)
	}
}

func (s *state) unkeep(m *member) {
	if n := s.nodes[m.place.Node]; n != nil {
		n.kept = n.kept.Sub(m.needs)
		s.tellRoom(m.place.Node, n)
	}
}

// unplace takes a member's place away, and lets it fail if it waits in Bind.
func (s *state) unplace(m *member, now time.Time) {
	if m.place == nil {
		return
	}
	if r, ok := s.ledger.Get(m.pod.UID); ok && r.State == ledger.Held {
		s.ledger.Release(m.pod.UID)
		s.gain(r.Node, now)
	}
	s.clearPlace(m)
}

// clearPlace forgets a member's place, whatever the ledger has of it.
func (s *state) clearPlace(m *member) {
	if m.arrival != nil {
		s.dismiss(m.arrival, reserved{err: ErrGangNotWhole})
		m.arrival = nil
	}
	if m.place == nil {
		return
	}
	s.unkeep(m)
	if n := s.nodes[m.place.Node]; n != nil && n.view == nil {
		s.forgetNode(m.place.Node)
	}
	m.place, m.deadline = nil, time.Time{}
	s.p.places.Delete(m.pod.UID)
	m.gang.dirty, s.gangsDirty = true, true
}

// avoidNode has a member planned elsewhere: the scheduler does not want it on
// node.
func (s *state) avoidNode(m *member, node string, now time.Time) {
	g := m.gang
	if m.avoid == nil {
		m.avoid = map[string]time.Time{}
	}
	m.avoid[node] = now.Add(avoidFor << min(g.failures, 6))
	why := &reason{v1alpha1.ReasonSchedulerRefuses, fmt.Sprintf("kube-scheduler's own filters refuse node %s, where GPUs were held, for pod %s; another place is sought", node, m.pod.Name), 1}
	if foreignRefusal(m.pod.Refusal) {
		why.message += ". The scheduler says: " + m.pod.Refusal
	}
	if m.deadline.IsZero() && len(m.avoid) >= mostAvoided {
		t := s.stand(g)
		s.rollback(g, t.idle, why, now, "refused")
		return
	}
	s.unplace(m, now)
	g.why, g.tried = why, 0
}

// avoided returns the nodes that are to be left out now.
func (m *member) avoided(now time.Time) map[string]bool {
	var nodes map[string]bool
	for node, until := range m.avoid {
		if !now.Before(until) {
			delete(m.avoid, node)
			continue
		}
		if nodes == nil {
			nodes = map[string]bool{}
		}
		nodes[node] = true
	}
	return nodes
}

// expireGang takes places back that have been held too long.
func (s *state) expireGang(log logr.Logger, g *gangState, t *standing, now time.Time) {
	if !g.deadline.IsZero() && !now.Before(g.deadline) {
		missing := make([]string, 0, len(t.idle))
		var message string
		for _, m := range t.idle {
			if m.place != nil && m.arrival == nil {
				missing = append(missing, m.pod.Name)
				if foreignRefusal(m.pod.Refusal) {
					message = m.pod.Refusal
				}
			}
		}
		log.V(2).Info("Gang was not bound in time", "gang", klog.KRef(g.key.Namespace, g.key.Name), "missing", len(missing))
		s.rollback(g, t.idle, refusedBy(missing, message), now, "expired")
	}
	for _, m := range t.idle {
		if !m.deadline.IsZero() && !now.Before(m.deadline) {
			s.unplace(m, now)
			s.p.metrics.HoldReleases.WithLabelValues("expired").Inc()
			s.fail(g, refusedBy([]string{m.pod.Name}, m.pod.Refusal), now)
		}
	}
}

// rollback gives all places back and backs off.
func (s *state) rollback(g *gangState, members []*member, why *reason, now time.Time, label string) {
	s.dropPlaces(g, members, now, label)
	s.fail(g, why, now)
}

// dropPlaces gives the places of members back, without which their gang is not
// whole.
func (s *state) dropPlaces(g *gangState, members []*member, now time.Time, label string) {
	for _, m := range members {
		if m.place == nil {
			continue
		}
		s.p.metrics.HoldReleases.WithLabelValues("gang_" + label).Inc()
		if m.pod.Member.Gated {
			s.p.effects.Withdraw(ref(m.pod))
			m.exposed = false // its gate is not lifted any more either
		}
		s.unplace(m, now)
	}
	g.deadline, g.latest = time.Time{}, time.Time{}
}
