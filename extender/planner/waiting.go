package planner

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/gang"
	"github.com/tranche-dev/tranche/pkg/queue"
	"github.com/tranche-dev/tranche/pkg/units"
)

// The reasons of events.
const (
	eventInvalid     = "InvalidGPURequest"
	eventUnavailable = "GPUUnavailable"
	eventUnplanned   = "UnplannedGPU"
	eventQueueWaits  = "QueueWaiting"
)

// refused notes that no node of a Filter call took pod. offered are the nodes
// asked about, at the ledger's version seen.
func (s *state) refused(pod *view.Pod, reason Reason, offered []string, seen uint64, now time.Time) {
	if reason == Deleting {
		return // nothing to wait for
	}
	if s.hear(pod, now) != "" {
		return
	}
	elsewhere := false
	if e := s.pending[pod.UID]; e != nil {
		s.offeredAgain(e, offered, now)
		elsewhere = s.refusesGiven(e, pod, offered)
	}
	if reason == Decided {
		if !elsewhere {
			return
		}
		reason = NotOffered // it was to be there and nowhere else
	}
	e := s.touch(pod)
	if !olderView(pod, e.pod) {
		e.show(pod)
	}
	if elsewhere {
		s.tryElsewhere(e, offered, now)
	}
	if !e.waiting {
		e.waiting, e.since = true, now
	}
	defer s.enlist(e)
	if reason == QueueWaits {
		s.p.refused.Store(pod.UID, struct{}{})
		// The round that serves its queue finds the words.
		e.reason, s.waitingChanged = reason, true
		if s.woken[pod.UID] != nil {
			s.answered(e)
		}
		return
	}
	if final(reason) {
		// What the offered nodes lack may be on others.
		switch all := s.nowhere(e); {
		case all == "":
			reason = NotOffered
		case !final(all):
			reason = all
		}
	}
	e.reason = reason
	s.waitingChanged = true
	s.report(e, now)
	s.answerWake(e, pod, offered, now)
	s.missed(seen)
}

// explainUnasked gives a reason to a pod that the scheduler refused without
// asking the extender about a single node: by its own count of shares, no node
// has enough. If GPUs are not what it lacks, the scheduler's words suffice.
func (s *state) explainUnasked(e *pending, now time.Time) {
	if !e.pod.Unschedulable || e.waiting || e.pod.Member != nil && s.p.opts.Gangs || unplaceable(e.pod) == Deleting || !s.p.Live() {
		return
	}
	if _, held := s.ledger.Get(e.pod.UID); held {
		return
	}
	reason := unplaceable(e.pod)
	if reason == "" {
		reason = s.nowhere(e)
	}
	if reason == "" {
		return
	}
	e.waiting, e.since, e.reason = true, now, reason
	s.waitingChanged = true
	s.report(e, now)
	s.enlist(e)
}

// nowhere says why no node of the cluster has GPUs for the pod; empty if one
// has. Pods of a shape share the answer for one version of the ledger: many may
// come at once.
func (s *state) nowhere(e *pending) Reason {
	snapshot := s.ledger.Snapshot()
	if s.verdictsAt != snapshot.Version() || s.verdicts == nil {
		s.verdictsAt, s.verdicts = snapshot.Version(), map[string]Reason{}
	}
	shape := e.shape + e.pod.Constraints.Key()
	if reason, ok := s.verdicts[shape]; ok {
		return reason
	}
	query := s.p.query(e.pod)
	var t tally
	for n := range snapshot.Nodes() {
		reason := query.Check(n)
		if !final(reason) && !s.allows(n.Name(), e.pod) {
			reason = NotOffered
		}
		if reason == "" {
			t.best = ""
			break
		}
		t.add(reason)
	}
	if len(s.foreign) > 0 && e.pod.WholeOnly() {
		t.best = "" // what those have is for the scheduler to say
	}
	s.verdicts[shape] = t.best
	return t.best
}

// allows says whether taints, selectors and affinity let the pod onto a node.
func (s *state) allows(name string, pod *view.Pod) bool {
	n := s.nodes[name]
	if n == nil || n.view == nil {
		return true
	}
	ok, _ := pod.Constraints.Match(&gang.Node{Name: name, Labels: n.view.Labels, Taints: n.view.Taints, Unschedulable: n.view.Unschedulable})
	return ok
}

// reportAgain is well below an hour, after which the API server drops events: a
// pod that waits for a day must still say why.
const reportAgain = 40 * time.Minute

// report puts an event on the pod if there is something new to say. Of a pod in
// a queue the round that serves it knows more.
func (s *state) report(e *pending, now time.Time) {
	if s.counted[e.pod.UID] != nil && e.reason != Invalid {
		return
	}
	kind, text := eventUnavailable, Message(e.reason)
	if e.reason == Invalid {
		kind, text = eventInvalid, e.pod.Problem
	}
	if e.reported == text && now.Sub(e.reportedAt) < reportAgain {
		return
	}
	e.reported, e.reportedAt = text, now
	s.p.effects.Warn(ref(e.pod), kind, text)
}

