package planner

import (
	"container/heap"
	"slices"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
)

// This file keeps the single pods that wait, sorted into queues and, in each
// queue, into lines of equal pods: what is found about one of a line holds for
// all behind it, so that a round need not look at thousands.

// line has the pods of one shape that wait in a queue.
type line struct {
	// pods are sorted by before unless unsorted. Those that do not wait any more
	// are dropped when a round comes to them; live counts the others.
	pods     []*pending
	unsorted bool
	live     int
	// why is what they are told together: one for all, brought up to date in
	// place.
	why *reason
	// settled says that all of them were told why, with futile as it is, and that
	// nobody has come since.
	settled, futile bool
}

// mixed is the line of pods that cannot be understood, each for a reason of its
// own.
const mixed = 0

// lineOf is the number of the line for a pod.
func (s *state) lineOf(e *pending) int {
	if e.pod.Problem != "" {
		return mixed
	}
	return s.shapeOf(e)
}

// share has the line's pods told a reason.
func (l *line) share(why *reason) *reason {
	if l.why == nil || l.why.word != why.word {
		l.why, l.settled = &reason{}, false
	}
	*l.why = *why
	return l.why
}

// enlist has a single pod served in its queue's turn, if it waits.
func (s *state) enlist(e *pending) {
	if !s.waits(e) {
		s.delist(e)
		return
	}
	s.gangsDirty = true
	s.tell()
	q := s.queueOf(s.queueName(e.pod.UID))
	q.fresh = true
	key := s.lineOf(e)
	l := q.lines[key]
	if l == nil {
		if q.lines == nil {
			q.lines = map[int]*line{}
		}
		l = &line{}
		q.lines[key] = l
	}
	l.settled = false
	if e.line == l {
		return
	}
	s.delist(e)
	e.line, e.lane = l, q.name
	l.live++
	q.backlog++
	if e.slot != l {
		e.slot = l
		l.pods = append(l.pods, e)
		l.unsorted = true
	}
}

// delist ends that. Its slot is left for the next round to drop.
func (s *state) delist(e *pending) {
	if e.line == nil {
		return
	}
	e.line.live--
	e.line = nil
	if q := s.queues[e.lane]; q != nil {
		q.backlog--
		if s.wanting[podID(e.pod.UID)] != nil {
			s.gangsDirty = true // for forgetWants
		}
	}
	s.tell()
}

// relist brings a pod's place up to date, if it has one.
func (s *state) relist(e *pending) {
	switch {
	case e.line == nil:
	case !s.waits(e):
		s.delist(e)
	case e.lane != s.queueName(e.pod.UID):
		s.enlist(e)
	}
}

// tidy sorts the line and drops those that left, if they are many.
func (l *line) tidy() {
	if 2*l.live < len(l.pods) {
		l.pods = slices.DeleteFunc(l.pods, l.left)
	}
	if l.unsorted {
		l.unsorted = false
		slices.SortFunc(l.pods, func(a, b *pending) int { return before(a.pod, b.pod) })
	}
}

// tidyLines drops gone pods of queues that no round comes to.
func (s *state) tidyLines() {
	for _, q := range s.queues {
		for key, l := range q.lines {
			if l.tidy(); len(l.pods) == 0 {
				delete(q.lines, key)
			}
		}
	}
}

// left says that a pod of the slice does not belong to it any more, which it
// notes.
func (l *line) left(e *pending) bool {
	if e.line == l {
		return false
	}
	if e.slot == l {
		e.slot = nil
	}
	return true
}

// cursor goes through a line in a round.
type cursor struct {
	key  int
	line *line
	next int
	// passed says that it has passed any, differ that not all of them were told the
	// line's reason or are futile alike.
	passed, differ, futile bool
}

// seek goes to the next that waits, and says whether there is one.
func (c *cursor) seek(s *state, queue string) bool {
	for ; c.next < len(c.line.pods); c.next++ {
		e := c.line.pods[c.next]
		switch {
		case e.line != c.line:
		case s.pending[e.pod.UID] != e:
			s.delist(e)
		case s.waits(e) && s.queueName(e.pod.UID) == queue && s.lineOf(e) == c.key:
			return true
		default:
			s.enlist(e) // where it belongs, if it waits at all
		}
	}
	c.line.settled, c.line.futile = c.passed && !c.differ && c.line.why != nil, c.futile
	return false
}

func (c *cursor) pod() *pending { return c.line.pods[c.next] }

// pass notes what the pod was told before the cursor leaves it. One that is told
// besides why nobody is evicted for it does not keep others from being skipped.
func (c *cursor) pass(s *state) {
	if e := c.pod(); e.line == c.line && !s.spared(e) {
		c.differ = c.differ || e.why != c.line.why || c.passed && e.futile != c.futile
		c.passed, c.futile = true, e.futile
	}
	c.next++
}

// cursors is a heap of those that are at a pod, the first by before on top.
type cursors []*cursor

func (h cursors) Len() int           { return len(h) }
func (h cursors) Less(i, j int) bool { return before(h[i].pod().pod, h[j].pod().pod) < 0 }
func (h cursors) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *cursors) Push(x any) {
	if c, ok := x.(*cursor); ok {
		*h = append(*h, c)
	}
}

func (h *cursors) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	*h = (*h)[:last]
	return x
}

// addPods puts the waiting pods of a queue in its lane.
func (l *lanes) addPods(q *queueState) {
	at := l.of(q.name)
	q.fresh = false // who comes from here on is served in the next round
	q.limited, q.limitedAt, q.limitedSpecs = false, l.s.tree.Mark(q.name), l.s.specs
	at.limitsOnly = true
	for key, line := range q.lines {
		if line.tidy(); line.live == 0 {
			continue
		}
		if q.view != nil && q.view.WhenFull == v1alpha1.WhenFullExpose {
			for _, e := range line.pods {
				if e.line == line {
					e.exposed = e.exposed || l.s.showsItself(q, e) // by an earlier leader
					at.exposed = at.exposed || e.exposed
				}
			}
		}
		if c := (&cursor{key: key, line: line}); c.seek(l.s, q.name) {
			at.pods = append(at.pods, c)
		}
	}
	heap.Init(&at.pods)
}

// standsStill says whether a round would find all waiting pods of a queue where
// they were: limits keep them out, and nothing has changed that has a say in it.
func (s *state) standsStill(q *queueState) bool {
	return q.limited && !q.fresh && !s.newcomers && q.limitedSpecs == s.specs && q.limitedAt == s.tree.Mark(q.name)
}

// noteLimited notes of which queues a whole round has found that limits alone keep
// their pods out.
func (l *lanes) noteLimited() {
	for name, at := range l.byName {
		if q := l.s.queues[name]; q != nil && at.limitsOnly {
			q.limited = true
		}
	}
}

// advance leaves the first pod.
func (l *lane) advance(s *state) {
	c := l.pods[0]
	c.pass(s)
	if c.seek(s, l.queue) {
		heap.Fix(&l.pods, 0)
	} else {
		heap.Pop(&l.pods)
	}
}

// skip leaves the first pod and all of its line behind it.
func (l *lane) skip() { heap.Pop(&l.pods) }

// settle has the first cursor be at a pod that waits.
func (l *lane) settle(s *state) {
	for len(l.pods) > 0 {
		c := l.pods[0]
		at := c.next
		if !c.seek(s, l.queue) {
			heap.Pop(&l.pods)
			continue
		}
		if c.next == at {
			return
		}
		heap.Fix(&l.pods, 0)
	}
}
