package planner

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
)

// observeMember follows a pod that belongs to a gang.
func (s *state) observeMember(pod *view.Pod, now time.Time) {
	m := s.members[pod.UID]
	key := GangKey{pod.Namespace, pod.Member.Gang}
	if m != nil && m.gang.key != key {
		s.forgetMember(pod.UID, now) // somebody has changed the label
		m = nil
	}
	if m == nil {
		if pod.Ended && !pod.Member.Succeeded {
			return
		}
		m = &member{gang: s.gangOf(key)}
		m.gang.members[pod.UID] = m
		m.gang.tried = 0
		s.members[pod.UID] = m
	}
	g := s.gangOf(key)
	before := m.pod
	m.pod = pod
	if pod.Node == "" {
		m.shape = shapeText(pod, pod.Request)
	}
	switch {
	case pod.Member.Succeeded:
		g.succeeded[pod.UID] = ownerOf(pod)
		s.unplace(m, now)
	case pod.Ended:
		s.forgetMember(pod.UID, now)
	case pod.Node != "":
		s.clearPlace(m) // the ledger has its plan
	case pod.Deleting:
		s.unplace(m, now)
	case m.place != nil && m.arrival == nil && before != nil && before.Refusal != pod.Refusal && foreignRefusal(pod.Refusal):
		// The scheduler refused all nodes without asking Filter about one, so no
		// other place would do now. When it offers nodes again, Filter hears.
		s.rollback(g, s.stand(g).idle, &reason{v1alpha1.ReasonSchedulerRefuses, fmt.Sprintf(
			"GPUs were held for all, but kube-scheduler finds no node for pod %s: %s", pod.Name, pod.Refusal), 1}, now, "refused")
	}
}

// foreignRefusal says whether the scheduler's message has other grounds than
// what Filter said.
func foreignRefusal(message string) bool {
	return message != "" && !strings.Contains(message, string(GangWaits)) && !strings.Contains(message, string(GangElsewhere))
}

// forgetMember ends a member.
func (s *state) forgetMember(uid types.UID, now time.Time) {
	m := s.members[uid]
	if m == nil {
		return
	}
	s.unplace(m, now)
	delete(s.members, uid)
	g := m.gang
	delete(g.members, uid)
	if len(g.members) == 0 {
		clear(g.succeeded) // whoever comes now is another gang
	}
	g.tried = 0
	g.dirty, s.gangsDirty = true, true
}
