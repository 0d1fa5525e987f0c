package planner

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/reclaim"
)

// This file asks those to go who were found, and hears of those who may not.

// begin asks the victims to go and puts by what they leave.
func (s *state) begin(log logr.Logger, w *want, result *reclaim.Result, now time.Time) {
	var evictions []Eviction
	grace := time.Duration(0)
	reserved := s.putBy(w, result.Places, now, now)
	for _, u := range result.Victims {
		event, message := eventReclaimed, fmt.Sprintf("Evicted from queue %s, which uses more than its fair share, for %s of queue %s, which is entitled to what it had.", u.Queue, w.text(), w.queue)
		if u.Queue == w.queue {
			event, message = eventPreempted, fmt.Sprintf("Evicted for %s of the same queue %s, which has a higher priority (%d, against %d).", w.text(), w.queue, w.priority, u.Priority)
		}
		for _, p := range u.Pods {
			c := s.counted[p.UID]
			if c == nil {
				continue
			}
			told := message + " " + afterwards(c.pod)
			charged, _ := s.tree.Charged(p.UID)
			reserved.victims[p.UID] = &victim{pod: ref(c.pod), asked: now, charge: charged.Amounts}
			grace = max(grace, min(c.pod.Grace, mostGrace))
			s.expelled[p.UID] = true
			evictions = append(evictions, Eviction{ref(c.pod), event, told})
		}
	}
	reserved.until = now.Add(grace + goneWithin)
	if len(evictions) > 0 {
		s.made(w, now)
		s.p.effects.EvictTogether(evictions)
	}
	s.p.metrics.Reclaims.WithLabelValues(w.queue).Inc()
	w.explain(s, len(reserved.victims))
	if q := s.queues[w.queue]; q != nil {
		q.fresh = true // those behind it may have room made as well
	}
	log.Info("Room is made", "for", w.text(), "queue", w.queue, "victims", len(reserved.victims))
	s.topUp(now)
}

// afterwards says what becomes of an evicted pod.
func afterwards(pod *view.Pod) string {
	switch pod.Controller {
	case "":
		return "It has no controller, so nobody makes it anew."
	case "Job":
		return "Unless its Job gives up, a new pod takes its place and waits in the queue: let spec.podFailurePolicy of the Job ignore the condition DisruptionTarget, else evictions count against its backoffLimit."
	default:
		return "Its " + pod.Controller + " makes it anew, and it waits in its queue again."
	}
}

// text names it.
func (w *want) text() string {
	if w.pod != nil {
		return fmt.Sprintf("pod %s/%s", w.namespace, w.name)
	}
	return fmt.Sprintf("gang %s/%s", w.namespace, w.name)
}

// explain says what it waits for now.
func (w *want) explain(s *state, victims int) {
	why := &reason{v1alpha1.ReasonReclaiming, fmt.Sprintf("%s in the way of what it asks for in queue %s; what they leave is kept for it", stand(victims), w.queue), 0}
	if victims == 0 {
		why.message = fmt.Sprintf("pods that are on their way out leave enough for what it asks for in queue %s, which is kept for it", w.queue)
	}
	if w.pod != nil {
		s.tellPod(w.pod, why, s.p.opts.Clock.Now())
		return
	}
	w.gang.wait(why)
	w.gang.dirty = true
}

func stand(victims int) string {
	if victims == 1 {
		return "1 pod has been asked to go that stands"
	}
	return fmt.Sprintf("%d pods have been asked to go that stand", victims)
}

// anyoneWent says whether victims of a reservation have gone or are about to.
func (s *state) anyoneWent(r *reservation) bool {
	if !r.credit.IsZero() {
		return true
	}
	for uid := range r.victims {
		if c := s.counted[uid]; c == nil || c.pod.Deleting {
			return true
		}
	}
	return false
}

// evictionRefused leaves pods alone that a disruption budget keeps: others must
// do.
func (s *state) evictionRefused(why string, uids []types.UID, now time.Time) {
	for _, uid := range uids {
		s.leaveAlone(uid, now)
	}
	for _, id := range slices.Sorted(maps.Keys(s.reservations)) {
		r := s.reservations[id]
		if !slices.ContainsFunc(uids, func(uid types.UID) bool { return r.victims[uid] != nil }) {
			continue
		}
		if !s.anyoneWent(r) {
			s.unmade(r.want)
		}
		s.endReservation(id, now)
		r.want.next = now
		r.want.keep(s, why, uids)
		r.want.stir(s)
	}
}
