package planner

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/gang"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/placement"
)

// This file admits single pods: it finds a place, holds it, and lets the
// scheduler have the pod, by lifting its gate or by waking it. From there on it
// is a pod like any other: Filter passes all nodes on which it fits, and the
// hold moves along. So a wish that the planner does not know costs nothing but
// the nomination.

// kept is what a single pod's hold keeps of its node besides GPUs.
type kept struct {
	node  string
	needs gang.Resources
}

// servePod tries to admit a single pod.
func (r *round) servePod(log logr.Logger, at *lane, i *item, now time.Time) {
	s, e := r.s, i.pod
	if now.Before(e.quiet) || s.pending[e.pod.UID] != e || !s.waits(e) {
		at.limitsOnly = false
		return
	}
	if e.since.IsZero() {
		e.since = now
	}
	why, found := r.tryPod(at, i, now)
	if why != nil {
		c := at.pods[0]
		limit := why == at.closed || why == at.refused[c.key]
		at.limitsOnly = at.limitsOnly && limit
		if c.key != mixed && (limit || why == at.full[c.key]) {
			why = s.withNotes(i.want(), c.line.share(why))
		}
		s.tellPod(e, why, now)
		return
	}
	at.limitsOnly = false
	if found != nil {
		log.V(2).Info("Pod admitted", "pod", klog.KRef(e.pod.Namespace, e.pod.Name), "queue", at.queue, "node", found.Node)
	}
}

// tryPod admits a pod, or says why it is not admitted.
func (r *round) tryPod(at *lane, i *item, now time.Time) (*reason, *gang.Place) {
	if why := r.lacksQuota(at, i, now); why != nil {
		return why, nil
	}
	if !i.pod.pod.UsesGPU {
		r.s.admitUnheld(i.pod)
		return nil, nil
	}
	return r.placePod(at, i, now)
}

// lacksQuota says why a pod's queue does not take it, nil if it does. The lane
// remembers what holds for others.
func (r *round) lacksQuota(at *lane, i *item, now time.Time) *reason {
	s, e := r.s, i.pod
	pod, id := e.pod, podID(e.pod.UID)
	reserved := s.reservations[id] != nil
	if pod.Problem != "" {
		return &reason{eventInvalid, pod.Problem, 0}
	}
	if at.closed != nil {
		return at.closed
	}
	shape := s.shapeOf(e)
	if why := at.refused[shape]; why != nil && !reserved {
		s.setFutile(e, at.futile[shape])
		s.wantQuota(at, i, why)
		return why
	}
	if why := s.admits(at.queue, pod.Namespace, "the pod", i.ask, creditFor(id)); why != nil {
		s.wantQuota(at, i, why)
		if reserved && e.why != nil {
			return e.why
		}
		s.setFutile(e, why.word == v1alpha1.ReasonQueueTooSmall)
		at.futile[shape] = e.futile
		if closes(why) {
			at.closed = why
		} else if why.word != v1alpha1.ReasonQueueForbidden {
			at.refused[shape] = why
		}
		return why
	}
	return s.yields(id, at.queue, "the pod", pod.Priority, i.ask, now)
}

// placePod holds a place for a pod that its queue would take, or says why there
// is none.
func (r *round) placePod(at *lane, i *item, now time.Time) (*reason, *gang.Place) {
	s, e := r.s, i.pod
	shape := s.shapeOf(e)
	request, some := s.narrowed(e.pod.Request, at.queue, i.ask)
	if !some {
		return s.modelsFull(at.queue), nil
	}
	// Something may be put by for it, which need not be there yet: then what has
	// become free elsewhere meanwhile does as well.
	reserved := s.reservations[podID(e.pod.UID)] != nil
	place, lacks := r.reservedSpot(e, request), Reason("")
	if why := at.full[shape]; why != nil && place == nil {
		if reserved {
			return e.why, nil
		}
		s.setFutile(e, at.futile[shape])
		if !e.futile {
			at.fail(s, i)
		}
		return s.withNotes(i.want(), why), nil
	}
	var dear *reason
	if place == nil {
		place, lacks, dear = r.allowedSpot(at, i, request)
	}
	switch {
	case place != nil:
		s.setFutile(e, false)
		if !s.admitHeld(r, e, place, now) {
			return s.noRoom(e, at.queue, placement.NotTogether), nil
		}
		return nil, place
	case reserved:
		return e.why, nil // it waits for those that are to go
	case dear != nil:
		return dear, nil
	case s.foreignTakes(r, e.pod):
		s.setFutile(e, false)
		s.admitUnheld(e)
		return nil, nil
	}
	s.setFutile(e, final(lacks))
	if !e.futile {
		at.fail(s, i)
		s.expose(at, e)
	}
	why := s.noRoom(e, at.queue, lacks)
	at.full[shape], at.futile[shape] = why, e.futile
	return s.withNotes(i.want(), why), nil
}

