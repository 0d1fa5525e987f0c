package planner

import (
	"cmp"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/gang"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/units"
)

// This file lets large gangs start on a cluster that is busy with small pods:
// there are never enough places free at one time, however short the small ones
// run. One gang of each queue at the top may have what becomes free on chosen
// nodes put by. The others go on around it.

// standBy begins reservations for those that have waited long enough.
func (r *round) standBy(log logr.Logger, now time.Time) {
	s := r.s
	delay := s.p.opts.ReservationDelay
	if delay <= 0 {
		return
	}
	s.stepAside(now)
	busy := map[string]bool{}
	for _, o := range s.reservations {
		if o.standing {
			busy[s.top(o.want.queue)] = true
		}
	}
	for _, w := range s.wantsInOrder(func(w *want) bool {
		// Who lacks quota gets that first: see yields.
		return w.limitedBy == "" && s.reservations[w.id] == nil && now.Sub(w.since) >= delay && !now.Before(w.rests)
	}) {
		if busy[s.top(w.queue)] || !r.mayStandBy(w) {
			continue
		}
		members, topology := w.seek(s, now)
		if len(members) == 0 {
			continue
		}
		until := now.Add(s.p.opts.ReservationTimeout)
		w.rests = until.Add(s.p.opts.ReservationTimeout)
		places := r.target(members, topology)
		if places == nil {
			continue
		}
		busy[s.top(w.queue)] = true
		o := s.putBy(w, places, until, now)
		o.standing = true
		w.retell(s)
		if w.pod != nil && w.pod.why != nil {
			s.tellPod(w.pod, s.withNotes(w.id, w.pod.why), now)
		}
		s.topUp(now)
		log.Info("What becomes free is put by for a gang that has waited long", "for", w.text(), "queue", w.queue, "nodes", len(o.targets))
	}
}

// mayStandBy says whether the queue of w is entitled to what it asks in the place
// of what it has: the queue's own small ones will go before a large one starts.
func (r *round) mayStandBy(w *want) bool {
	trial := r.trialFor(w)
	u := r.s.tree.Usage(w.queue)
	trial.Assume(w.queue, u.Allocated.Add(u.Held), -1)
	return trial.Entitled()
}

// stepAside ends standing reservations for which somebody more urgent of the same
// queue would have to wait.
func (s *state) stepAside(now time.Time) {
	for _, o := range s.inOrder() {
		if !o.standing {
			continue
		}
		for _, w := range s.wanting {
			if w != o.want && w.queue == o.want.queue && w.priority > o.want.priority && s.reservations[w.id] == nil {
				o.want.rests = now.Add(s.p.opts.ReservationDelay)
				s.endReservation(o.id, now)
				break
			}
		}
	}
}

// top is the queue at the top above a queue.
func (s *state) top(name string) string {
	path := s.upward(name)
	if len(path) == 0 {
		return name
	}
	return path[len(path)-1]
}

// target chooses places as if all pods on some nodes were gone: the fewest nodes
// that do, among those that have the most free already.
func (r *round) target(members []gang.Member, topology *gang.Topology) []gang.Place {
	s := r.s
	r.prepare()
	nodes := make([]*gang.Node, 0, len(r.board.nodes))
	free := map[string]units.Shares{}
	for _, g := range r.board.nodes {
		gone := map[types.UID]bool{}
		for _, c := range g.GPUs.Claims() {
			gone[c.Pod.UID] = true
		}
		n := *g
		n.GPUs, n.Free = g.GPUs.Without(gone), g.Allocatable
		for _, o := range s.reservations {
			if charges := o.targets[g.Name]; charges != nil {
				n.GPUs = n.GPUs.With(ledger.Claim{Pod: ledger.Pod{UID: o.seat(g.Name)}, Node: g.Name, Charges: charges})
			}
		}
		free[g.Name] = g.GPUs.Free()
		nodes = append(nodes, &n)
	}
	slices.SortStableFunc(nodes, func(a, b *gang.Node) int { return cmp.Compare(free[b.Name], free[a.Name]) })
	for some := 1; ; some *= 2 {
		some = min(some, len(nodes))
		places, short := gang.Plan(nodes[:some], members, topology, gang.Options{Resources: s.p.opts.Resources})
		if short == nil {
			return places
		}
		if some == len(nodes) {
			return nil
		}
	}
}
