package planner

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// This file keeps the room that the scheduler makes by preemption for the pod
// that it made it for. The scheduler nominates that pod to the victims' node,
// but whoever is asked about first when they have ended would get their GPUs;
// and if the scheduler hears of the end before the ledger does, the refusal
// costs the pod its nomination.

// preemptor is a pod that was nominated to a node.
type preemptor struct {
	node string
	// until is when it is given up, after the nomination has gone.
	until time.Time
	// favoured says that it has had what was free there: if the scheduler does not
	// use that, it is not kept for it again and again.
	favoured bool
}

// nominationLag is how long a nomination counts after it was taken back: long
// enough for the end of the victims to be known.
const nominationLag = 15 * time.Second

// observeNomination follows a pending pod's nomination.
func (s *state) observeNomination(e *pending, now time.Time) {
	uid := e.pod.UID
	switch n := s.preemptors[uid]; {
	case e.pod.Nominated != "" && e.pod.Nominated == e.nominated:
		// By ourselves: it had its turn and has its place.
	case e.avoided[e.pod.Nominated]:
		// By ourselves as well, and about to be taken back.
	case e.pod.Nominated != "":
		if n == nil || n.node != e.pod.Nominated {
			s.preemptors[uid] = &preemptor{node: e.pod.Nominated}
			s.favourDue = true
		}
	case n != nil && n.until.IsZero():
		n.until = now.Add(nominationLag)
	}
}

// favour gives nominated pods what has become free on their nodes, before
// anybody else is asked about.
func (s *state) favour(now time.Time) {
	if !s.p.Live() {
		return // who is not known yet may have these GPUs, and the queue's quota
	}
	if !s.favourDue || len(s.preemptors) == 0 {
		s.favourDue = false
		return
	}
	s.favourDue = false
	var list []*pending
	for uid, n := range s.preemptors {
		e := s.pending[uid]
		if e == nil || !n.until.IsZero() && !now.Before(n.until) {
			delete(s.preemptors, uid)
			continue
		}
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b *pending) int { return before(a.pod, b.pod) })
	for _, e := range list {
		uid := e.pod.UID
		n := s.preemptors[uid]
		if _, held := s.ledger.Get(uid); held || n.favoured || unplaceable(e.pod) != "" {
			continue
		}
		waited := e.waiting
		if s.hold(e.pod, n.node, now) == "" {
			n.favoured = true
			if waited {
				s.p.effects.Wake(ref(e.pod), s.ledger.Version())
			}
		}
	}
}

// forgetNomination ends what is kept of a pod that is bound or gone.
func (s *state) forgetNomination(uid types.UID) { delete(s.preemptors, uid) }
