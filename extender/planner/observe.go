package planner

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/ledger"
)

// Observe tells of a pod as the API server shows it. It does not wait for the
// effect; calls of one goroutine take effect in order.
func (p *Planner) Observe(ctx context.Context, pod *view.Pod) {
	p.event(ctx, func(log logr.Logger, s *state, now time.Time) {
		delete(s.unwatched, pod.UID)
		delete(s.departed, pod.UID)
		s.observe(log, pod, now)
	})
}

// Forget tells that a pod is gone from the API server; last is the last that
// was seen of it.
func (p *Planner) Forget(ctx context.Context, last *view.Pod) {
	p.event(ctx, func(log logr.Logger, s *state, now time.Time) { s.gone(log, last, now) })
}

// ObserveNode tells of a node.
func (p *Planner) ObserveNode(ctx context.Context, node *view.Node) {
	p.event(ctx, func(log logr.Logger, s *state, now time.Time) { s.observeNode(log, node, now) })
}

// ForgetNode tells that a node is gone. Its pods' charges stay until they are
// gone as well.
func (p *Planner) ForgetNode(ctx context.Context, name string) {
	p.event(ctx, func(log logr.Logger, s *state, now time.Time) {
		s.observeNode(log, &view.Node{Name: name}, now)
		s.forgetNode(name)
	})
}

// Rebuilt tells that everything that exists has been observed, and returns when
// that has taken effect.
func (p *Planner) Rebuilt(ctx context.Context) error {
	_, err := ask(ctx, p, func(_ context.Context, s *state, now time.Time) struct{} {
		p.live.Store(true)
		for _, e := range s.pending {
			s.explainUnasked(e, now)
		}
		return struct{}{}
	})
	return err
}

// Live says whether Rebuilt was called: before, the ledger is incomplete.
func (p *Planner) Live() bool { return p.live.Load() }

func (p *Planner) event(ctx context.Context, f func(log logr.Logger, s *state, now time.Time)) {
	// Errors mean that ctx has ended or the planner has: nobody decides then.
	_ = p.send(ctx, func(ctx context.Context, s *state, now time.Time) func() {
		f(klog.FromContext(ctx), s, now)
		return nil
	})
}

func (s *state) observe(log logr.Logger, pod *view.Pod, now time.Time) {
	if !pod.Ended {
		s.learn(pod)
		s.count(pod)
	}
	if pod.Member == nil {
		s.forgetMember(pod.UID, now) // somebody has removed the label
	}
	s.charge(log, pod, now)
	switch {
	case pod.Member != nil && s.p.opts.Gangs:
		s.observeMember(pod, now)
	case pod.Gated && (!s.p.opts.Queues || pod.Member != nil):
		// What the gate is for is switched off: nobody waits.
		s.p.effects.Admit([]Admission{{Pod: ref(pod), Gated: true, Version: s.ledger.Version()}})
	}
	if s.p.opts.Queues {
		s.book(pod.UID)
	}
	if e := s.pending[pod.UID]; e != nil && (pod.Gated || e.waiting) && s.p.opts.Queues {
		s.enlist(e)
	}
}

// charge brings the ledger and the list of pending pods up to date with pod.
func (s *state) charge(log logr.Logger, pod *view.Pod, now time.Time) {
	switch {
	case pod.Ended:
		r, ok := s.ledger.Get(pod.UID)
		s.forget(pod.UID, now)
		if m := s.members[pod.UID]; m != nil && ok && r.State == ledger.Allocated && !pod.Member.Succeeded {
			m.pod = pod
			s.forgetMember(pod.UID, now)
			s.vacate(m, r, now)
		}
	case pod.Node == "":
		// Never a reason to release anything: the news may be older than our
		// own Binding.
		e := s.touch(pod)
		s.heardOf(e, pod, now)
		e.show(pod)
		if pod.Deleting && e.waiting {
			e.waiting = false
			s.waitingChanged = true
		}
		if r, ok := s.ledger.Get(pod.UID); pod.Deleting && ok && r.State == ledger.Held {
			s.release(pod.UID, now) // nobody binds it any more
		}
		if !pod.Deleting && (pod.Member == nil || !s.p.opts.Gangs) && pod.UsesGPU {
			s.observeNomination(e, now)
			s.explainUnasked(e, now)
		}
	default:
		s.allocate(log, pod, now)
	}
}

