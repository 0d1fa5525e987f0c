package planner

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/ledger"
)

const (
	// answerWithin is how long a woken pod may take to come back to Filter or
	// to hold something. The scheduler's longest back-off is 10 s.
	answerWithin = 30 * time.Second
	// quietAfter and quietMost bound how long a pod is left alone after it was
	// woken in vain: the scheduler does not want it on that node for reasons of
	// its own, and would be asked again and again.
	quietAfter = 15 * time.Second
	quietMost  = 5 * time.Minute
)

// gain is when a node last may have got more room.
type gain struct {
	version uint64
	at      time.Time
}

// gain notes that a node may have more room than before.
func (s *state) gain(node string, now time.Time) {
	s.capacity++
	s.divideDue = s.divideDue || s.partial[node]
	s.moved[node] = true
	s.favourDue, s.topUpDue = true, true
	s.gains.add(node)
	s.recent[node] = gain{s.ledger.Version(), now}
}

// moveFrom notes what a pod has left behind of what it had before: another node,
// or other GPUs of the same.
func (s *state) moveFrom(before *ledger.Record, now time.Time) {
	after, ok := s.ledger.Get(before.Pod.UID)
	if !ok || after.Node != before.Node || slices.ContainsFunc(before.Charges, func(c ledger.Charge) bool { return after.On(c.GPU) < c.Shares }) {
		s.gain(before.Node, now)
	}
}

// missed looks again at the nodes that got room after the ledger's version
// seen: somebody was just refused without knowing of it.
func (s *state) missed(seen uint64) {
	for node, g := range s.recent {
		if g.version > seen {
			s.gains.add(node)
		}
	}
}

// answerWake notes that a woken pod was refused again. If the node with room
// for it was not even offered, the scheduler has reasons of its own.
func (s *state) answerWake(e *pending, asked *view.Pod, offered []string, now time.Time) {
	if s.woken[e.pod.UID] == nil || onlyNominated(asked, offered) && e.wokenFor != asked.Nominated {
		return
	}
	if slices.Contains(offered, e.wokenFor) {
		e.vain = 0 // it was asked about before it was seen to have its place
	} else {
		s.inVain(e, now)
		s.release(e.pod.UID, now)
	}
	s.answered(e)
}

// answered ends the wait for a woken pod.
func (s *state) answered(e *pending) {
	delete(s.woken, e.pod.UID)
	e.woken, e.wokenFor = time.Time{}, ""
}

// inVain leaves a pod alone for a while and gives the room to others.
func (s *state) inVain(e *pending, now time.Time) {
	e.vain++
	s.leaveBe(e, now)
	s.gain(e.wokenFor, now)
}

// leaveBe leaves a pod alone, the longer the more often it was woken in vain.
func (s *state) leaveBe(e *pending, now time.Time) {
	e.quiet = now.Add(min(quietAfter<<min(e.vain-1, 10), quietMost))
	s.dueAt(e.quiet)
}

// dueAt has waiting pods served again at a time.
func (s *state) dueAt(t time.Time) {
	if s.nextQuiet.IsZero() || t.Before(s.nextQuiet) {
		s.nextQuiet = t
	}
}

// settleWoken gives up on pods that were woken and did not come, and has those
// served again that were left alone long enough.
func (s *state) settleWoken(now time.Time) {
	for uid, e := range s.woken {
		if now.Sub(e.woken) < answerWithin {
			continue
		}
		if len(e.avoid) > 0 && e.pod.Unschedulable && s.holdsGiven(e) {
			// A refusal in the very words of the one before is not written again.
			s.refusedOutright(e, now)
			continue
		}
		s.inVain(e, now)
		s.answered(e)
		s.release(uid, now)
	}
	if !s.nextQuiet.IsZero() && !now.Before(s.nextQuiet) {
		s.nextQuiet = time.Time{}
		for _, e := range s.pending {
			if now.Before(e.quiet) {
				s.dueAt(e.quiet)
			}
			s.reviewAvoided(e, now)
		}
		s.newcomers, s.gangsDirty = true, true
	}
}

// before orders pods as they are served: by priority, then by age.
func before(a, b *view.Pod) int {
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), older(a, b))
}

// older orders pods by creation, then by name.
func older(a, b *view.Pod) int {
	return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
}
