package planner

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/placement"
)

const (
	// answerWithin is how long a woken pod may take to come back to Filter or
	// to hold something. The scheduler's longest back-off is 10 s.
	answerWithin = 30 * time.Second
	// quietAfter and quietMost bound how long a pod is left alone after it was
	// woken in vain: the scheduler does not want it on that node for reasons of
	// its own, and would be asked again and again.
	quietAfter = 15 * time.Second
	quietMost  = 5 * time.Minute
)

// gain is when a node last may have got more room.
type gain struct {
	version uint64
	at      time.Time
}

// gain notes that a node may have more room than before.
func (s *state) gain(node string, now time.Time) {
	s.capacity++
	s.moved[node] = true
	s.favourDue = true
	s.gained[node] = true
	s.recent[node] = gain{s.ledger.Version(), now}
}

// missed looks again at the nodes that got room after the ledger's version
// seen: somebody was just refused without knowing of it.
func (s *state) missed(seen uint64) {
	for node, g := range s.recent {
		if g.version > seen {
			s.gained[node] = true
		}
	}
}

// answerWake notes that a woken pod was refused again. If the node with room
// for it was not even offered, the scheduler has reasons of its own.
func (s *state) answerWake(e *pending, offered []string, now time.Time) {
	if s.woken[e.pod.UID] == nil {
		return
	}
	if slices.Contains(offered, e.wokenFor) {
		e.vain = 0 // another pod was quicker
	} else {
		s.inVain(e, now)
	}
	s.answered(e)
}

// answered ends the wait for a woken pod.
func (s *state) answered(e *pending) {
	delete(s.woken, e.pod.UID)
	e.woken, e.wokenFor = time.Time{}, ""
}

// inVain leaves a pod alone for a while and gives the room to others.
func (s *state) inVain(e *pending, now time.Time) {
	e.vain++
	e.quiet = now.Add(min(quietAfter<<min(e.vain-1, 10), quietMost))
	s.gain(e.wokenFor, now)
}

// wake makes the scheduler try pods for which there is room now, on the nodes
// that gained some: those of high priority, then the oldest first, and no more than fit at the same time.
func (s *state) wake(log logr.Logger, now time.Time) {
	for _, e := range s.woken {
		if now.Sub(e.woken) >= answerWithin {
			s.inVain(e, now)
			s.answered(e)
		}
	}
	if len(s.gained) == 0 || now.Before(s.nextWake) {
		return
	}
	r := room{s: s, nodes: slices.Sorted(maps.Keys(s.gained)), tried: map[string]*ledger.Ledger{}, hopeless: map[string]bool{}}
	clear(s.gained)
	for _, e := range s.waitingPods() {
		switch {
		case unplaceable(e.pod) != "" || now.Before(e.quiet):
			continue
		case s.woken[e.pod.UID] != nil:
			// Its room is taken, though it is not asked twice.
			r.takeOn(s.p.query(e.pod), e.pod, e.wokenFor)
			continue
		}
		node := r.take(e)
		if node == "" {
			continue
		}
		e.woken, e.wokenFor = now, node
		s.woken[e.pod.UID] = e
		log.V(2).Info("Woken", "pod", klog.KRef(e.pod.Namespace, e.pod.Name), "node", node)
		s.p.effects.Wake(ref(e.pod), s.ledger.Version())
	}
	took := s.p.opts.Clock.Now().Sub(now)
	s.nextWake = now.Add(wakePart * took)
}

// wakePart bounds waking to a twentieth of the planner's time, however many
// pods wait.
const wakePart = 20

// room is what is left on the nodes with gains while pods are being woken.
type room struct {
	s     *state
	nodes []string
	// tried are the nodes as they would be with the pods woken so far.
	tried map[string]*ledger.Ledger
	// hopeless are shapes that fit nowhere any more: room only shrinks.
	hopeless map[string]bool
}

// take finds a node for a pod and takes the room there; "" if there is none.
func (r *room) take(e *pending) string {
	if r.hopeless[e.shape] {
		return ""
	}
	query := r.s.p.query(e.pod)
	for _, name := range r.nodes {
		if r.takeOn(query, e.pod, name) {
			return name
		}
	}
	r.hopeless[e.shape] = true
	return ""
}

// takeOn takes the room for a pod on one node, if it is there.
func (r *room) takeOn(query *placement.Query, pod *view.Pod, name string) bool {
	l := r.tried[name]
	if l == nil {
		// Most pods fit on no node, so a copy is made only for those that do.
		n := r.s.ledger.Node(name)
		if query.Check(n) != "" {
			return false
		}
		l = scratch(n, map[types.UID]bool{pod.UID: true})
		r.tried[name] = l
	}
	plan, reason := query.Plan(l.Node(name))
	if reason != "" {
		return false
	}
	l.Allocate(ledger.Claim{Pod: ref(pod), Node: name, Charges: plan.Charges(pod.Roles)})
	return true
}

// before orders pods as they are served: by priority, then by age.
func before(a, b *view.Pod) int {
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), older(a, b))
}

// older orders pods by creation, then by name.
func older(a, b *view.Pod) int {
	return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
}
