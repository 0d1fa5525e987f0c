package planner

import (
	"cmp"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// dueGang is a gang to be looked at.
type dueGang struct {
	g *gangState
	t *standing
}

// urgency: 0 for gangs that are partly bound, which hold GPUs in vain, 1 for
// started ones that have lost members, 2 for those that have not begun, 3 for
// members beyond the minimum.
func (d *dueGang) urgency() int {
	switch {
	case d.t.need() > 0 && !d.g.started && d.t.committed > 0:
		return 0
	case d.t.need() > 0 && d.g.started && d.t.committed < d.g.peak:
		return 1
	case d.t.need() > 0 && d.g.started:
		return 3 // its minimum was raised: that is no repair
	case d.t.need() > 0:
		return 2
	default:
		return 3
	}
}

func (d *dueGang) compare(o *dueGang) int {
	return cmp.Or(
		cmp.Compare(d.urgency(), o.urgency()), cmp.Compare(o.priority(), d.priority()), d.created().Compare(o.created()),
		strings.Compare(d.g.key.Namespace, o.g.key.Namespace), strings.Compare(d.g.key.Name, o.g.key.Name),
	)
}

func (d *dueGang) priority() int32 {
	if len(d.t.live) == 0 {
		return 0
	}
	return d.t.live[0].pod.Member.Priority
}

func (d *dueGang) created() time.Time {
	if len(d.t.live) == 0 {
		return time.Time{}
	}
	return d.t.live[0].pod.Created
}

// first is the UID of the first live member.
func (d *dueGang) first() types.UID {
	if len(d.t.live) == 0 {
		return ""
	}
	return d.t.live[0].pod.UID
}

// contends says whether the gang wants places for which queues have turns:
// repairs of what has begun go before all of them.
func (d *dueGang) contends() bool {
	if d.urgency() < 2 || len(d.t.live) == 0 {
		return false
	}
	for _, m := range d.t.idle {
		if m.place == nil {
			return true
		}
	}
	return false
}

// expects says whether time alone changes something about g.
func (g *gangState) expects(now time.Time) bool {
	return !g.deadline.IsZero() && !now.Before(g.deadline) || !g.torn.IsZero() || !g.stale.IsZero() ||
		!g.notBefore.IsZero() && !now.Before(g.notBefore) || !g.telling.IsZero() && !now.Before(g.telling) || !g.retell.IsZero() && !now.Before(g.retell) || g.extraDue(now)
}

func (g *gangState) extraDue(now time.Time) bool {
	for _, m := range g.members {
		if !m.deadline.IsZero() && !now.Before(m.deadline) || m.place == nil && m.forgives(now) {
			return true
		}
	}
	return false
}

// forgives says whether a node that the scheduler refused may be tried again.
func (m *member) forgives(now time.Time) bool {
	for _, until := range m.avoid {
		if !now.Before(until) {
			return true
		}
	}
	return false
}
