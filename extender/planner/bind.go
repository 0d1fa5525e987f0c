package planner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/units"
)

// Target is a pod and the node that the scheduler chose for it.
type Target struct {
	UID                   types.UID
	Namespace, Name, Node string
}

// Reservation is what Reserve decided.
type Reservation struct {
	// Plan is to be written into the Binding. Nil: the node's GPUs are another
	// device plugin's business.
	Plan *contract.Plan
	// Done says that the pod is bound to the node already.
	Done bool
}

// What Reserve may answer.
var (
	// ErrUnknownPod: neither watch nor Filter told of the pod; read it and call
	// again.
	ErrUnknownPod = errors.New("the pod is not known yet")
	// ErrInProgress: an earlier Bind of the same pod waits for the API server.
	ErrInProgress = errors.New("an earlier bind of the pod is still waiting for the API server; it will be tried again")
	// ErrBoundElsewhere: the pod sits on another node.
	ErrBoundElsewhere = errors.New("the pod is already bound to another node")
	// ErrWrongPod: the UID belongs to a pod of another name.
	ErrWrongPod = errors.New("the UID belongs to another pod than the one named")
)

// RefusedError says that the pod does not fit on the node any more.
type RefusedError struct{ Reason Reason }

func (e *RefusedError) Error() string {
	return fmt.Sprintf("node refused: %s; the scheduler will choose again", e.Reason)
}

// Reserve charges the pod for its GPUs on the node, in the place of its hold,
// until Bound, Abort or Truth is called. pod may be nil if watch or Filter have
// told of it. The call does not end with the client's patience: a reservation
// that nobody knows of would never be lifted.
func (p *Planner) Reserve(ctx context.Context, t Target, pod *view.Pod) (Reservation, error) {
	a, err := ask(context.WithoutCancel(ctx), p, func(_ context.Context, s *state, now time.Time) reserved {
		return s.reserve(t, pod, now)
	})
	switch {
	case err != nil:
		return Reservation{}, err
	case a.waiting != nil:
		return p.await(ctx, t, a.waiting)
	default:
		return a.r, a.err
	}
}

func (s *state) reserve(t Target, pod *view.Pod, now time.Time) reserved {
	refuse := func(err error) reserved { return reserved{err: err} }
	// 1. What was decided stays decided.
	record, claimed := s.ledger.Get(t.UID)
	if claimed && record.State == ledger.Allocated {
		switch _, inFlight := s.binding[t.UID]; {
		case inFlight:
			return refuse(ErrInProgress)
		case record.Node == t.Node:
			return reserved{r: Reservation{Done: true}}
		default:
			return refuse(ErrBoundElsewhere)
		}
	}
	// 2. The newest that is known of the pod.
	pod = s.known(t.UID, pod)
	switch {
	case pod == nil:
		return refuse(ErrUnknownPod)
	case pod.UID != t.UID || pod.Namespace != t.Namespace || pod.Name != t.Name:
		return refuse(ErrWrongPod)
	}
	if old := s.hear(pod, now); old != "" {
		return refuse(&RefusedError{old})
	}
	if pod.Member != nil && s.p.opts.Gangs {
		m := s.members[t.UID]
		if m == nil {
			if s.pending[t.UID] == nil {
				s.observeMember(pod, now) // the watch is behind
			}
			return refuse(&RefusedError{GangWaits})
		}
		return s.reserveMember(m, t, now)
	}
	if reason := unplaceable(pod); reason != "" {
		return refuse(&RefusedError{reason})
	}
	if !pod.UsesGPU {
		return reserved{} // somebody sent it here that asks for nothing
	}
	// 3. A node of another device plugin.
	if s.foreign[t.Node] && pod.WholeOnly() {
		s.release(t.UID, now)
		return reserved{}
	}
	// 4. The hold, if it is there and its GPUs still are what they were.
	if e := s.pending[t.UID]; claimed && record.Node == t.Node && s.prolong(record, now) {
		if e != nil {
			e.settle(s, t.Node, now)
		}
	} else {
		if reason := s.hold(pod, t.Node, now); reason != "" {
			if reason == QueueWaits {
				// Filter knew less; a round finds out what the queue does allow.
				s.refused(pod, reason, []string{t.Node}, s.ledger.Version(), now)
			}
			return refuse(&RefusedError{reason})
		}
	}
	committed, ok := s.ledger.Commit(t.UID)
	if !ok {
		return refuse(&RefusedError{Decided})
	}
	s.binding[t.UID] = t.Node
	s.p.decided.Store(t.UID, t.Node)
	plan := committed.Plan
	return reserved{r: Reservation{Plan: &plan}}
}

// prolong renews a hold. It fails if one of its GPUs is gone or unhealthy now.
func (s *state) prolong(r *ledger.Record, now time.Time) bool {
	return s.ledger.Hold(claimOf(r), now.Add(s.p.opts.HoldTimeout)) == ""
}

// claimOf is what was claimed for r.
func claimOf(r *ledger.Record) ledger.Claim {
	charges := make(map[contract.GPUUUID]units.Shares, len(r.Charges))
	for _, c := range r.Charges {
		charges[c.GPU] = c.Shares
	}
	return ledger.Claim{Pod: r.Pod, Node: r.Node, Charges: charges, Plan: r.Plan}
}

// known returns the newest view of a pod: the watch's or Filter's, else the
// one given.
func (s *state) known(uid types.UID, given *view.Pod) *view.Pod {
	if given != nil {
		return given
	}
	if seen, ok := s.p.parsed.Get(uid); ok {
		return seen
	}
	if e := s.pending[uid]; e != nil {
		return e.pod
	}
	return nil
}

