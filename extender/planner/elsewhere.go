package planner

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/gang"
	"github.com/tranche-dev/tranche/pkg/ledger"
)

// This file has single pods tried elsewhere when the scheduler's own filters
// refuse the node where a round has held GPUs for them: for the zone of a volume,
// pod affinity, a host port, or anything else that the planner does not know.
// Only searches of the planner leave such a node out. What the scheduler chooses
// by itself is welcome, so that nobody waits here for a node that has become good.

// avoidPauses are how long a node is left out after it was refused once, twice
// and so on.
var avoidPauses = []time.Duration{30 * time.Second, 2 * time.Minute, 10 * time.Minute}

// leastSampled is the least number of nodes after which the scheduler stops
// looking for more (minFeasibleNodesToFind in its schedule_one.go): if it offers
// fewer, it has looked at all.
const leastSampled = 100

// refusesGiven says whether a Filter call shows that the scheduler refuses the
// node that a round has found for e. asked is the pod as it was asked about.
func (s *state) refusesGiven(e *pending, asked *view.Pod, offered []string) bool {
	switch {
	case !s.holdsGiven(e) || slices.Contains(offered, e.given):
		return false
	case asked.Nominated == e.given:
		return true // it would have been asked about first, and alone
	case onlyNominated(asked, offered):
		return false
	default:
		return len(offered) < leastSampled
	}
}

// onlyNominated says whether the scheduler has asked about nothing but the node
// that it prefers: if that is refused, it goes on to the others.
func onlyNominated(asked *view.Pod, offered []string) bool {
	return len(offered) == 1 && asked.Nominated == offered[0]
}

// holdsGiven says whether e still holds what a round has found for it, and nobody
// is binding it.
func (s *state) holdsGiven(e *pending) bool {
	if e.given == "" {
		return false
	}
	r, ok := s.ledger.Get(e.pod.UID)
	return ok && r.State == ledger.Held && r.Node == e.given
}

// heardOf follows what the scheduler says of a pod, before it is shown anew. If
// it has refused all nodes without asking Filter about any, nobody else tells of
// it; a message that names a reason of ours came with a call.
func (s *state) heardOf(e *pending, newer *view.Pod, now time.Time) {
	if newer.Refusal == "" || newer.Refusal == e.pod.Refusal || namesReason(newer.Refusal) || !s.holdsGiven(e) {
		return
	}
	e.show(newer)
	s.refusedOutright(e, now)
}

// namesReason says whether one of the planner's reasons is in a message.
func namesReason(message string) bool {
	return slices.ContainsFunc(reasons, func(t reasonText) bool { return strings.Contains(message, string(t.reason)) })
}

// refusedOutright gives up what a round has found for e, since the scheduler
// refuses all nodes. If some lack resources, they may do when those are free. If
// not, no room that could be made anywhere would help: a volume does not exist,
// say.
func (s *state) refusedOutright(e *pending, now time.Time) {
	if strings.Contains(e.pod.Refusal, "Insufficient ") {
		s.tryElsewhere(e, nil, now)
		return
	}
	node := s.giveUp(e, now)
	e.vain++
	s.leaveBe(e, now)
	s.tellRefusal(e, fmt.Sprintf("kube-scheduler refuses all nodes, also node %s, where GPUs were held for the pod; it is tried again after a while", node), now)
}

// tryElsewhere gives up what a round has found for e, since the scheduler does not
// want it there, and has it served again without that node, and without all
// others that have room as well: they are not among those offered, so they were
// refused together with it.
func (s *state) tryElsewhere(e *pending, offered []string, now time.Time) {
	given := s.giveUp(e, now)
	if e.avoid == nil {
		e.avoid = map[string]*effort{}
	}
	refused := []string{given}
	for _, node := range s.fitting(e) {
		if node != given && !slices.Contains(offered, node) {
			refused = append(refused, node)
		}
	}
	if len(refused) > mostRefused {
		// With that much room it is no use to look for more, and the list gets long.
		refused = refused[:1]
		e.vain++
		s.leaveBe(e, now)
	}
	for _, node := range refused {
		if e.avoid[node] == nil {
			e.avoid[node] = &effort{}
		}
		e.avoid[node].again(now, avoidPauses)
	}
	s.reviewAvoided(e, now)
	s.tellRefusal(e, fmt.Sprintf("kube-scheduler's own filters refuse node %s, where GPUs were held for the pod; another place is sought", given), now)
}

// mostRefused bounds how many nodes are left out for a pod at once.
const mostRefused = 256

// fitting lists the nodes that have room for e at present.
func (s *state) fitting(e *pending) []string {
	var list []string
	query := s.p.query(e.pod)
	for name, n := range s.nodes {
		if n.view == nil || query.Check(s.ledger.Node(name)) != "" || !s.allows(name, e.pod) {
			continue
		}
		if ok, _ := gang.Fits(n.view.Allocatable.Sub(n.used).Sub(n.kept), e.pod.Needs); ok {
			list = append(list, name)
		}
	}
	return list
}

// giveUp releases what a round has found for e, and returns where that was.
func (s *state) giveUp(e *pending, now time.Time) string {
	node := e.given
	s.p.metrics.HoldReleases.WithLabelValues("refused").Inc()
	s.withdraw(e)
	if s.woken[e.pod.UID] != nil {
		s.answered(e)
	}
	s.release(e.pod.UID, now)
	return node
}

// withdraw takes a nomination of ours back.
func (s *state) withdraw(e *pending) {
	if e.nominated == "" {
		return
	}
	s.p.effects.Withdraw(ref(e.pod))
	e.nominated = ""
	e.exposed = e.exposed && !e.pod.Gated // its gate is not lifted any more either
}

// tellRefusal has e served again, and told what the scheduler says until a round
// knows better.
func (s *state) tellRefusal(e *pending, text string, now time.Time) {
	if !e.waiting {
		e.waiting, e.since = true, now
	}
	e.reason, s.waitingChanged = NotOffered, true
	if e.pod.Refusal != "" && !namesReason(e.pod.Refusal) {
		text += ". The scheduler says: " + e.pod.Refusal
	}
	s.tellPod(e, &reason{eventUnavailable, text, 0}, now)
	s.enlist(e)
}

// reviewAvoided brings up to date which nodes are left out for e, and when that
// changes next.
func (s *state) reviewAvoided(e *pending, now time.Time) {
	active := map[string]bool{}
	for node, a := range e.avoid {
		if now.Before(a.until) {
			active[node] = true
			s.dueAt(a.until)
		}
	}
	if !maps.Equal(active, e.avoided) {
		e.avoided, e.shapeID = active, 0
		if e.line != nil {
			s.enlist(e) // among others from now on
		}
	}
}

// offeredAgain forgets that the scheduler has refused nodes that it offers now.
func (s *state) offeredAgain(e *pending, offered []string, now time.Time) {
	if len(e.avoid) == 0 {
		return
	}
	for _, node := range offered {
		delete(e.avoid, node)
	}
	s.reviewAvoided(e, now)
}

// avoidedText says where the scheduler does not want a pod; empty if there is no
// such node.
func (e *pending) avoidedText() string {
	if len(e.avoided) == 0 {
		return ""
	}
	nodes, them := "node", "that is"
	if len(e.avoided) > 1 {
		nodes, them = "nodes", "those are"
	}
	return fmt.Sprintf(". kube-scheduler's own filters refuse %s %s, where there is room; look into its event FailedScheduling for what they miss, such as the zone of a volume, pod affinity or a free host port; %s tried again after a while",
		nodes, strings.Join(some(slices.Sorted(maps.Keys(e.avoided))), ", "), them)
}
