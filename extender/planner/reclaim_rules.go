package planner

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/queue"
	"github.com/tranche-dev/tranche/pkg/reclaim"
)

// rules say whom a claimant may have evicted. They are asked about units one
// after the other, each time with those taken so far gone.
type rules struct {
	s     *state
	w     *want
	trial *queue.Trial
	now   time.Time
	mode  v1alpha1.ReclaimMode
	// preempts says that pods of lower priority in the claimant's own queue may
	// go.
	preempts bool
	delay    time.Duration
	// from are the queues from which something may be taken at all.
	from map[string]bool
	// part says of which gang a unit is a member that can be spared; spared are
	// those that are taken, whole the gangs that are.
	part   map[*reclaim.Unit]string
	spared map[string]int
	whole  map[string]bool
	// foreign counts units of other queues that are taken.
	foreign int
	// young is the unit of another queue that may be taken first of those that have
	// run for too short a time, nil if there are none; ripe is when.
	young *reclaim.Unit
	ripe  time.Time
}

var _ reclaim.Rules = (*rules)(nil)

// rulesFor returns nil if nobody may be taken for w, whoever it is.
func (r *round) rulesFor(w *want, now time.Time) *rules {
	s := r.s
	rules := &rules{
		s: s, w: w, now: now, trial: r.trialFor(w), mode: v1alpha1.ReclaimAny, preempts: !w.nonpreempting(),
		from: map[string]bool{}, part: map[*reclaim.Unit]string{}, spared: map[string]int{}, whole: map[string]bool{},
	}
	if q := s.queues[w.queue]; q != nil && q.view != nil {
		rules.mode, rules.delay = q.view.Reclaim, q.view.ReclaimDelay
	}
	if s.tree.Check(w.queue, nil) != nil {
		return nil
	}
	if rules.preempts && r.lowerPriority(w.queue, w.priority) {
		rules.from[w.queue] = true
	}
	if rules.mode != v1alpha1.ReclaimNever {
		for _, name := range r.above() {
			if name != w.queue && rules.trial.MayTake(name, w.ask) {
				rules.from[name] = true
			}
		}
	}
	if len(rules.from) == 0 {
		if rules.mode == v1alpha1.ReclaimNever && slices.ContainsFunc(r.above(), func(name string) bool { return name != w.queue && rules.trial.MayTake(name, w.ask) }) {
			w.spare(s, fmt.Sprintf("spec.reclaim.policy of queue %s is Never", w.queue), now.Add(reportAgain))
		}
		return nil
	}
	return rules
}

// spareYoung has it told that victims have to run for a while first, and room made
// as soon as the first of them has.
func (r *rules) spareYoung(now time.Time) {
	if r.young != nil {
		next := r.ripe
		if soon := now.Add(time.Second); next.Before(soon) {
			next = soon
		}
		if next.Before(r.w.next) {
			r.w.next = next
		}
		r.w.spare(r.s, fmt.Sprintf("pods of queue %s run for at least %s, by its spec.reclaim.minRuntime; the first may go at %s",
			r.young.Queue, r.s.queues[r.young.Queue].view.MinRuntime, clockTime(r.ripe)), r.ripe.Add(time.Minute))
	}
}

// above lists the queues with pods that use more than their share of anything.
func (r *round) above() []string {
	if r.over == nil {
		r.over = []string{}
		for name, q := range r.s.queues {
			if q.pods > 0 && slices.ContainsFunc(r.s.tree.ShareRoom(name), func(room int64) bool { return room < 0 }) {
				r.over = append(r.over, name)
			}
		}
	}
	return r.over
}

// trialFor is the tree as it will be when all that is under way has happened:
// those who have reservations have what these are for, and nobody who is to go
// is there any more.
func (r *round) trialFor(w *want) *queue.Trial {
	if r.base == nil {
		r.base = r.s.settled()
	}
	return r.base.For(w.queue, w.ask)
}

// settled is the tree as it will be then.
func (s *state) settled() *queue.Trial {
	trial := s.tree.Trial("", nil)
	for _, o := range s.reservations {
		trial.Assume(o.want.queue, beyond(o.want.ask, o.credit), 1)
		for uid := range o.victims {
			if c := s.counted[uid]; c != nil && !c.pod.Deleting {
				s.assumeGone(trial, uid)
			}
		}
	}
	now := s.p.opts.Clock.Now()
	for uid, until := range s.leaving {
		if s.goesSoon(until, now) {
			s.assumeGone(trial, uid)
		}
	}
	return trial
}

func (s *state) assumeGone(trial *queue.Trial, uid types.UID) {
	if has, ok := s.tree.Charged(uid); ok && has.State != queue.Pending {
		trial.Assume(has.Queue, has.Amounts, -1)
	}
}

// lowerPriority says whether pods of a queue run with less than a priority.
func (r *round) lowerPriority(name string, priority int32) bool {
	if r.lowest == nil {
		r.lowest = map[string]int32{}
		for _, c := range r.s.counted {
			if c.pod.Node == "" || c.pod.Deleting {
				continue
			}
			if least, ok := r.lowest[c.queue]; !ok || c.pod.Priority < least {
				r.lowest[c.queue] = c.pod.Priority
			}
		}
	}
	least, ok := r.lowest[name]
	return ok && least < priority
}

// MayTake implements reclaim.Rules.
func (r *rules) MayTake(u *reclaim.Unit) bool {
	if id := r.part[u]; id != "" && r.whole[id] || r.spared[u.ID] > 0 {
		return false
	}
	if u.Queue == r.w.queue {
		return r.preempts && u.Priority < r.w.priority
	}
	switch {
	case r.mode == v1alpha1.ReclaimNever, r.mode == v1alpha1.ReclaimLowerPriority && u.Priority >= r.w.priority:
		return false
	}
	if q := r.s.queues[u.Queue]; q != nil && q.view != nil && q.view.MinRuntime > 0 && r.now.Sub(u.Started) < q.view.MinRuntime {
		if ripe := u.Started.Add(q.view.MinRuntime); (r.young == nil || ripe.Before(r.ripe)) && r.trial.MayTake(u.Queue, u.Charge) {
			r.young, r.ripe = u, ripe
		}
		return false
	}
	return r.trial.MayTake(u.Queue, u.Charge)
}

// Take implements reclaim.Rules.
func (r *rules) Take(u *reclaim.Unit) { r.change(u, 1) }

// Return implements reclaim.Rules.
func (r *rules) Return(u *reclaim.Unit) { r.change(u, -1) }

func (r *rules) change(u *reclaim.Unit, by int) {
	if by > 0 {
		r.trial.Take(u.Queue, u.Charge)
	} else {
		r.trial.Return(u.Queue, u.Charge)
	}
	if id := r.part[u]; id != "" {
		r.spared[id] += by
	} else {
		r.whole[u.ID] = by > 0
	}
	if u.Queue != r.w.queue {
		r.foreign += by
	}
}

// Final implements reclaim.Rules.
func (r *rules) Final() bool {
	return r.trial.Fits() == nil && (r.foreign == 0 || r.trial.Entitled() && r.trial.Justified())
}
