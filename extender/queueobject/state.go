package queueobject

import (
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/tranche-dev/tranche/extender/planner"
	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
)

// state is what the Writer knows of one queue.
type state struct {
	// wanted is the last report, nil before the first.
	wanted *planner.QueueReport
	// seen is the object as it was last read or written, nil if it is to be
	// read. It is replaced, never changed.
	seen *v1alpha1.Queue
	// doubted says that what is being read or written now is outdated.
	doubted bool
	// written is when the object was last written, pressed when something
	// pressing was.
	written, pressed time.Time
	// slot is when mere numbers may be written, zero if none was asked for.
	slot time.Time
	// retry is the earliest time after a failure.
	retry time.Time
}

// change is how much of a report is not in the object.
type change int

const (
	// nothing differs.
	nothing change = iota
	// unread: the object has to be read to know.
	unread
	// numbers differ, which people read.
	numbers
	// urgent is what decides whether pods start, or the queue vanishes.
	urgent
)

// change compares what is wanted with what was last seen.
func (s *state) change(now time.Time) change {
	switch {
	case s.wanted == nil:
		return nothing
	case s.seen == nil:
		return unread
	case lacksFinalizer(s.seen, s.wanted), hasUselessFinalizer(s.seen, s.wanted):
		return urgent
	}
	// The planner reports often: what is not written is not copied.
	after := s.wanted.Status
	after.Conditions = conditionsOf(s.seen.Status.Conditions, after.Conditions, now)
	switch {
	case pressing(&s.seen.Status, &after):
		return urgent
	case equality.Semantic.DeepEqual(s.seen.Status, after):
		return nothing
	default:
		return numbers
	}
}
