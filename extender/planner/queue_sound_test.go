package planner

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/tranche-dev/tranche/pkg/gang"
	"github.com/tranche-dev/tranche/pkg/placement"
	"github.com/tranche-dev/tranche/pkg/queue"
)

// wantSound checks what must be true at any moment.
func (w *world) wantSound() {
	w.Helper()
	w.wantNone((*state).unsound)
}

// wantWithinLimits checks what is true while no limit is lowered.
func (w *world) wantWithinLimits() {
	w.Helper()
	w.wantNone((*state).beyondLimit)
}

func (w *world) wantNone(problem func(s *state) string) {
	w.Helper()
	text, err := ask(w.Context(), w.p, func(_ context.Context, s *state, _ time.Time) string { return problem(s) })
	if err != nil || text != "" {
		w.Fatalf("%s %v", text, err)
	}
}

// beyondLimit names a queue that uses more than it may, if one does.
func (s *state) beyondLimit() string {
	for _, q := range s.queues {
		v := s.tree.Usage(q.name)
		if used := v.Allocated.Add(v.Held).Get(queue.GPU); used > v.EffectiveLimit.Get(queue.GPU) {
			return fmt.Sprintf("queue %s uses %d of its limit of %d", q.name, used, v.EffectiveLimit.Get(queue.GPU))
		}
	}
	return ""
}

// unsound says what is wrong with the sums, empty if nothing is.
func (s *state) unsound() string {
	s.settleBooks()
	var total int64
	for _, r := range s.ledger.Records() {
		if seat, yes := strings.CutPrefix(string(r.Pod.UID), "reserved for "); yes {
			id, _, _ := strings.Cut(seat, " on ")
			if s.reservations[id] == nil {
				return fmt.Sprintf("%q is held for nobody", r.Pod.UID)
			}
			continue
		}
		c, ok := s.tree.Charged(r.Pod.UID)
		if len(r.Charges) == 0 && s.counted[r.Pod.UID] == nil {
			continue // a member without GPUs, in no queue
		}
		if !ok || c.State != queue.Held && c.State != queue.Allocated {
			return fmt.Sprintf("pod %s has GPUs and is charged %v", r.Pod.Name, c)
		}
		var shares int64
		for _, charge := range r.Charges {
			shares += int64(charge.Shares)
		}
		if shares != c.Amounts.Get(queue.GPU) {
			return fmt.Sprintf("pod %s has %d shares and is charged %d", r.Pod.Name, shares, c.Amounts.Get(queue.GPU))
		}
		total += shares
	}
	for id := range s.reservations {
		if c, ok := s.tree.Charged(creditFor(id)); ok {
			total += c.Amounts.Get(queue.GPU)
		}
	}
	u := s.tree.Total()
	if used := u.Allocated.Get(queue.GPU) + u.Held.Get(queue.GPU); used != total {
		return fmt.Sprintf("queues are charged %d shares, pods have %d", used, total)
	}
	for _, q := range s.queues {
		own := int32(0)
		for _, e := range s.pending {
			if s.waits(e) && s.queueName(e.pod.UID) == q.name {
				own++
			}
		}
		if q.backlog != own {
			return fmt.Sprintf("queue %s has %d in line, and %d wait", q.name, q.backlog, own)
		}
	}
	kept := map[string]gang.Resources{}
	for _, e := range s.pending {
		if e.kept != nil {
			kept[e.kept.node] = kept[e.kept.node].Add(e.kept.needs)
		}
	}
	for _, m := range s.members {
		if m.place != nil {
			kept[m.place.Node] = kept[m.place.Node].Add(m.needs)
		}
	}
	for name, n := range s.nodes {
		if !n.kept.Equal(kept[name]) {
			return fmt.Sprintf("node %s keeps %v, its holds %v", name, n.kept, kept[name])
		}
		if n.view == nil {
			continue
		}
		if _, known := s.p.Snapshot().Ledger.Position(name); !known {
			continue
		}
		if free := n.view.Allocatable.Sub(n.used).Sub(n.kept).MilliCPU; s.shown(name) != placement.CPU(free) {
			return fmt.Sprintf("node %s has %d of its processors free, readers see %v", name, free, s.shown(name))
		}
	}
	return ""
}

// shown is what readers see of a node.
func (s *state) shown(name string) placement.Room {
	snapshot := s.p.Snapshot()
	at, _ := snapshot.Ledger.Position(name)
	return snapshot.room(at, ownRoom{})
}

// leftover says what the planner still knows of pods when all have gone; empty if
// nothing.
func (s *state) leftover() string {
	count := map[string]int{
		"claims": s.ledger.Len(), "demand": int(s.tree.Total().Demand.Get(queue.GPU)), "reservations": len(s.reservations),
		"counted": len(s.counted), "pending": len(s.pending), "wanting": len(s.wanting), "leaving": len(s.leaving), "vacant": len(s.vacant),
		"preemptors": len(s.preemptors), "woken": len(s.woken), "untold": len(s.untold), "unwatched": len(s.unwatched), "members": len(s.members),
	}
	for _, n := range s.nodes {
		if !n.kept.Equal(gang.Resources{}) {
			count["nodes that keep something"]++
		}
	}
	for _, list := range []*sync.Map{&s.p.admitted, &s.p.refused} {
		list.Range(func(_, _ any) bool { count["admitted or refused"]++; return true })
	}
	for _, q := range s.queues {
		count["pods in queues"] += q.pods
		if q.stuck {
			count["stuck queues"]++
		}
	}
	s.tidyLines()
	for _, q := range s.queues {
		count["lines"] += len(q.lines)
	}
	maps.DeleteFunc(count, func(_ string, n int) bool { return n == 0 })
	if len(count) == 0 {
		return ""
	}
	return fmt.Sprintf("left of pods that are gone: %v", count)
}

// outdated names a queue of which the last report is outdated, if one is and
// nothing will have it made anew.
func (s *state) outdated() string {
	if s.queueTold || s.gatesStale {
		return ""
	}
	backlog, opens := s.backlogs(), s.opens()
	for _, q := range s.queues {
		if q.view == nil {
			continue
		}
		if now := s.reportBasis(q, backlog[q.name], opens[q.name]); !now.equal(&q.basis) {
			return fmt.Sprintf("queue %s was last reported with %+v and has %+v", q.name, q.basis, now)
		}
	}
	return ""
}