// confirmWithin is how long the watch may take to tell of a Binding before the
// pod is read.
const confirmWithin = time.Minute

// Bound says that the API server accepted the Binding.
func (p *Planner) Bound(ctx context.Context, t Target) {
	p.conclude(ctx, func(s *state, now time.Time) {
		delete(s.binding, t.UID)
		r, ok := s.ledger.Get(t.UID)
		if ok && r.State == ledger.Held && r.Node == t.Node {
			// Truth said otherwise, of a pod that was read before.
			r, _ = s.ledger.Commit(t.UID)
			s.p.decided.Store(t.UID, t.Node)
		}
		// If the pod has ended meanwhile, its charge is gone and must not come
		// back; if the watch told of the Binding, it is confirmed.
		if _, departed := s.departed[t.UID]; ok && len(r.Plan.Containers) > 0 {
			s.unconfirmed[t.UID] = now.Add(confirmWithin)
		} else if !ok && !departed {
			s.p.effects.Verify(ledger.Pod{UID: t.UID, Namespace: t.Namespace, Name: t.Name})
		}
		if e := s.pending[t.UID]; e == nil || e.kept == nil || s.usage[t.UID] != nil {
			s.unpend(t.UID, now)
		} // else the watch ends it: until then only what it keeps says what it uses
		s.stirGang(t.UID)
	})
}

// Abort says that the Binding was refused for good, so the pod holds nothing.
func (p *Planner) Abort(ctx context.Context, t Target) {
	p.conclude(ctx, func(s *state, now time.Time) {
		delete(s.binding, t.UID)
		if m := s.members[t.UID]; m != nil && m.place != nil && s.p.opts.Gangs {
			s.p.decided.Delete(t.UID)
			if s.ledger.Rollback(t.UID, now.Add(capFactor*s.holdTimeout(m.gang))) {
				s.p.metrics.HoldReleases.WithLabelValues("bind_failed").Inc()
				s.bindFailed(m, now)
				s.countAgain(t.UID)
			}
			return
		}
		if s.ledger.Rollback(t.UID, now) {
			s.p.metrics.HoldReleases.WithLabelValues("bind_failed").Inc()
			s.release(t.UID, now)
			s.countAgain(t.UID)
		}
	})
}

// Truth says what the API server knows of a pod, after a call whose outcome was
// in doubt: pod as it is, or nil if it is gone. A pod that turns out not to be
// bound keeps its shares as an ordinary hold, which expires: should the lost
// call still arrive, its room is there.
func (p *Planner) Truth(ctx context.Context, uid types.UID, pod *view.Pod) {
	p.conclude(ctx, func(s *state, now time.Time) {
		exists := pod != nil && pod.UID == uid
		_, accepted := s.unconfirmed[uid]
		if accepted && exists && pod.Node == "" {
			return // it was read before its Binding was accepted
		}
		delete(s.binding, uid)
		delete(s.unconfirmed, uid)
		_, departed := s.departed[uid]
		_, unwatched := s.unwatched[uid]
		switch {
		case departed: // all of it has been settled
		case !exists && accepted:
			s.vanished(klog.FromContext(ctx), uid, now)
		case !exists:
			s.forgetMember(uid, now)
			s.forget(uid, now)
		case pod.Node != "" && s.knownBound(uid) && !unwatched: // the watch knows more
		case pod.Node != "":
			s.hear(pod, now)
			s.observe(klog.FromContext(ctx), pod, now)
			if !s.knownBound(uid) {
				delete(s.unwatched, uid) // nothing is kept of it
			}
		default:
			if unwatched {
				s.observe(klog.FromContext(ctx), pod, now)
			}
			s.p.decided.Delete(uid)
			s.ledger.Rollback(uid, now.Add(s.p.opts.HoldTimeout))
			s.countAgain(uid)
			s.stirGang(uid)
		}
	})
}

// vanished ends a pod that was bound and is gone before the watch could tell of
// either: nobody knows whether its containers have ended.
func (s *state) vanished(log logr.Logger, uid types.UID, now time.Time) {
	grace := corev1.DefaultTerminationGracePeriodSeconds * time.Second
	if last := s.known(uid, nil); last != nil {
		grace = last.Grace
	}
	s.depart(uid, now)
	s.forgetMember(uid, now)
	if r, ok := s.ledger.Get(uid); ok && r.State == ledger.Allocated {
		s.linger(log, r, grace, now)
		return
	}
	s.forget(uid, now)
}

// countAgain has a pod counted in the queue that it is for by now.
func (s *state) countAgain(uid types.UID) {
	if e := s.pending[uid]; e != nil {
		s.count(e.pod)
		s.book(uid)
	}
}

// Unknown says that not even reading the pod told what became of the Binding.
// The charge stays until Effects.Verify has found out.
func (p *Planner) Unknown(t Target) {
	p.effects.Verify(ledger.Pod{UID: t.UID, Namespace: t.Namespace, Name: t.Name})
}

// conclude runs f for a caller that may be out of patience.
func (p *Planner) conclude(ctx context.Context, f func(s *state, now time.Time)) {
	// The only error is ErrStopped: then there is no state to be wrong.
	_, _ = ask(context.WithoutCancel(ctx), p, func(_ context.Context, s *state, now time.Time) struct{} {
		f(s, now)
		return struct{}{}
	})
}
