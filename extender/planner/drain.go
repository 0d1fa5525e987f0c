package planner

import (
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/ledger"
)

// drainEvery is how often the pods of a queue that is drained are asked to go:
// budgets may keep some for a while.
const drainEvery = 10 * time.Second

// drain asks the pods of queues that are to be emptied to go.
func (s *state) drain(log logr.Logger, now time.Time) {
	s.spareDrained()
	for _, q := range s.queues {
		if !s.drains(q.name) || now.Sub(q.drained) < drainEvery {
			continue
		}
		q.drained = now
		n := 0
		for _, c := range s.counted {
			if c.pod.Node == "" || c.pod.Deleting || c.pod.Ended || !s.under(c.queue, q.name) {
				continue
			}
			n++
			s.expelled[c.pod.UID], s.drainees[c.pod.UID] = true, ref(c.pod)
			s.p.effects.Evict(ref(c.pod), eventDrained, fmt.Sprintf("Evicted, since queue %s has spec.stopPolicy HoldAndDrain. Its successor waits until that is set to None.", q.name))
		}
		if n > 0 {
			log.Info("Queue is drained", "queue", q.name, "pods", n)
		}
	}
}

// spareDrained lets those stay who have not gone yet when their queue, or the one
// above it, is not to be emptied any more.
func (s *state) spareDrained() {
	for uid, pod := range s.drainees {
		c := s.counted[uid]
		if c == nil || c.pod.Deleting || c.pod.Ended {
			delete(s.drainees, uid)
			continue
		}
		if !slices.ContainsFunc(s.upward(c.queue), s.drains) {
			delete(s.drainees, uid)
			s.spare(uid, pod)
		}
	}
}

// drains says whether a queue is to be emptied.
func (s *state) drains(name string) bool {
	q := s.queues[name]
	return q != nil && q.view != nil && q.view.Stop == v1alpha1.StopHoldAndDrain
}

// spare lets a pod stay that was asked to go, unless it has been for somebody else.
func (s *state) spare(uid types.UID, pod ledger.Pod) {
	if s.drainees[uid].UID != "" || s.goes(uid) {
		return
	}
	s.p.effects.Spare(pod)
	if c := s.counted[uid]; c != nil && !c.pod.Deleting {
		delete(s.expelled, uid)
	}
}

// under says whether a queue is another one or below it.
func (s *state) under(name, above string) bool {
	return slices.Contains(s.upward(name), above)
}
