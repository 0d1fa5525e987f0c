package planner

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/queue"
)

// item is what planRound serves: a gang, or a single pod.
type item struct {
	gang *dueGang
	pod  *pending
	// ask is what it would be charged at least.
	ask      queue.Amounts
	priority int32
	created  time.Time
	// id tells items of equal rank apart.
	id string
	// limitedBy is the queue whose limit keeps it out, empty if none does.
	limitedBy string
}

func (i *item) compare(o *item) int {
	return cmp.Or(cmp.Compare(o.priority, i.priority), i.created.Compare(o.created), strings.Compare(i.id, o.id))
}

// lane is what one queue has to be served in a round, in its order: priority,
// then age.
type lane struct {
	queue string
	gangs []*item
	next  int
	pods  cursors
	// present is the first pod as an item, nil if it is to be made.
	present *item
	// failed are those for which there was no room, in their order; short those
	// that a limit refused, which others may have used up.
	failed, short []*item
	// tried is how many there was no room for, in failed or not.
	tried int
	// closed says why nobody else of the queue needs to be tried: it is the
	// queue that refuses, whoever asks. refused are the shapes that its limits
	// refused.
	closed  *reason
	refused map[int]*reason
	// full are the shapes for which there is no room: it only shrinks.
	full map[int]*reason
	// exposed says that one of it has been let be seen already.
	exposed bool
	// limitsOnly says that its single pods are all there, and that nothing else has
	// been found to keep them out than limits, whoever asks.
	limitsOnly bool
	// futile says of those whether no wait would help.
	futile map[int]bool
}

// want is the item's name among wants.
func (i *item) want() string {
	if i.pod != nil {
		return podID(i.pod.pod.UID)
	}
	return i.gang.g.id()
}

// fail notes that there was no room for an item.
func (l *lane) fail(s *state, i *item) {
	l.tried++
	if w := s.wanting[i.want()]; w != nil && w.failures > 0 {
		return // it is remembered, and another may have more luck
	}
	if len(l.failed) < mostWants {
		l.failed = append(l.failed, i)
	}
}

// head is what is to be served next, nil if nothing is.
func (l *lane) head(s *state) *item {
	var first *item
	if l.next < len(l.gangs) {
		first = l.gangs[l.next]
	}
	l.settle(s)
	if len(l.pods) == 0 {
		return first
	}
	e := l.pods[0].pod()
	if l.present == nil || l.present.pod != e {
		e.item = item{pod: e, ask: s.wants(e.pod.UID), priority: e.pod.Priority, created: e.pod.Created, id: e.pod.Namespace + "/" + e.pod.Name}
		l.present = &e.item
	}
	if first != nil && first.compare(l.present) <= 0 {
		return first
	}
	return l.present
}

// leave goes on to the next.
func (l *lane) leave(s *state, i *item) {
	if i.pod == nil {
		l.next++
		return
	}
	l.advance(s)
}

// lanes sorts what is to be served into queues.
type lanes struct {
	s      *state
	byName map[string]*lane
	// order has the names in the order in which queues without an object are
	// served.
	order []string
}

func (s *state) newLanes() *lanes { return &lanes{s: s, byName: map[string]*lane{}} }

func (l *lanes) of(name string) *lane {
	at := l.byName[name]
	if at == nil {
		at = &lane{queue: name, refused: map[int]*reason{}, full: map[int]*reason{}, futile: map[int]bool{}}
		l.byName[name] = at
		l.order = append(l.order, name)
	}
	return at
}

// noteRepair remembers a gang that has begun and found no room for what it lost:
// it goes before all turns, and may have room made like others.
func (l *lanes) noteRepair(d *dueGang) {
	if d.g.lacksRoom && len(d.t.live) > 0 {
		at := l.of(l.s.queueName(d.first()))
		at.fail(l.s, l.itemOf(d))
	}
}

// addGang puts a gang in its queue.
func (l *lanes) addGang(d *dueGang) {
	i := l.itemOf(d)
	at := l.of(l.s.queueName(d.first()))
	for _, m := range d.t.idle {
		at.exposed = at.exposed || m.exposed && m.place == nil
	}
	at.gangs = append(at.gangs, i)
}

// itemOf is a gang as it is served.
func (l *lanes) itemOf(d *dueGang) *item {
	i := &item{gang: d, priority: d.priority(), created: d.created(), id: d.g.key.Namespace + "/" + d.g.key.Name}
	wanted := d.t.missing()
	if d.g.started || wanted == 0 {
		wanted = 1 // they are placed one by one
	}
	for _, m := range d.t.idle {
		if m.place == nil && wanted > 0 {
			i.ask = i.ask.Add(l.s.wants(m.pod.UID))
			wanted--
		}
	}
	return i
}

// sort brings all lanes into their order.
func (l *lanes) sort() {
	for _, at := range l.byName {
		slices.SortStableFunc(at.gangs, (*item).compare)
	}
	slices.Sort(l.order)
}

// wants is what a pod would be charged at least.
func (s *state) wants(uid types.UID) queue.Amounts {
	if c := s.counted[uid]; c != nil {
		return c.ask
	}
	return nil
}

// queueName is the queue in which a pod is counted, empty if in none.
func (s *state) queueName(uid types.UID) string {
	if c := s.counted[uid]; c != nil {
		return c.queue
	}
	return ""
}

// waits says whether a single pod is to be served: it has our gate and no other,
// or was refused, and holds nothing.
func (s *state) waits(e *pending) bool {
	// Gates of members are lifted anyway if gangs are switched off.
	if gated := e.pod.Gated && e.pod.Member == nil; !e.waiting && !gated || e.pod.Member != nil && s.p.opts.Gangs || len(e.pod.ForeignGates) > 0 || unplaceable(e.pod) == Deleting {
		return false
	}
	if c := s.counted[e.pod.UID]; c != nil && c.admitted {
		return false
	}
	_, held := s.ledger.Get(e.pod.UID)
	return !held
}