// gone ends a pod that the API server has not any more. A kubelet reports that
// a pod has ended before it lets go of it. One that vanishes while it may run
// was deleted by force: its kubelet learns of it only now, and gives the
// containers their grace period with the GPUs in their hands.
func (s *state) gone(log logr.Logger, last *view.Pod, now time.Time) {
	s.depart(last.UID, now)
	m := s.members[last.UID]
	s.forgetMember(last.UID, now)
	r, ok := s.ledger.Get(last.UID)
	running := ok && r.State == ledger.Allocated && last.Node == r.Node && !last.Ended
	if !running || !s.ledger.Node(r.Node).Known() {
		s.forget(last.UID, now)
		if m != nil && ok && r.State == ledger.Allocated {
			s.vacate(m, r, now)
		}
		return
	}
	s.linger(log, r, last.Grace, now)
}

// linger leaves what a pod is charged, r, while its containers may run.
func (s *state) linger(log logr.Logger, r *ledger.Record, grace time.Duration, now time.Time) {
	linger := min(grace, mostGrace) + lingerMargin
	s.lingering[r.Pod.UID] = now.Add(linger)
	log.V(2).Info("Pod was deleted by force; its GPUs stay charged while its containers may run", "pod", klog.KRef(r.Pod.Namespace, r.Pod.Name), "node", r.Node, "for", linger)
}

// mostGrace bounds how long a pod that is gone is believed to run: its grace
// period is its owner's word, and could be a year. Should a container run longer
// after all, the node plugin does not give its GPU out again.
const mostGrace = 10 * time.Minute

// lingerMargin is what a kubelet may take to learn of a deletion and to report
// the end of the containers to the node plugin.
const lingerMargin = 5 * time.Second

// settleLingering releases pods deleted by force whose containers must have
// ended.
func (s *state) settleLingering(now time.Time) {
	for uid, until := range s.lingering {
		if !now.Before(until) {
			s.forget(uid, now)
		}
	}
}

// forget ends everything about a pod.
func (s *state) forget(uid types.UID, now time.Time) {
	s.depart(uid, now)
	delete(s.lingering, uid)
	delete(s.learned, uid)
	delete(s.outside, uid)
	s.forgetEarly(uid)
	s.release(uid, now)
	s.unpend(uid, now)
	s.p.parsed.Remove(uid)
	s.forgetUnplanned(uid)
	s.uncount(uid)
}

// unpend ends what is remembered of a pod only until it is bound.
func (s *state) unpend(uid types.UID, now time.Time) {
	e := s.pending[uid]
	if e == nil {
		return
	}
	delete(s.pending, uid)
	s.delist(e)
	s.unkeepFor(e)
	s.forgetNomination(uid)
	s.p.admitted.Delete(uid)
	s.p.refused.Delete(uid)
	s.waitingChanged = s.waitingChanged || e.waiting
	if s.woken[uid] != nil {
		// What was left free for it is for others, unless it was taken.
		s.gain(e.wokenFor, now)
		delete(s.woken, uid)
	}
}

