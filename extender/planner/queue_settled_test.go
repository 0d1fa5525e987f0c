package planner

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/ledger"
)

// wantSettled lets the planner look at everybody anew, as it does when everything
// has changed, though nothing has. If that gives somebody a place, or has somebody
// admitted, it was overlooked: nobody would have looked at it before something
// happened. Pods that are left alone for a time stay so.
func (w *world) wantSettled() {
	w.Helper()
	w.after(5 * tick) // what is due is done
	before := w.having()
	_, err := ask(w.Context(), w.p, func(_ context.Context, s *state, _ time.Time) struct{} {
		s.lookAtAll()
		return struct{}{}
	})
	if err != nil {
		w.Fatal(err)
	}
	after := w.having()
	for uid, has := range after {
		why := before["why "+uid]
		if strings.HasPrefix(string(uid), "why ") || strings.Contains(why, " of model ") {
			continue // how a gang is dealt out to limited models is a heuristic: less room may lead to a better deal
		}
		if before[uid] != has {
			w.Errorf("%s has %s only after everybody was looked at anew, %q before; it waited for %s", uid, has, before[uid], why)
		}
	}
}

// lookAtAll has everybody served in the next round.
func (s *state) lookAtAll() {
	s.capacity++
	clear(s.hopeless)
	s.newcomers, s.gangsDirty = true, true
	for _, g := range s.gangs {
		g.dirty, g.tried = true, 0
	}
	for _, q := range s.queues {
		q.fresh = true
	}
	for _, e := range s.pending {
		s.enlist(e)
	}
}

// having says who has what by the planner's doing, and of the others why.
func (w *world) having() map[types.UID]string {
	w.Helper()
	list, err := ask(w.Context(), w.p, func(_ context.Context, s *state, _ time.Time) map[types.UID]string {
		list := map[types.UID]string{}
		for _, r := range s.ledger.Records() {
			if r.State == ledger.Held && !strings.HasPrefix(string(r.Pod.UID), "reserved for ") {
				list[r.Pod.UID] = "a place on " + r.Node
			}
		}
		for uid, c := range s.counted {
			if c.admitted {
				list[uid] = "its admission"
			}
		}
		for uid, e := range s.pending {
			if list[uid] == "" && e.why != nil {
				list["why "+uid] = fmt.Sprintf("%v", e.why)
			}
		}
		for uid, m := range s.members {
			if list[uid] == "" && m.gang.why != nil {
				list["why "+uid] = fmt.Sprintf("%v", m.gang.why)
			}
		}
		return list
	})
	if err != nil {
		w.Fatal(err)
	}
	return list
}
