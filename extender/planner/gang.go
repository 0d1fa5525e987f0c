package planner

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/gang"
)

// This file has what the owner keeps of gangs. How a gang starts:
//
//  1. Its members wait at our gate until minCount of them exist.
//  2. planGangs finds places for all of them at once (package gang) and holds
//     these, or holds nothing and says why.
//  3. Admit nominates and ungates them. From now on the scheduler has them.
//  4. Filter passes the held node only. If the scheduler does not offer it, the
//     gang is planned anew around that.
//  5. Reserve lets the members wait until all have come, and commits them
//     together. Only then is the first of them bound.
//
// A gang of which some members are bound, because a Binding failed or the
// extender was restarted, is at step 1 again with the rest, and goes before
// others. A gang that has started is never taken back: what it loses is planned
// member by member.

// gangState is a gang. It exists while it has members or an object.
type gangState struct {
	key GangKey
	// object is the Gang, group the PodGroup; nil if there is none.
	object *view.Gang
	group  *view.Group
	// members are its pods that are not over, and those that have succeeded.
	members map[types.UID]*member
	// succeeded are members that have done their work, with their owners: they
	// count even when their pods are gone, as long as the gang has any.
	succeeded map[types.UID]owner

	// vacancies are members that a started gang has lost: their shares stay
	// held for a while for those who take their place.
	vacancies map[types.UID]bool

	// dirty says that something has changed since it was last looked at.
	dirty bool
	// started says that minCount were bound once; see above.
	started bool

	// why is what it waits for, nil if for nothing.
	why *reason
	// told is the kind of reason that began at since; telling is when members
	// are to be told, zero if none is left to be.
	since, telling time.Time
	told           string
	// tried is the capacity at which no place was found; lacksRoom says that it
	// was for lack of room, not of quota.
	tried     uint64
	lacksRoom bool
	// asleep says that it waits for something else than its queue: members that
	// are not there, or that disagree.
	asleep bool
	// deadline is until when a group of held members may take to be bound;
	// latest bounds how far progress moves it. Zero: no group is held.
	deadline, latest time.Time
	// most is how many were bound at the last look, peak at best since the start,
	// its minimum then: what it is repaired to.
	most, peak int
	// failures in a row, without it being planned again before notBefore.
	failures  int
	notBefore time.Time
	// torn is since when some but not minCount have been bound, stale since when
	// a started gang has been below it; zero if it is not.
	torn, stale time.Time
	// evicted is when the rest was last asked to go, zero if it may stay.
	evicted time.Time
	// reported is what its object was last told, at reportedAt; retell is when
	// newer words are due.
	reported           *GangReport
	reportedAt, retell time.Time
}

// member is a pod of a gang.
type member struct {
	gang *gangState
	pod  *view.Pod
	// shape is equal for members that can change places.
	shape string
	// place is where it is held, nil if nowhere. needs is what that keeps of
	// the node.
	place *gang.Place
	needs gang.Resources
	// deadline ends the place of a member that is not waited for by others.
	deadline time.Time
	// arrival waits in Bind; nil if the member has not come there.
	arrival *arrival
	// came says that it has come to Bind since it got its place.
	came bool
	// avoid are nodes that the scheduler did not want for it, and until when
	// that is believed.
	avoid map[string]time.Time
	// warned is the word of the reason that its last event was about.
	warned   string
	warnedAt time.Time
	// tried says that a place was sought for it alone.
	tried bool
	// exposed says that its gate was lifted only to be seen.
	exposed bool
}

// id is the gang's name among wants and reservations.
func (g *gangState) id() string { return "gang " + g.key.Namespace + "/" + g.key.Name }

// gangOf returns the state of a gang, made if it is new.
func (s *state) gangOf(key GangKey) *gangState {
	g := s.gangs[key]
	if g == nil {
		g = &gangState{key: key, members: map[types.UID]*member{}, succeeded: map[types.UID]owner{}}
		s.gangs[key] = g
	}
	g.dirty = true
	s.gangsDirty = true
	return g
}

// dropGang forgets a gang of which nothing is left.
func (s *state) dropGang(g *gangState) {
	if len(g.members) == 0 && g.object == nil && g.group == nil {
		delete(s.gangs, g.key)
	}
}

func (s *state) observeGang(o *view.Gang) {
	g := s.gangOf(GangKey{o.Namespace, o.Name})
	if g.object == nil && o.Started && !g.started {
		// An earlier leader saw it start.
		g.started = true
	}
	moved := g.object == nil || g.object.Queue != o.Queue || g.object.Managed != o.Managed
	if g.object != nil && g.object.UID != o.UID {
		g.reported = nil
	}
	g.object = o
	g.tried = 0
	if moved {
		s.recount(g)
	}
}

// recount counts the members anew, after the gang's object has named another
// queue for them.
func (s *state) recount(g *gangState) {
	now := s.p.opts.Clock.Now()
	for uid, m := range g.members {
		c := s.counted[uid]
		if m.pod.Ended {
			continue
		}
		if c == nil || m.pod.Node == "" {
			if c != nil && m.place != nil && c.queue != s.queueFor(m.pod) && !s.charged(m) {
				s.unplace(m, now) // the other queue is asked first
			}
			s.count(m.pod)
			s.book(uid)
		}
	}
}

func (s *state) forgetGang(key GangKey) {
	if g := s.gangs[key]; g != nil {
		g.object, g.reported, g.tried = nil, nil, 0
		s.recount(g)
		g.dirty, s.gangsDirty = true, true
	}
}

func (s *state) observeGroup(o *view.Group) {
	g := s.gangOf(GangKey{o.Namespace, o.Name})
	g.group, g.tried = o, 0
}

func (s *state) forgetGroup(key GangKey) {
	if g := s.gangs[key]; g != nil {
		g.group, g.tried = nil, 0
		g.dirty, s.gangsDirty = true, true
	}
}