// tellPod notes why a pod that a round has served is not admitted, and has its
// event written when that has lasted.
func (s *state) tellPod(e *pending, why *reason, now time.Time) {
	if e.why == nil || e.why.word != why.word {
		e.since = now
	}
	if e.why = why; e.line != nil && why != e.line.why && !s.spared(e) {
		e.line.settled = false
	}
	if !e.waiting {
		e.waiting, s.waitingChanged = true, true
	}
	if why.word != eventUnavailable {
		e.reason, s.waitingChanged = QueueWaits, true
	}
	if why.word == eventInvalid {
		e.reason = Invalid
	}
	if e.told != why.word || e.toldShape != e.shapeID || now.Sub(e.reportedAt) >= reportAgain {
		s.untold[e.pod.UID] = e
	}
}

// tellUntold writes the events of pods whose reason has lasted.
func (s *state) tellUntold(now time.Time) {
	for uid, e := range s.untold {
		switch {
		case s.pending[uid] != e || e.why == nil:
			delete(s.untold, uid)
		case now.Sub(e.since) >= tellAfter:
			delete(s.untold, uid)
			text := sentence(e.why.message)
			e.told, e.toldShape = e.why.word, e.shapeID
			if e.reported == text && now.Sub(e.reportedAt) < reportAgain {
				continue // kube-scheduler's path has said the same
			}
			e.reported, e.reportedAt = text, now
			kind := eventQueueWaits
			if e.why.word == eventUnavailable || e.why.word == eventInvalid {
				kind = e.why.word
			}
			s.p.effects.Warn(ref(e.pod), kind, text)
		}
	}
}

// sentence ends a text with one full stop, and begins it like a sentence.
func sentence(text string) string {
	text = strings.TrimSuffix(text, ".") + "."
	return strings.ToUpper(text[:1]) + text[1:]
}

// noRoom says why there is no place for a pod that its queue would take.
func (s *state) noRoom(e *pending, name string, r Reason) *reason {
	e.reason = r
	s.waitingChanged = s.waitingChanged || e.waiting
	why := &reason{word: eventUnavailable, message: Message(r)}
	if !final(r) && s.divides(name) {
		why.message = strings.TrimSuffix(why.message, ".") + s.standingText(name, "the pod", s.wants(e.pod.UID))
	}
	if !final(r) && len(s.reservations) > 0 {
		why.message = strings.TrimSuffix(why.message, ".") + s.asideText(podID(e.pod.UID))
	}
	why.message = strings.TrimSuffix(why.message, ".") + e.avoidedText()
	return why
}

// divides says whether a queue has a say in who gets what. Where nobody has made
// any queues, the default one has none, and words about it would only confuse.
func (s *state) divides(name string) bool {
	q := s.queues[name]
	if q == nil || q.view == nil {
		return false
	}
	return name != s.p.opts.DefaultQueue || q.view.Parent != "" || !q.view.Deserved.Same(view.QueueAmounts{}) || !q.view.Limit.Same(view.QueueAmounts{})
}

// standingText says what a queue has of what it is due, and what who asks for.
func (s *state) standingText(name, who string, ask queue.Amounts) string {
	u := s.tree.Usage(name)
	return fmt.Sprintf(". %s asks for %s; queue %s has %s of its present fair share of %s", strings.ToUpper(who[:1])+who[1:],
		s.amountText(queue.GPU, ask.Get(queue.GPU)), name,
		view.GPUsOf(units.Shares(u.Allocated.Get(queue.GPU)+u.Held.Get(queue.GPU)), s.perGPU()), s.amountText(queue.GPU, u.FairShare.Get(queue.GPU)))
}

// settle notes that the pod got a place on node, at least for now.
func (e *pending) settle(s *state, node string, now time.Time) {
	if e.given != node {
		e.given = "" // the scheduler prefers another
	}
	if e.waiting {
		e.waiting = false
		s.waitingChanged = true
	}
	if s.woken[e.pod.UID] != nil {
		if e.wokenFor != node {
			s.gain(e.wokenFor, now)
		}
		s.answered(e)
	}
}

// gaugeWaiting sets the gauges of waiting pods.
func (s *state) gaugeWaiting() {
	counts := map[string]int{}
	for _, e := range s.pending {
		if e.waiting {
			counts[Label(e.reason)]++
		}
	}
	for _, r := range reasons {
		if n := counts[r.label]; n > 0 {
			s.p.metrics.Waiting.WithLabelValues(r.label).Set(float64(n))
		} else {
			s.p.metrics.Waiting.DeleteLabelValues(r.label)
		}
	}
}

// waitingPods returns who waits, in the order in which they are served.
func (s *state) waitingPods() []*pending {
	var list []*pending
	for _, e := range s.pending {
		if e.waiting {
			list = append(list, e)
		}
	}
	slices.SortFunc(list, func(a, b *pending) int { return before(a.pod, b.pod) })
	return list
}
