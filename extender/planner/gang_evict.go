package planner

import (
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

// watchTorn takes a gang back of which only a part could be bound, if the rest
// finds no place for long: the part holds GPUs in vain.
func (s *state) watchTorn(log logr.Logger, g *gangState, t *standing, now time.Time) {
	torn := !g.started && t.bound > t.succeeded && t.committed < t.minCount && g.deadline.IsZero()
	switch {
	case !torn:
		g.torn = time.Time{}
	case g.torn.IsZero():
		g.torn = now
	case now.Sub(g.torn) >= tornFactor*s.holdTimeout(g):
		s.evictRest(log, g, t, now, eventTorn, fmt.Sprintf(
			"Only %d of the %d members of gang %s could be bound before an interruption, and no place was found for the rest in time, so the part is taken back and the gang starts again as a whole.", t.bound, t.minCount, g.key.Name))
	}
}

// watchStale ends a gang that cannot go on below its minimum, if it says so.
func (s *state) watchStale(log logr.Logger, g *gangState, t *standing, now time.Time) {
	grace := s.staleness(g)
	if g.object != nil && g.object.Staleness != nil {
		grace = *g.object.Staleness
	}
	stale := g.started && g.object != nil && g.object.DisruptAll && grace > 0 && t.bound < t.minCount && t.bound > t.succeeded
	switch {
	case !stale:
		g.stale = time.Time{}
	case g.stale.IsZero():
		g.stale = now
	case now.Sub(g.stale) >= grace:
		s.evictRest(log, g, t, now, eventStale, fmt.Sprintf(
			"Gang %s has had only %d of the %d members that it needs for %v, and its disruptionMode is All, so the rest is evicted and it starts again as a whole.", g.key.Name, t.bound, t.minCount, grace))
	}
}

// spareWhole lets those stay who were asked to go for a gang that is neither torn nor
// stale any more.
func (s *state) spareWhole(g *gangState, t *standing) {
	if g.evicted.IsZero() || !g.torn.IsZero() || !g.stale.IsZero() {
		return
	}
	g.evicted = time.Time{}
	for _, m := range t.live {
		if m.pod.Node != "" {
			s.spare(m.pod.UID, ref(m.pod))
		}
	}
}

// evictRest asks all bound members to go.
func (s *state) evictRest(log logr.Logger, g *gangState, t *standing, now time.Time, event, message string) {
	if now.Sub(g.evicted) < evictAgain {
		return
	}
	g.evicted = now
	for _, m := range t.live {
		if m.pod.Node != "" {
			s.p.effects.Evict(ref(m.pod), event, message)
		}
	}
	log.Info("Gang is evicted", "gang", klog.KRef(g.key.Namespace, g.key.Name), "reason", event, "bound", t.bound, "minCount", t.minCount)
}
