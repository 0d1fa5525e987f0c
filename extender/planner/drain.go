package planner

import (
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
)

// drainEvery is how often the pods of a queue that is drained are asked to go:
// budgets may keep some for a while.
const drainEvery = 10 * time.Second

// drain asks the pods of queues that are to be emptied to go.
func (s *state) drain(log logr.Logger, now time.Time) {
	for _, q := range s.queues {
		if q.view == nil || q.view.Stop != v1alpha1.StopHoldAndDrain || now.Sub(q.drained) < drainEvery {
			continue
		}
		q.drained = now
		n := 0
		for _, c := range s.counted {
			if c.pod.Node == "" || c.pod.Deleting || c.pod.Ended || !s.under(c.queue, q.name) {
				continue
			}
			n++
			s.expelled[c.pod.UID] = true
			s.p.effects.Evict(ref(c.pod), eventDrained, fmt.Sprintf("Evicted, since queue %s has spec.stopPolicy HoldAndDrain. Its successor waits until that is set to None.", q.name))
		}
		if n > 0 {
			log.Info("Queue is drained", "queue", q.name, "pods", n)
		}
	}
}

// under says whether a queue is another one or below it.
func (s *state) under(name, above string) bool {
	return slices.Contains(s.upward(name), above)
}