// allowedSpot looks for the best place that a pod's queue allows: what memory
// comes to on very GPUs may be more than was asked about. dear is why one that
// was found is not allowed.
func (r *round) allowedSpot(at *lane, i *item, request contract.Request) (place *gang.Place, lacks Reason, dear *reason) {
	s, e := r.s, i.pod
	place, lacks = r.spot(e, s.shapeOf(e), request, func(p *gang.Place) bool {
		cost := s.planCost(e.pod, p.Plan, p.Node)
		if beyond(cost, i.ask).IsZero() {
			return true
		}
		why := s.admits(at.queue, e.pod.Namespace, "the pod", cost, creditFor(podID(e.pod.UID)))
		if dear == nil {
			dear = why
		}
		return why == nil
	})
	return place, lacks, dear
}

// reservedSpot looks where something was put by for the pod.
func (r *round) reservedSpot(e *pending, request contract.Request) *gang.Place {
	o := r.s.reservations[podID(e.pod.UID)]
	if o == nil {
		return nil
	}
	r.prepare()
	opts := gang.Options{Resources: r.s.p.opts.Resources, Without: r.s.seatsFor(o.id)}
	var nodes []*gang.Node
	for node := range o.targets {
		if g := r.board.node(node); g != nil {
			nodes = append(nodes, g)
		}
	}
	places, short := gang.Plan(nodes, []gang.Member{r.s.single(e, request)}, nil, opts)
	if short != nil {
		return nil
	}
	return &places[0]
}

// closes says that a reason is the queue's, whoever asks.
func closes(why *reason) bool {
	return why.word == v1alpha1.ReasonQueueUnknown || why.word == v1alpha1.ReasonQueueStopped || why.word == v1alpha1.ReasonQueueNotLeaf
}

// modelsFull says that a queue may have no more of the models that a pod takes.
func (s *state) modelsFull(name string) *reason {
	return &reason{v1alpha1.ReasonQueueLimit, fmt.Sprintf("queue %s, or one above it, has as much as spec.limit.gpuModels allows of every GPU model that would do; it goes on when pods of the queue end, the limit is raised, or other models are allowed", name), 0}
}

// admitHeld holds the place for the pod and hands it to the scheduler.
func (s *state) admitHeld(r *round, e *pending, place *gang.Place, now time.Time) bool {
	pod := e.pod
	s.endReservation(podID(pod.UID), now)
	claim := ledger.Claim{Pod: ref(pod), Node: place.Node, Charges: place.Plan.Charges(pod.Roles), Plan: place.Plan}
	if refusal := s.ledger.Hold(claim, now.Add(s.p.opts.GangHoldTimeout)); refusal != "" {
		return false
	}
	s.settleBooks()
	s.keepFor(e, place.Node, pod.Needs)
	e.given = place.Node
	r.refresh(place.Node)
	s.showAdmitted(e, place.Node)
	s.endWait(e)
	if pod.Gated {
		a := Admission{Pod: ref(pod), Gated: true, Version: s.ledger.Version()}
		if s.p.opts.Nominate && pod.Free {
			a.Node = place.Node
			e.nominated = place.Node
		}
		r.admissions = append(r.admissions, a)
		return true
	}
	e.woken, e.wokenFor = now, place.Node
	s.woken[pod.UID] = e
	s.p.effects.Wake(ref(pod), s.ledger.Version())
	return true
}

// admitUnheld lets the scheduler have a pod for which nothing is held: one
// without GPUs, or for the GPUs of another device plugin.
func (s *state) admitUnheld(e *pending) {
	if c := s.counted[e.pod.UID]; c != nil {
		c.admitted = true
		s.book(e.pod.UID)
	}
	if e.pod.UsesGPU {
		s.p.admitted.Store(e.pod.UID, &admitted{}) // its queue was asked
	}
	s.endWait(e)
	s.p.effects.Admit([]Admission{{Pod: ref(e.pod), Gated: e.pod.Gated, Version: s.ledger.Version()}})
}

// endWait notes that a pod waits for nothing of ours.
func (s *state) endWait(e *pending) {
	if e.waiting {
		e.waiting = false
		s.waitingChanged = true
	}
	e.why, e.since = nil, time.Time{}
	s.relist(e)
	s.p.refused.Delete(e.pod.UID)
	s.tell()
}

