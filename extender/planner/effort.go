package planner

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// This file keeps evictions from going on for ever: for somebody who never uses
// the room that is made, or of somebody whom a budget protects.

// effort is what was done in vain, how often, and until when it is not done
// again.
type effort struct {
	times int
	until time.Time
}

func (e *effort) again(now time.Time, pauses []time.Duration) {
	e.until = now.Add(pauses[min(e.times, len(pauses)-1)])
	e.times++
}

var (
	// makingPauses are between the times that room is made for one gang or pod:
	// it may be that the scheduler does not want it there, or that its Binding
	// fails, for reasons that nobody here knows.
	makingPauses = []time.Duration{30 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour}
	// stubbornPauses are how long a pod is left alone after it could not be
	// evicted.
	stubbornPauses = []time.Duration{2 * time.Minute, 5 * time.Minute, 10 * time.Minute}
)

// made notes that room was made for w.
func (s *state) made(w *want, now time.Time) {
	e := s.efforts[w.id]
	if e == nil {
		e = &effort{}
		s.efforts[w.id] = e
	}
	e.again(now, makingPauses)
}

// unmade takes that back: nobody has gone for it.
func (s *state) unmade(w *want) {
	if e := s.efforts[w.id]; e != nil {
		e.times--
		e.until = time.Time{}
	}
}

// rested says whether room may be made for w again.
func (s *state) rested(w *want, now time.Time) bool {
	e := s.efforts[w.id]
	return e == nil || !now.Before(e.until)
}

// leaveAlone notes that a pod could not be evicted.
func (s *state) leaveAlone(uid types.UID, now time.Time) {
	e := s.stubborn[uid]
	if e == nil {
		e = &effort{}
		s.stubborn[uid] = e
	}
	if now.Before(e.until) {
		return // one refusal, told twice
	}
	e.again(now, stubbornPauses)
}

// isStubborn says whether a pod is to be left alone now.
func (s *state) isStubborn(uid types.UID, now time.Time) bool {
	e := s.stubborn[uid]
	return e != nil && now.Before(e.until)
}

// sweepEfforts forgets those that have what they wanted, or are gone.
func (s *state) sweepEfforts() {
	for uid := range s.stubborn {
		if s.counted[uid] == nil {
			delete(s.stubborn, uid)
		}
	}
	known := map[string]bool{}
	for uid := range s.pending {
		known[podID(uid)] = true
	}
	for _, g := range s.gangs {
		if len(g.members) > 0 && (!g.started || g.why != nil) {
			known[g.id()] = true
		}
	}
	for id := range s.efforts {
		if !known[id] {
			delete(s.efforts, id)
		}
	}
}
