package planner

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/ledger"
)

// This file is about what calls of the scheduler tell of pods. Their news and the
// watch's come on different ways, so a call may speak of a pod that the watch has
// not shown yet, and of one whose end or Binding it has.

// doubt is a pod of which only a call has told, and when to ask if it exists.
type doubt struct {
	pod ledger.Pod
	due time.Time
}

// callsLag bounds how long after the end of a pod a call may come that was made
// before. Should one come even later, its pod is verified.
const callsLag = 10 * time.Minute

// overtaken says why what a call says of a pod is old, empty if it is not: nothing
// may be counted or held for it then, since the watch has told all that it will.
func (s *state) overtaken(uid types.UID) Reason {
	if _, ok := s.departed[uid]; ok {
		return Deleting
	}
	if e := s.pending[uid]; e != nil && e.pod.Deleting {
		return Deleting
	}
	if r, ok := s.ledger.Get(uid); ok && r.State == ledger.Allocated && s.binding[uid] == "" {
		return Decided
	}
	if s.knownBound(uid) {
		return Decided
	}
	return ""
}

// knownBound says whether the pod has been shown to be bound.
func (s *state) knownBound(uid types.UID) bool {
	if c := s.counted[uid]; c != nil && c.pod.Node != "" {
		return true
	}
	if r, ok := s.ledger.Get(uid); ok && r.State == ledger.Allocated && r.Plan.Node == "" {
		return true
	}
	if _, ok := s.unplannedOn[uid]; ok {
		return true
	}
	m := s.members[uid]
	return m != nil && m.pod.Node != ""
}

// olderView says whether a is an older view of a pod than b, as far as anybody can
// tell.
func olderView(a, b *view.Pod) bool {
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err == nil && order < 0
}

// hear takes note of a pod that a call tells of, unless that is old: then it says
// why. A pod that nobody knows yet is counted in its queue, whose limit it would not
// heed otherwise. If the watch never tells of it, it may have gone before it could.
func (s *state) hear(pod *view.Pod, now time.Time) Reason {
	uid := pod.UID
	if old := s.overtaken(uid); old != "" {
		return old
	}
	if _, claims := s.ledger.Get(uid); claims || s.pending[uid] != nil || s.members[uid] != nil || s.counted[uid] != nil {
		return ""
	}
	if _, known := s.unwatched[uid]; !known {
		s.unwatched[uid] = doubt{ref(pod), now.Add(confirmWithin)}
	}
	s.count(pod)
	s.book(uid)
	return ""
}

// depart remembers that a pod has ended or is gone.
func (s *state) depart(uid types.UID, now time.Time) {
	delete(s.unwatched, uid)
	s.departed[uid] = now
}

// verifyUnwatched asks for pods of which the watch has not told in time.
func (s *state) verifyUnwatched(now time.Time) {
	for uid, d := range s.unwatched {
		if _, ok := s.unconfirmed[uid]; ok {
			continue // it is asked for already
		}
		if !now.Before(d.due) {
			s.unwatched[uid] = doubt{d.pod, now.Add(confirmWithin)}
			s.p.effects.Verify(d.pod)
		}
	}
	for uid, at := range s.departed {
		if now.Sub(at) > callsLag {
			delete(s.departed, uid)
		}
	}
}