// foreignTakes says whether a node whose GPUs belong to another device plugin has
// whole ones for the pod, by the scheduler's own count.
func (s *state) foreignTakes(r *round, pod *view.Pod) bool {
	if !pod.WholeOnly() {
		return false
	}
	for name := range s.foreign {
		if g := r.board.node(name); g != nil {
			if ok, _ := pod.Constraints.Match(g); !ok {
				continue
			}
			if ok, _ := gang.Fits(g.Free, pod.Needs); ok {
				g.Free = g.Free.Sub(pod.Needs) // until the next round
				r.lent = append(r.lent, name)
				return true
			}
		}
	}
	return false
}

// exposes says whether a queue lets its first be seen when there is no room.
func (s *state) exposes(at *lane) bool {
	q := s.queues[at.queue]
	return q != nil && q.view != nil && q.view.WhenFull == v1alpha1.WhenFullExpose && len(at.failed) == 1 && !at.exposed
}

// showsItself says whether a waiting pod of a queue that exposes its first has no
// gate.
func (s *state) showsItself(q *queueState, e *pending) bool {
	return q.view != nil && q.view.WhenFull == v1alpha1.WhenFullExpose && !e.pod.Gated && (e.pod.Unschedulable || e.waiting)
}

// exposeGang lifts the gates of a gang that finds no room, without its members
// having places: Filter refuses them until they have.
func (s *state) exposeGang(g *gangState) {
	var list []Admission
	for _, m := range g.members {
		if m.pod.Gated && m.place == nil && !m.exposed {
			m.exposed = true
			list = append(list, Admission{Pod: ref(m.pod), Gated: true, Version: s.ledger.Version()})
		}
	}
	if len(list) > 0 {
		s.p.effects.Admit(list)
	}
}

// expose lifts the gate of the first of a queue that finds no room, if the queue
// says so: a cluster autoscaler does not see pods that have a gate.
func (s *state) expose(at *lane, e *pending) {
	if !s.exposes(at) || !e.pod.Gated || e.exposed {
		return
	}
	e.exposed, at.exposed = true, true
	s.p.effects.Admit([]Admission{{Pod: ref(e.pod), Gated: true, Version: s.ledger.Version()}})
}

// keepFor notes what the hold of a single pod keeps of its node.
func (s *state) keepFor(e *pending, node string, needs gang.Resources) {
	s.unkeepFor(e)
	if n := s.nodes[node]; n != nil {
		e.kept = &kept{node, needs}
		n.kept = n.kept.Add(needs)
		s.tellRoom(node, n)
	}
}

// unkeepFor ends that.
func (s *state) unkeepFor(e *pending) {
	if e.kept == nil {
		return
	}
	if n := s.nodes[e.kept.node]; n != nil {
		n.kept = n.kept.Sub(e.kept.needs)
		s.tellRoom(e.kept.node, n)
		if n.view == nil {
			s.forgetNode(e.kept.node)
		}
	}
	e.kept = nil
}

// setFutile notes whether any wait would help the pod; one that would not is no
// demand of its queue.
func (s *state) setFutile(e *pending, futile bool) {
	if e.futile != futile {
		e.futile = futile
		s.book(e.pod.UID)
	}
}

// shapeOf numbers the shape of a pod.
func (s *state) shapeOf(e *pending) int {
	if e.shapeID == 0 {
		text := shapeText(e.pod, e.pod.Request)
		if len(e.avoided) > 0 {
			text += fmt.Sprintf("|%q", slices.Sorted(maps.Keys(e.avoided)))
		}
		id := s.shapes[text]
		if id == 0 {
			if len(s.shapes) >= mostShapes {
				s.forgetShapes()
			}
			id = s.lastShape + 1
			s.lastShape = id
			s.shapes[text] = id
		}
		e.shapeID = id
	}
	return e.shapeID
}

// shapeText is equal for pods of one queue that fit in the same places and are
// placed alike, if they make those requests. The queue's policy and the setting's
// may change, so that only a pod's own wish is part of it: who leaves it to them is
// not placed like one who wishes for any.
func shapeText(pod *view.Pod, request contract.Request) string {
	return fmt.Sprintf("%s|%s", request.Placement, gang.ShapeOf(request, pod.Needs, pod.Constraints, nil))
}

// mostShapes bounds what is remembered of shapes.
const mostShapes = 8192

// forgetShapes begins anew. Numbers are not used again.
func (s *state) forgetShapes() {
	clear(s.shapes)
	clear(s.hopeless)
}

// single makes the one-member gang that a pod is.
func (s *state) single(e *pending, request contract.Request) gang.Member {
	pod := e.pod
	return gang.Member{
		Pod: ref(pod), Request: request, Policy: s.policyOf(pod), Needs: pod.Needs, Constraints: pod.Constraints, Avoid: e.avoided,
	}
}
