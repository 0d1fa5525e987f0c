package planner

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/gang"
	"github.com/tranche-dev/tranche/pkg/queue"
)

// want is a gang or a single pod, near the head of its queue, for which there is
// no room although its queue would take it.
type want struct {
	id, queue       string
	namespace, name string
	gang            *gangState
	pod             *pending
	ask             queue.Amounts
	// priority and created rank it, as they do in its lane.
	priority int32
	created  time.Time
	// since is when it was first found to have no room.
	since time.Time
	// next is when it may be tried to make room again, failures how often that
	// has failed in a row.
	next     time.Time
	failures int
	// specs is the count of changes of queues at the last try: what failed then
	// may do now.
	specs uint64
	// rests is until when it gets no standing reservation again.
	rests time.Time
	// limitedBy is the queue whose limit keeps it out, empty if none does.
	limitedBy string
	// kept says why nobody is evicted for it until keptUntil, such as which
	// disruption budget kept the last victims.
	kept      string
	keptUntil time.Time
	// members are those whose places are wanted.
	members []*member
}

// mostWants bounds how many of one queue are tried in a round.
const mostWants = 4

// noteWant notes that an item of a lane found no room.
func (s *state) noteWant(name string, i *item, now time.Time) {
	w := &want{queue: name}
	if i.pod != nil {
		w.id, w.namespace, w.name = podID(i.pod.pod.UID), i.pod.pod.Namespace, i.pod.pod.Name
	} else {
		w.id, w.namespace, w.name = "gang "+i.id, i.gang.g.key.Namespace, i.gang.g.key.Name
	}
	if known := s.wanting[w.id]; known != nil && known.queue == name {
		w = known
	} else {
		w.since = now
		s.wanting[w.id] = w
	}
	w.ask, w.priority, w.created, w.limitedBy = i.ask, i.priority, i.created, i.limitedBy
	if i.pod != nil {
		w.pod = i.pod
	} else {
		w.gang = i.gang.g
	}
}

// wantQuota notes that an item was refused for a limit: perhaps others that are
// below it have more than their share.
func (s *state) wantQuota(at *lane, i *item, why *reason) {
	if why.word == v1alpha1.ReasonQueueLimit && len(at.short) < mostWants {
		if r := s.tree.Check(at.queue, i.ask); r != nil && r.Kind == queue.LimitReached {
			i.limitedBy = r.Queue
		}
		at.short = append(at.short, i)
	}
}

// alive says whether it still wants room.
func (w *want) alive(s *state) bool {
	if w.pod != nil {
		return s.pending[w.pod.pod.UID] == w.pod && s.waits(w.pod) && s.queueName(w.pod.pod.UID) == w.queue
	}
	g := s.gangs[w.gang.key]
	return g == w.gang && g.why != nil && len(g.members) > 0 && !g.asleep
}

// stir has it served in the next round.
func (w *want) stir(s *state) {
	s.gangsDirty = true
	if w.pod != nil {
		s.newcomers = true
		return
	}
	w.gang.dirty, w.gang.tried = true, 0
}

// keep notes that a budget has kept the victims of w, and has that told.
func (w *want) keep(s *state, why string, uids []types.UID) {
	until := time.Time{}
	for _, uid := range uids {
		if e := s.stubborn[uid]; e != nil && e.until.After(until) {
			until = e.until
		}
	}
	w.kept = ""
	w.spare(s, why, until)
}

// spare notes why nobody is evicted for w until then, and has that told.
func (w *want) spare(s *state, why string, until time.Time) {
	w.keptUntil = until
	if w.kept == why {
		return
	}
	w.kept = why
	w.retell(s)
}

// retell has told anew what it waits for.
func (w *want) retell(s *state) {
	s.gangsDirty = true
	if w.pod != nil {
		w.pod.told = ""
		if q := s.queues[w.queue]; q != nil {
			q.fresh = true
		}
	} else {
		w.gang.dirty = true
	}
}

// spared says whether a pod is told why nobody is evicted for it.
func (s *state) spared(e *pending) bool {
	w := s.wanting[podID(e.pod.UID)]
	return w != nil && w.kept != ""
}

// withNotes adds to a reason for which there is no room why none is made for who
// waits, and what is set aside for it.
func (s *state) withNotes(id string, why *reason) *reason {
	text := ""
	if w := s.wanting[id]; w != nil && w.kept != "" && s.p.opts.Clock.Now().Before(w.keptUntil) {
		text = ". Nobody was evicted for it: " + w.kept
	}
	if o := s.reservations[id]; o != nil && o.standing {
		text += fmt.Sprintf(". What becomes free on %d node(s) is set aside for it until %s", len(o.targets), clockTime(o.until))
	}
	if text == "" {
		return why
	}
	more := *why
	more.message = strings.TrimSuffix(more.message, ".") + text
	return &more
}

// asideText says for whom GPUs are set aside that others see as taken; empty if
// for nobody.
func (s *state) asideText(id string) string {
	for _, o := range s.inOrder() {
		if o.standing && o.id != id {
			return fmt.Sprintf(". Free GPUs on %d node(s) are set aside for %s of queue %s, until it starts or %s", len(o.targets), o.want.text(), o.want.queue, clockTime(o.until))
		}
	}
	return ""
}

// clockTime is a time of today in a sentence.
func clockTime(t time.Time) string { return t.UTC().Format("15:04:05 MST") }

// seek returns the pods that want places.
func (w *want) seek(s *state, now time.Time) ([]gang.Member, *gang.Topology) {
	w.members = nil
	if w.pod != nil {
		request, some := s.narrowed(w.pod.pod.Request, w.queue, w.ask)
		if !some {
			return nil, nil
		}
		return []gang.Member{s.single(w.pod, request)}, nil
	}
	t := s.stand(w.gang)
	need := t.need()
	if w.gang.started {
		need = 1
	}
	var list []gang.Member
	for _, m := range t.idle {
		if m.place != nil || len(list) >= need {
			continue
		}
		w.members = append(w.members, m)
		list = append(list, s.memberFor(m, w.queue, now))
	}
	return list, s.topology(w.gang, t)
}

// roles are the containers of the i-th of them.
func (w *want) roles(i int) []contract.ContainerRole {
	if w.pod != nil {
		return w.pod.pod.Roles
	}
	if i < len(w.members) {
		return w.members[i].pod.Roles
	}
	return nil
}

// nonpreempting says that nobody may go for its pods.
func (w *want) nonpreempting() bool {
	if w.pod != nil {
		return w.pod.pod.Nonpreempting
	}
	for _, m := range w.gang.members {
		return m.pod.Nonpreempting
	}
	return false
}

// seats are what is put by for it.
func (s *state) seatsFor(id string) map[types.UID]bool {
	r := s.reservations[id]
	if r == nil {
		return nil
	}
	set := map[types.UID]bool{}
	r.seats(set)
	return set
}
