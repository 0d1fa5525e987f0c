package planner

import (
	"context"
	"slices"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/placement"
	"github.com/tranche-dev/tranche/pkg/queue"
	"github.com/tranche-dev/tranche/pkg/units"
)

// This file has what the owner keeps of queues. How they take part:
//
//   - Every pod that names a queue, or uses GPUs, is counted in one (count), as
//     pending, held or allocated (book). The sums are the queue tree's.
//   - Whatever holds GPUs for a pod asks admits first, which checks the limits
//     of the queue and of all above it. Nothing else does: what is held is
//     charged, so that what Reserve commits was checked.
//   - planRound serves gangs and waiting pods in the order of the tree's Contest.
//   - Pods without a gate that Filter sees are refused while others are entitled
//     to what they ask for (gates.go), and then wait for planRound like the rest.
//   - Who is entitled to more than is free takes it back (reclaim.go).

// queueState is a queue, or the name of one that pods use.
type queueState struct {
	name string
	// view is nil while there is no such object.
	view *view.Queue
	// lines are the single pods that planRound is to serve, backlog is how many
	// they are.
	lines   map[int]*line
	backlog int32
	// fresh says that one of them waits that no round has served.
	fresh bool
	// limited says that limits alone kept all of them out in a round that began
	// at the tree's mark limitedAt and the count of specs limitedSpecs.
	limited                 bool
	limitedAt, limitedSpecs uint64
	// pods counts who is charged to the queue by name, pending ones included.
	pods int
	// stuck says that somebody entitled waits and finds no place.
	stuck bool

	reported *QueueReport
	// basis is what the last report was made of.
	basis reportBasis
	// drained is when the pods of a queue that is drained were last asked to go.
	drained time.Time
}

// ObserveQueue tells of a Queue as the API server shows it.
func (p *Planner) ObserveQueue(ctx context.Context, q *view.Queue) {
	p.event(ctx, func(_ logr.Logger, s *state, _ time.Time) { s.observeQueue(q) })
}

// ForgetQueue tells that a Queue is gone.
func (p *Planner) ForgetQueue(ctx context.Context, name string) {
	p.event(ctx, func(_ logr.Logger, s *state, _ time.Time) { s.forgetQueue(name) })
}

// ObserveNamespace tells of a namespace and its labels.
func (p *Planner) ObserveNamespace(ctx context.Context, n *view.Namespace) {
	p.event(ctx, func(_ logr.Logger, s *state, _ time.Time) { s.observeNamespace(n.Name, n) })
}

// ForgetNamespace tells that a namespace is gone.
func (p *Planner) ForgetNamespace(ctx context.Context, name string) {
	p.event(ctx, func(_ logr.Logger, s *state, _ time.Time) { s.observeNamespace(name, nil) })
}

// EvictionRefused tells that a disruption budget does not let pods go, which one
// and why.
func (p *Planner) EvictionRefused(ctx context.Context, why string, uids ...types.UID) {
	p.event(ctx, func(_ logr.Logger, s *state, now time.Time) { s.evictionRefused(why, uids, now) })
}

func (s *state) observeQueue(v *view.Queue) {
	q := s.queueOf(v.Name)
	if q.view != nil && q.view.UID != v.UID {
		q.reported, q.basis = nil, reportBasis{} // another object of the same name
	}
	everybody := (q.view == nil || q.view.Selector == nil) && v.Selector == nil
	q.view = v
	s.tree.Set(s.specOf(v))
	if !everybody {
		for uid, c := range s.counted {
			if c.queue == v.Name {
				s.book(uid) // whom the queue does not take is no demand
			}
		}
	}
	s.queuesMoved()
}

func (s *state) forgetQueue(name string) {
	q := s.queues[name]
	if q == nil {
		return
	}
	q.view, q.reported, q.basis = nil, nil, reportBasis{}
	s.tree.Delete(name)
	s.implyDefault()
	for uid, c := range s.counted {
		if c.queue == name {
			s.book(uid)
		}
	}
	s.dropQueue(q)
	s.queuesMoved()
}

// implyDefault makes the default queue exist as long as there is no object of
// that name: it deserves nothing and has no limit.
func (s *state) implyDefault() {
	name := s.p.opts.DefaultQueue
	if q := s.queues[name]; name != "" && (q == nil || q.view == nil) {
		s.tree.Set(queue.Spec{Name: name, Weight: 1})
	}
}

func (s *state) observeNamespace(name string, n *view.Namespace) {
	if n == nil {
		delete(s.namespaces, name)
	} else {
		s.namespaces[name] = n
	}
	for uid, c := range s.counted {
		if c.pod.Namespace == name {
			s.count(c.pod)
			s.book(uid)
		}
	}
	for uid, pod := range s.outside {
		if pod.Namespace == name {
			s.count(pod)
			s.book(uid)
		}
	}
	for uid, e := range s.pending {
		if e.pod.Namespace == name {
			s.count(e.pod)
			s.book(uid)
			s.enlist(e)
		}
	}
	s.queuesMoved()
}

