package planner

import (
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/queue"
)

// serve lets the queues have their turns: whoever is first by the tree's contest
// is served, until nobody is left or the budget of the round is used up. Queues
// that the tree does not know come last, to be told so.
func (r *round) serve(log logr.Logger, l *lanes, now time.Time) (done bool) {
	s := r.s
	if len(l.byName) == 0 {
		return true
	}
	l.sort()
	contest := s.tree.Contest()
	for _, at := range l.byName {
		if at.head() != nil && s.tree.Leaf(at.queue) {
			contest.Set(at.queue, headOf(at.head()))
		}
	}
	for {
		name, ok := contest.Next()
		if !ok {
			break
		}
		at := l.byName[name]
		r.serveNext(log, at, now)
		if h := at.head(); h != nil {
			contest.Set(name, headOf(h))
		} else {
			contest.Clear(name)
		}
		if s.p.opts.Clock.Since(now) > planBudget {
			return false
		}
	}
	for _, name := range l.order {
		at := l.byName[name]
		for at.head() != nil {
			r.serveNext(log, at, now)
		}
	}
	return true
}

// passBy tells the next pods of a lane that it is with them as with others of
// their shape before: thousands may wait, and no turn changes anything for them.
func (r *round) passBy(at *lane, now time.Time) {
	for h := at.head(); h != nil && h.pod != nil && h.pod.shapeID != 0; h = at.head() {
		e := h.pod
		why := at.closed
		if why == nil && len(at.short) >= mostWants {
			why = at.refused[e.shapeID]
		}
		if why == nil {
			why = at.full[e.shapeID]
		}
		if why == nil || r.s.forbidden(r.s.queues[at.queue], e.pod.Namespace) || e.pod.Problem != "" || e.futile != at.futile[e.shapeID] || len(r.s.reservations) > 0 && r.s.reservations[podID(e.pod.UID)] != nil {
			return
		}
		if !now.Before(e.quiet) {
			if len(r.s.stubborn) > 0 {
				why = r.s.withBudget(h.want(), why)
			}
			r.s.tellPod(e, why, now)
		}
		at.next++
	}
}

// podID is a single pod's name among wants and reservations.
func podID(uid types.UID) string { return "pod " + string(uid) }

func headOf(i *item) queue.Head {
	return queue.Head{Ask: i.ask, Priority: i.priority, Created: i.created, ID: i.id}
}

// serveNext serves the first of a lane.
func (r *round) serveNext(log logr.Logger, at *lane, now time.Time) {
	i := at.head()
	at.next++
	if i.pod != nil {
		r.servePod(log, at, i, now)
		r.passBy(at, now)
		return
	}
	r.s.planGang(log, r, i.gang.g, i.gang.t, now)
	r.s.settleBooks()
	switch g := i.gang.g; {
	case g.why == nil:
	case g.lacksRoom:
		at.fail(r.s, i)
		if r.s.exposes(at) {
			at.exposed = true
			r.s.exposeGang(g)
		}
	default:
		r.s.wantQuota(at, i, g.why)
	}
}
