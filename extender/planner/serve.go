package planner

import (
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
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
		if at.head(s) != nil && s.tree.Leaf(at.queue) {
			contest.Set(at.queue, headOf(at.head(s)))
		}
	}
	for {
		name, ok := contest.Next()
		if !ok {
			break
		}
		at := l.byName[name]
		r.serveNext(log, at, now)
		if h := at.head(s); h != nil {
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
		for at.head(s) != nil {
			r.serveNext(log, at, now)
		}
	}
	return true
}

// passBy tells the next pods of a lane that it is with them as with others of
// their shape before: thousands may wait, and no turn changes anything for them.
func (r *round) passBy(at *lane, now time.Time) {
	s := r.s
	for h := at.head(s); h != nil && h.pod != nil; h = at.head(s) {
		e, c := h.pod, at.pods[0]
		why := r.knownReason(at, c.key)
		if why == nil || c.key == mixed || e.futile != at.futile[c.key] || s.forbidden(s.queues[at.queue], e.pod.Namespace) || len(s.reservations) > 0 && s.reservations[podID(e.pod.UID)] != nil {
			return
		}
		shared := c.line.share(why)
		if c.line.settled && c.line.futile == at.futile[c.key] && r.skips(at.queue, c.line) {
			at.skip()
			continue
		}
		if !now.Before(e.quiet) {
			if len(s.wanting) > 0 {
				shared = s.withNotes(h.want(), shared)
			}
			s.tellPod(e, shared, now)
		}
		at.advance(s)
	}
}

// knownReason is why no pod of a shape in a lane needs to be tried, nil if one has
// to: some of those for which there is no room may have it made, unless that was
// tried in vain for one like them.
func (r *round) knownReason(l *lane, shape int) *reason {
	switch refused := l.refused[shape]; {
	case l.closed != nil:
		return l.closed
	case refused != nil && (len(l.short) >= mostWants || refused.word != v1alpha1.ReasonQueueLimit):
		return refused
	case l.tried >= mostWants || l.futile[shape] || r.failing(kin{l.queue, shape}):
		return l.full[shape]
	default:
		return nil
	}
}

// kin are the pods of one shape in one queue.
type kin struct {
	queue string
	shape int
}

// failing says whether there was no room to be made for one of them.
func (r *round) failing(k kin) bool {
	if r.vain == nil {
		r.vain = map[kin]bool{}
		for _, w := range r.s.wanting {
			if w.failures > 0 && w.pod != nil {
				r.vain[kin{w.queue, w.pod.shapeID}] = true
			}
		}
	}
	return r.vain[k]
}

// skips says whether nothing tells the pods of a line of a queue apart.
func (r *round) skips(name string, l *line) bool {
	if q := r.s.queues[name]; q != nil && q.view != nil && q.view.Selector != nil {
		return false // of the namespaces some may be forbidden
	}
	if r.favoured == nil {
		r.favoured = map[*line]bool{}
		for _, o := range r.s.reservations {
			if o.want.pod != nil {
				r.favoured[o.want.pod.line] = true
			}
		}
	}
	return !r.favoured[l]
}

// podID is a single pod's name among wants and reservations.
func podID(uid types.UID) string { return "pod " + string(uid) }

func headOf(i *item) queue.Head {
	return queue.Head{Ask: i.ask, Priority: i.priority, Created: i.created, ID: i.id}
}

// serveNext serves the first of a lane.
func (r *round) serveNext(log logr.Logger, at *lane, now time.Time) {
	i := at.head(r.s)
	if i.pod != nil {
		r.servePod(log, at, i, now)
		at.leave(r.s, i)
		r.passBy(at, now)
		return
	}
	at.leave(r.s, i)
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
