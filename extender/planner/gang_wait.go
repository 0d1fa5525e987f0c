package planner

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
)

// reason is what a gang waits for.
type reason struct {
	word, message string
	members       int32
}

// unready says why g cannot even be tried.
func (s *state) unready(g *gangState, t *standing) *reason {
	if len(t.live) == 0 {
		if g.object != nil && !g.object.Managed && t.succeeded == 0 {
			return s.missing(g, t, 0)
		}
		return nil
	}
	for _, m := range t.live {
		if m.pod.Node == "" && m.pod.Problem != "" {
			return &reason{v1alpha1.ReasonInvalidMember, fmt.Sprintf("pod %s cannot be placed: %s", m.pod.Name, m.pod.Problem), 1}
		}
	}
	if t.minCount == 0 {
		return &reason{v1alpha1.ReasonMinCountUnknown, fmt.Sprintf("nobody says how many pods gang %s needs; give its pods, or their owner, the annotation tranche.dev/gang-min-count, or create a Gang of that name with spec.minCount", g.key.Name), 0}
	}
	if why := g.disagreement(t.live); why != nil {
		return why
	}
	if here := t.committed + len(t.idle); here < t.minCount && !g.started {
		return s.missing(g, t, here)
	}
	return nil
}

// disagreement says whether members ask to be treated differently.
func (g *gangState) disagreement(live []*member) *reason {
	first := live[0].pod
	for _, m := range live[1:] {
		switch {
		case m.pod.Member.Priority != first.Member.Priority:
			return &reason{v1alpha1.ReasonMembersDisagree, fmt.Sprintf(
				"members have different priorities: %s has %d, %s has %d; give all pods of a gang the same priorityClassName",
				first.Name, first.Member.Priority, m.pod.Name, m.pod.Member.Priority), 0}
		case m.pod.Member.Queue != first.Member.Queue && (g.object == nil || g.object.Managed || g.object.Queue == ""):
			return &reason{v1alpha1.ReasonMembersDisagree, fmt.Sprintf(
				"members are in different queues: %s in %q, %s in %q; give all pods of a gang the same label tranche.dev/queue",
				first.Name, first.Member.Queue, m.pod.Name, m.pod.Member.Queue), 0}
		}
	}
	return nil
}

// missing says which members have not come.
func (s *state) missing(g *gangState, t *standing, here int) *reason {
	if t.foreign > 0 {
		return &reason{v1alpha1.ReasonForeignGate, fmt.Sprintf("%d of %d members are there, but %d held back by the scheduling gate %s of somebody else",
			here+t.foreign, t.minCount, t.foreign, strings.Join(t.foreignGates, ", ")), int32(t.foreign)}
	}
	text := fmt.Sprintf("%d of %d members are there; the gang starts when all exist", here, t.minCount)
	var elsewhere []string
	for key, other := range s.gangs {
		if key.Name == g.key.Name && key.Namespace != g.key.Namespace && len(other.members) > 0 {
			elsewhere = append(elsewhere, key.Namespace)
		}
	}
	if len(elsewhere) > 0 {
		slices.Sort(elsewhere)
		text += fmt.Sprintf(". There are pods of a gang of the same name in namespace %s, which is another gang: all members must be in one namespace", strings.Join(elsewhere[:min(3, len(elsewhere))], ", "))
	}
	return &reason{v1alpha1.ReasonWaitingForMembers, text, int32(t.minCount - here)}
}

func refusedBy(pods []string, message string) *reason {
	slices.Sort(pods)
	text := fmt.Sprintf("GPUs were held, but kube-scheduler did not bring %s to them in time; places are sought anew", someOf(pods))
	if message != "" {
		text += ". The scheduler says: " + message
	}
	return &reason{v1alpha1.ReasonSchedulerRefuses, text, int32(len(pods))}
}

// someOf names a few of many.
func someOf(names []string) string {
	const few = 3
	switch {
	case len(names) == 0:
		return "its members"
	case len(names) <= few:
		return "pod " + strings.Join(names, ", ")
	default:
		return fmt.Sprintf("pods %s and %d more", strings.Join(names[:few], ", "), len(names)-few)
	}
}

// avoidFor is how long a node that the scheduler did not offer for a member is
// left out, the first time; it doubles with the gang's failures.
const avoidFor = 30 * time.Second

// backOff is how long a gang is left alone after so many failures in a row.
func backOff(failures int) time.Duration {
	const first, most = time.Second, 5 * time.Minute
	return min(first<<min(max(failures-1, 0), 16), most)
}

// fail notes a failure and when to try again.
func (s *state) fail(g *gangState, why *reason, now time.Time) {
	g.failures++
	g.notBefore = now.Add(backOff(g.failures))
	g.why = why
	g.dirty, s.gangsDirty = true, true
}
