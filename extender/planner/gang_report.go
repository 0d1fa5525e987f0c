package planner

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
)

// The reasons of events about gangs.
const (
	eventGangWaits = "GangWaiting"
	eventTorn      = "GangTornApart"
	eventStale     = "GangBelowMinCount"
)

// wait notes why g waits, nil if it does not.
func (g *gangState) wait(why *reason) {
	g.why = why
	if why == nil {
		return
	}
	if len(why.message) > v1alpha1.MaxGangReasonMessage {
		why.message = strings.ToValidUTF8(why.message[:v1alpha1.MaxGangReasonMessage-3], "") + "..."
	}
}

// tellAfter is how long a reason must last before anybody is told: a gang whose
// pods are being created, or deleted, waits for members many times.
const tellAfter = 500 * time.Millisecond

// tellMembers puts an event on pending members when the kind of reason has
// changed; numbers may change at any time and are shown by the Gang.
func (s *state) tellMembers(g *gangState, t *standing, now time.Time) {
	g.telling = time.Time{}
	if g.why == nil {
		g.told = ""
		return
	}
	if g.told != g.why.word {
		g.told, g.since = g.why.word, now
	}
	if due := g.since.Add(tellAfter); now.Before(due) {
		g.telling = due
		return
	}
	var text string
	for _, m := range t.live {
		// A member that came later must be told, too.
		if m.pod.Node != "" || m.warned == g.why.word {
			continue
		}
		if text == "" {
			text = fmt.Sprintf("Gang %s: %s.", g.key.Name, strings.TrimSuffix(g.why.message, "."))
		}
		m.warned, m.warnedAt = g.why.word, now
		s.p.effects.Warn(ref(m.pod), eventGangWaits, text)
	}
}

// reportGang tells the gang's object what has changed.
func (s *state) reportGang(g *gangState, t *standing, now time.Time) {
	r := GangReport{
		Key: g.key, Keep: len(g.members) > 0,
		MinCount: int32(t.minCount),
		Queue:    s.queueOfMembers(t.live),
		Owner:    commonOwner(t.live), Status: s.gangStatus(g, t),
	}
	g.retell = time.Time{}
	if g.reported != nil {
		r.Status.Conditions = conditions(g.reported.Status.Conditions, g, t, now)
		if equality.Semantic.DeepEqual(*g.reported, r) {
			return
		}
		if due := g.reportedAt.Add(retellAfter); now.Before(due) && equality.Semantic.DeepEqual(withoutWords(*g.reported), withoutWords(r)) {
			g.retell = due
			return
		}
	} else {
		r.Status.Conditions = conditions(nil, g, t, now)
	}
	g.reported, g.reportedAt = &r, now
	s.p.effects.Report(r)
}

// retellAfter is how old the words of a reason may be while the reason is the
// same: on a busy cluster the numbers in them change all the time, for every
// gang that waits.
const retellAfter = 5 * time.Second

// withoutWords is a copy of r without sentences.
func withoutWords(r GangReport) GangReport {
	r.Status.Reasons, r.Status.Conditions = slices.Clone(r.Status.Reasons), slices.Clone(r.Status.Conditions)
	for i := range r.Status.Reasons {
		r.Status.Reasons[i].Message = ""
	}
	for i := range r.Status.Conditions {
		r.Status.Conditions[i].Message = ""
	}
	return r
}

// gangStatus describes g, without conditions.
func (s *state) gangStatus(g *gangState, t *standing) v1alpha1.GangStatus {
	count := func(n int) int32 { return int32(n) }
	status := v1alpha1.GangStatus{
		Members: count(len(t.live) + t.succeeded), Running: count(t.running + t.succeeded),
		Bound: count(t.bound), Held: count(t.committed + t.placed),
		Ready: fmt.Sprintf("%d/%d", t.ready+t.succeeded, t.minCount),
		Phase: v1alpha1.GangPending,
	}
	if g.object != nil {
		status.ObservedGeneration = g.object.Generation
	}
	switch {
	case len(t.live) == 0 && t.succeeded > 0:
		status.Phase = v1alpha1.GangFinished
	case t.minCount > 0 && t.running+t.succeeded >= t.minCount:
		status.Phase = v1alpha1.GangRunning
	case t.minCount > 0 && t.bound >= t.minCount:
		status.Phase = v1alpha1.GangBound
	case t.minCount > 0 && t.committed+t.placed >= t.minCount:
		status.Phase = v1alpha1.GangHeld
	}
	if g.why != nil && g.telling.IsZero() {
		status.Reasons = []v1alpha1.GangReason{{Type: g.why.word, Message: g.why.message, Members: g.why.members}}
	}
	status.Placement = s.placements(t)
	return status
}

// placements lists who is where, held or bound.
func (s *state) placements(t *standing) []v1alpha1.GangPlacement {
	at := map[string][]string{}
	for _, m := range t.live {
		node := m.pod.Node
		if node == "" {
			if r, ok := s.ledger.Get(m.pod.UID); ok {
				node = r.Node
			}
		}
		if node != "" {
			at[node] = append(at[node], m.pod.Name)
		}
	}
	list := make([]v1alpha1.GangPlacement, 0, len(at))
	for node, pods := range at {
		slices.Sort(pods)
		list = append(list, v1alpha1.GangPlacement{Node: node, Pods: pods[:min(len(pods), v1alpha1.MaxGangPlacementPods)]})
	}
	slices.SortFunc(list, func(a, b v1alpha1.GangPlacement) int { return strings.Compare(a.Node, b.Node) })
	if len(list) == 0 {
		return nil
	}
	return list[:min(len(list), v1alpha1.MaxGangPlacements)]
}

// conditions brings the conditions up to date.
func conditions(before []metav1.Condition, g *gangState, t *standing, now time.Time) []metav1.Condition {
	list := slices.Clone(before)
	set := func(kind string, ok bool, yes, no, message string) {
		c := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: no, Message: message, LastTransitionTime: metav1.NewTime(now.Truncate(time.Second))}
		if ok {
			c.Status, c.Reason, c.Message = metav1.ConditionTrue, yes, ""
		}
		if g.object != nil {
			c.ObservedGeneration = g.object.Generation
		}
		meta.SetStatusCondition(&list, c)
	}
	no, message := "Waiting", ""
	if g.why != nil {
		no, message = g.why.word, g.why.message
	}
	set(v1alpha1.GangAdmitted, t.minCount > 0 && t.committed+t.placed >= t.minCount, "AllHavePlaces", no, message)
	set(v1alpha1.GangStarted, g.started, "AllWereBound", "NotYet", "")
	return list
}

// queueOfMembers is the queue that members are counted in.
func (s *state) queueOfMembers(live []*member) string {
	if len(live) == 0 {
		return ""
	}
	return s.queueName(live[0].pod.UID)
}

// commonOwner is the controller of all members, nil if they differ.
func commonOwner(live []*member) *metav1.OwnerReference {
	if len(live) == 0 {
		return nil
	}
	owner := live[0].pod.Member.Owner
	for _, m := range live {
		if o := m.pod.Member.Owner; o == nil || owner == nil || o.UID != owner.UID {
			return nil
		}
	}
	return owner
}