// queuesMoved has everybody who waits looked at: a quota may let them go on.
func (s *state) queuesMoved() {
	s.capacity++
	s.specs++
	clear(s.hopeless) // limits on models have a say
	s.gangsDirty = true
	s.gatesStale = true
	s.tell()
}

// queueOf returns the state of a queue, made if it is new.
func (s *state) queueOf(name string) *queueState {
	q := s.queues[name]
	if q == nil {
		q = &queueState{name: name}
		s.queues[name] = q
	}
	return q
}

// dropQueue forgets a queue of which nothing is left.
func (s *state) dropQueue(q *queueState) {
	if q.view == nil && q.pods == 0 {
		delete(s.queues, q.name)
		for _, l := range q.lines {
			for _, e := range l.pods {
				if e.line == l {
					e.line = nil
				}
				if e.slot == l {
					e.slot = nil
				}
			}
		}
	}
}

// specOf translates a queue for the tree.
func (s *state) specOf(v *view.Queue) queue.Spec {
	return queue.Spec{
		Name: v.Name, Parent: v.Parent, Weight: v.Weight, Priority: v.Priority,
		Deserved: s.amounts(v.Deserved, 0), Limit: s.amounts(v.Limit, queue.Unlimited),
		Stopped: v.Deleting || v.Problem != "" || v.Stop == v1alpha1.StopHold || v.Stop == v1alpha1.StopHoldAndDrain,
	}
}

// amounts makes a vector of what a queue names; the rest is absent.
func (s *state) amounts(a view.QueueAmounts, absent int64) queue.Amounts {
	list := make(queue.Amounts, queue.FirstModel)
	for r := range list {
		list[r] = absent
	}
	if a.GPU != nil {
		list[queue.GPU] = int64(*a.GPU)
	}
	if a.CPU != nil {
		list[queue.CPU] = *a.CPU
	}
	if a.Memory != nil {
		list[queue.Memory] = *a.Memory
	}
	for model, n := range a.Models {
		r := s.tree.Model(model)
		for int(r) >= len(list) {
			list = append(list, absent)
		}
		list[r] = int64(n)
	}
	return list
}

// forbidden says whether pods of a namespace may not use a queue.
func (s *state) forbidden(q *queueState, namespace string) bool {
	if q == nil || q.view == nil || q.view.Selector == nil {
		return false
	}
	n := s.namespaces[namespace]
	return n == nil || !q.view.Selector.Matches(labels.Set(n.Labels))
}

// injected says whether a namespace has opted in to Tranche.
func (s *state) injected(namespace string) bool {
	n := s.namespaces[namespace]
	return n != nil && n.Labels[contract.InjectLabel] == contract.InjectEnabled
}

// divideCluster tells the tree what there is to divide: what healthy GPUs of
// nodes that take pods have, and what pods use on others; cpu and memory of all
// nodes.
func (s *state) divideCluster() {
	total := make(queue.Amounts, queue.FirstModel)
	clear(s.partial)
	before := s.largest
	s.largest = 0
	for n := range s.ledger.Snapshot().Nodes() {
		if !n.Known() {
			continue
		}
		host := s.nodes[n.Name()]
		open := host != nil && host.view != nil && takesPods(host.view)
		gpus := n.GPUs()
		for i := range gpus {
			g := &gpus[i]
			s.largest = max(s.largest, g.Facts.MemoryMiB)
			amount := int64(n.SharesPerGPU())
			if !open || !g.Facts.Healthy {
				s.partial[n.Name()] = true
				amount = int64(min(g.Allocated, n.SharesPerGPU()))
			}
			r := s.tree.Model(g.Facts.Model)
			for int(r) >= len(total) {
				total = append(total, 0)
			}
			total[queue.GPU] += amount
			total[r] += amount
		}
	}
	for _, n := range s.nodes {
		if n.view != nil && takesPods(n.view) {
			total[queue.CPU] += n.view.Allocatable.MilliCPU
			total[queue.Memory] += n.view.Allocatable.Memory
		}
	}
	s.tree.SetCapacity(total)
	s.gatesStale = true
	s.tell()
	if s.largest != before {
		s.askAnew()
	}
}

// askAnew counts what pods ask for again: the shares that memory comes to depend
// on the largest GPU.
func (s *state) askAnew() {
	for uid, c := range s.counted {
		if c.pod.Node == "" {
			c.ask = s.askOf(c.pod)
			s.book(uid)
		}
	}
}

// takesPods says whether a node is neither cordoned nor lost.
func takesPods(n *view.Node) bool {
	return !n.Unschedulable && !slices.ContainsFunc(n.Taints, func(t corev1.Taint) bool {
		return t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable
	})
}

// perGPU is how many shares a whole GPU is.
func (s *state) perGPU() units.Shares { return s.p.opts.Resources.PerGPU }

// policyOf is the placement policy that applies to a pod. Unlike Planner.policy,
// which Filter goes by, it knows queues as they are now.
func (s *state) policyOf(pod *view.Pod) placement.Policy {
	if pod.Request.Placement == "" {
		if q := s.queues[s.queueName(pod.UID)]; q != nil && q.view != nil && q.view.Placement != "" {
			return s.p.policyNamed(q.view.Placement)
		}
	}
	return s.p.policy(pod)
}
