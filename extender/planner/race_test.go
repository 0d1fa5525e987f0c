package planner

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/tranche-dev/tranche/extender/internal/fixture"
	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

// TestNoGPUIsOvercommittedUnderConcurrency lets schedulers without manners run
// at once: calls repeat, overlap, come in odd orders and fail, while pods end
// and are deleted. All the while no GPU may be charged beyond its shares, and
// in the end nobody but the living may be charged.
func TestNoGPUIsOvercommittedUnderConcurrency(t *testing.T) {
	const schedulers, podsEach, nodeCount, gpus = 8, 150, 6, 4
	p, _ := newPlanner(t, &effects{})
	ctx, cancel := context.WithCancel(t.Context())
	var owner sync.WaitGroup
	owner.Go(func() { p.Run(ctx) })
	nodes := make([]string, nodeCount)
	for i := range nodes {
		nodes[i] = fmt.Sprintf("node-%d", i)
		p.ObserveNode(ctx, view.NodeOf(fixture.Node(t, nodes[i], fixture.Inventory(nodes[i], gpus)), p.opts.Resources))
	}
	if err := p.Ping(ctx); err != nil {
		t.Fatal(err)
	}

	// One watches all the time.
	stop := make(chan struct{})
	var watcher sync.WaitGroup
	watcher.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				check(t, p)
			}
		}
	})

	alive := make([][]*corev1.Pod, schedulers)
	var working sync.WaitGroup
	for i := range schedulers {
		working.Go(func() {
			s := &scheduler{t: t, p: p, nodes: nodes, r: rand.New(rand.NewPCG(uint64(i), 7))}
			for j := range podsEach {
				s.schedule(ctx, fmt.Sprintf("pod-%d-%d", i, j))
			}
			alive[i] = s.bound
		})
	}
	working.Wait()
	close(stop)
	watcher.Wait()
	check(t, p)

	want := map[contract.GPUUUID]units.Shares{}
	for _, pods := range alive {
		for _, pod := range pods {
			v := view.PodOf(pod, p.opts.Resources)
			for gpu, s := range v.Planned().Charges(v.Roles) {
				want[gpu] += s
			}
		}
	}
	for n := range p.Snapshot().Ledger.Nodes() {
		for _, g := range n.GPUs() {
			if g.Allocated != want[g.Facts.UUID] {
				t.Errorf("GPU %s: allocated %d, its living pods have %d", g.Facts.UUID, g.Allocated, want[g.Facts.UUID])
			}
		}
	}
	cancel()
	owner.Wait()
}

// check recounts the newest snapshot.
func check(t *testing.T, p *Planner) {
	t.Helper()
	for n := range p.Snapshot().Ledger.Nodes() {
		sums := map[contract.GPUUUID]units.Shares{}
		for _, r := range n.Claims() {
			for _, c := range r.Charges {
				sums[c.GPU] += c.Shares
			}
		}
		for _, g := range n.GPUs() {
			if sums[g.Facts.UUID] > n.SharesPerGPU() || sums[g.Facts.UUID] != g.Allocated+g.Held {
				t.Errorf("GPU %s: charged %d of %d, counted %d and %d", g.Facts.UUID, sums[g.Facts.UUID], n.SharesPerGPU(), g.Allocated, g.Held)
			}
		}
	}
}

// scheduler is one caller with its own part of the pods.
type scheduler struct {
	t     *testing.T
	p     *Planner
	nodes []string
	r     *rand.Rand
	bound []*corev1.Pod
}

func (s *scheduler) chance(percent int) bool { return s.r.IntN(100) < percent }

func (s *scheduler) schedule(ctx context.Context, name string) {
	limit := []string{"10", "25", "50", "60", "100", "1 GPU", "2 GPU"}[s.r.IntN(7)]
	pod := fixture.Pod(name, limit)
	if s.chance(50) {
		s.p.Observe(ctx, view.PodOf(pod, s.p.opts.Resources))
	}
	for range 1 + s.r.IntN(3) {
		// 1. Filter and prioritize.
		offered := s.nodes[s.r.IntN(len(s.nodes)):]
		verdict, err := s.p.Filter(ctx, pod, offered)
		if err != nil {
			s.t.Error(err)
			return
		}
		var passed []string
		for i, node := range offered {
			if verdict.Reason(i) == "" {
				passed = append(passed, node)
			}
		}
		if len(passed) == 0 {
			s.end(ctx)
			continue
		}
		if s.chance(80) {
			if _, err := s.p.Prioritize(ctx, pod, passed); err != nil {
				s.t.Error(err)
				return
			}
		}
		if s.chance(10) {
			continue // the scheduler thinks again
		}
		// 2. Bind, perhaps where nobody planned it, perhaps twice at once.
		node := passed[s.r.IntN(len(passed))]
		if s.chance(10) {
			var twin sync.WaitGroup
			twin.Go(func() {
				if r, err := s.p.Reserve(ctx, target(pod, node), nil); err == nil && !r.Done {
					s.p.Abort(ctx, target(pod, node))
				}
			})
			twin.Wait()
		}
		r, err := s.p.Reserve(ctx, target(pod, node), nil)
		if err != nil {
			continue
		}
		if s.finish(ctx, pod, node, r) {
			break
		}
	}
	if s.chance(40) {
		s.end(ctx)
	}
}

// finish plays the API server; it says whether the pod is done with.
func (s *scheduler) finish(ctx context.Context, pod *corev1.Pod, node string, r Reservation) bool {
	t := target(pod, node)
	switch {
	case s.chance(10):
		s.p.Abort(ctx, t)
		return false
	case s.chance(10):
		s.p.Truth(ctx, pod.UID, view.PodOf(pod, s.p.opts.Resources))
		return false
	}
	text, err := r.Plan.Format()
	if err != nil {
		s.t.Error(err)
		return true
	}
	bound := pod.DeepCopy()
	bound.Spec.NodeName = node
	bound.Annotations[contract.PlanAnnotation] = text
	v := view.PodOf(bound, s.p.opts.Resources)
	switch s.r.IntN(4) {
	case 0:
		s.p.Bound(ctx, t)
	case 1:
		s.p.Observe(ctx, v)
		s.p.Bound(ctx, t)
	case 2:
		s.p.Truth(ctx, pod.UID, v)
	default:
		s.p.Bound(ctx, t)
		s.p.Observe(ctx, v)
		s.p.Observe(ctx, view.PodOf(pod, s.p.opts.Resources)) // old news
	}
	s.bound = append(s.bound, bound)
	return true
}

// end lets one of the bound pods end in one of the ways there are.
func (s *scheduler) end(ctx context.Context) {
	if len(s.bound) == 0 {
		return
	}
	i := s.r.IntN(len(s.bound))
	pod := s.bound[i]
	s.bound = append(s.bound[:i], s.bound[i+1:]...)
	if s.chance(50) {
		s.p.Observe(ctx, view.PodOf(ended(pod, corev1.PodSucceeded), s.p.opts.Resources))
	}
	s.p.Forget(ctx, view.PodOf(ended(pod, corev1.PodFailed), s.p.opts.Resources))
	if err := s.p.Ping(ctx); err != nil {
		s.t.Error(err)
	}
}

func TestHoldsOfCrashedSchedulersEnd(t *testing.T) {
	run(t, func(k *kit) {
		k.node("a", 4)
		for i := range 8 {
			k.filter(fixture.Pod(fmt.Sprint("p", i), "50"), "a")
		}
		k.wantCharged("a", 3, 0, 100)
		k.after(holdTimeout + time.Second)
		for i := range 4 {
			k.wantCharged("a", i, 0, 0)
		}
	})
}