// allocate charges a bound pod by the plan that it carries.
func (s *state) allocate(log logr.Logger, pod *view.Pod, now time.Time) {
	s.unpend(pod.UID, now)
	s.p.parsed.Remove(pod.UID)
	delete(s.unconfirmed, pod.UID)
	if !pod.UsesGPU {
		s.release(pod.UID, now) // what it held was for the planner's eyes only
		return
	}
	if len(pod.Plan) == 0 {
		s.observeUnplanned(log, pod, now)
		return
	}
	s.forgetUnplanned(pod.UID)
	s.divideDue = s.divideDue || s.partial[pod.Node]
	before, had := s.ledger.Get(pod.UID)
	if s.ledger.Allocate(charges(pod.Planned(), pod)) {
		s.displace(log, pod.Node, now)
	}
	if had {
		s.moveFrom(before, now)
	}
	if had && before.Node != pod.Node {
		s.forgetSwap(before.Node, pod.UID)
	}
	if pod.Devices != nil {
		s.observeDevices(log, pod, now)
	}
}

func (s *state) observeNode(log logr.Logger, node *view.Node, now time.Time) {
	n := s.nodeOf(node.Name)
	n.view = node
	s.nodeSet++
	s.tellRoom(node.Name, n)
	s.inventories++
	s.capacity++
	clear(s.hopeless) // what nodes lacked may be another reason now
	s.gains.add(node.Name)
	if foreign := node.Foreign(); foreign != s.foreign[node.Name] {
		s.foreignChanged = true
		if foreign {
			s.foreign[node.Name] = true
		} else {
			delete(s.foreign, node.Name)
		}
	}
	if before := s.broken[node.Name]; node.Problem != before {
		delete(s.broken, node.Name)
		if node.Problem != "" {
			s.broken[node.Name] = node.Problem
			log.Error(nil, "Inventory of a node cannot be read, so it gets no GPU pods", "node", node.Name, "problem", node.Problem)
		}
	}
	if node.Inventory == nil {
		if s.ledger.RemoveNode(node.Name) {
			log.Info("Node has no GPU inventory any more", "node", node.Name)
		}
		return
	}
	if !s.ledger.SetNode(node.Name, *node.Inventory) {
		return
	}
	log.V(2).Info("Node inventory changed", "node", node.Name, "gpus", len(node.Inventory.GPUs))
	s.gain(node.Name, now)
	s.displace(log, node.Name, now)
	for _, u := range s.unplanned[node.Name] {
		s.chargeUnplanned(log, u, now)
	}
	early := s.early[node.Name]
	delete(s.early, node.Name)
	for _, pod := range early {
		s.observeDevices(log, pod, now)
	}
}

// sweep looks for what no event will ever tell.
func (s *state) sweep(now time.Time) {
	// 1. Pods that were bound and gone between two lists of the watch.
	for uid, due := range s.unconfirmed {
		r, ok := s.ledger.Get(uid)
		switch {
		case !ok:
			delete(s.unconfirmed, uid)
		case !now.Before(due):
			s.unconfirmed[uid] = now.Add(confirmWithin)
			s.p.effects.Verify(r.Pod)
		}
	}
	s.verifyUnwatched(now)
	// 2. Reasons that nobody reads any more.
	for _, e := range s.pending {
		switch {
		case !e.waiting: // it has a place, if only the scheduler's
		case e.why != nil:
			s.tellPod(e, e.why, now)
		default:
			s.report(e, now)
		}
	}
	for _, m := range s.members {
		if m.warned != "" && m.pod.Node == "" && now.Sub(m.warnedAt) >= reportAgain {
			m.warned = ""
			s.stirGang(m.pod.UID)
		}
	}
	s.tidyLines()
	s.lapse(now)
	s.sweepEfforts()
	for uid := range s.expelled {
		if s.counted[uid] == nil {
			delete(s.expelled, uid)
		}
	}
	// 3. Room that nobody can have missed any more.
	for node, g := range s.recent {
		if now.Sub(g.at) > sweepEvery {
			delete(s.recent, node)
		}
	}
	// 4. Bindings that the scheduler must have heard of by now.
	s.p.decided.Range(func(key, _ any) bool {
		uid, _ := key.(types.UID)
		if r, ok := s.ledger.Get(uid); !ok || r.State == ledger.Allocated && len(r.Plan.Containers) == 0 {
			s.p.decided.Delete(uid)
		}
		return true
	})
}
