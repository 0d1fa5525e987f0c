package planner

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/contract"
)

// queueStorm lets pods and gangs of five queues come and go at random on three
// nodes of four GPUs, then lets them finish.
func queueStorm(t *testing.T, r func(n int) int, steps int) (placed, evicted int) {
	runQueues(t, 3, func(w *world) {
		w.queue(aQueue("x", "", deserves(6)))
		w.queue(aQueue("y", "", deserves(4), limited(9)))
		w.queue(aQueue("x-1", "x", deserves(4)))
		w.queue(aQueue("x-2", "x", limited(5), func(q *view.Queue) { q.Weight = 2 }))
		w.queue(aQueue("y-1", "y", deserves(1), func(q *view.Queue) { q.Priority = 1 }))
		w.queue(aQueue("y-2", "y", deserves(3)))
		leaves := []string{"x-1", "x-2", "y-1", "y-2", "default"}
		made := 0
		some := func() *corev1.Pod { return w.anyPod(r) }
		for range steps {
			made++
			switch r(10) {
			case 0, 1, 2:
				pod := queued(leaves[r(len(leaves))], fmt.Sprint("p", made), []string{"50", "100", "30", "2 GPU"}[r(4)])
				if r(3) == 0 {
					open(pod)
				}
				if r(6) == 0 {
					withPriority(pod, 10)
				}
				w.create(pod)
			case 3:
				w.create(inQueue(leaves[r(len(leaves))], gangPods(fmt.Sprint("g", made), 3, 3, "100")...)...)
			case 4, 5:
				if pod := some(); pod != nil && pod.Spec.NodeName != "" {
					w.change(pod.UID, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
					w.remove(pod)
				}
			case 6:
				if pod := some(); pod != nil {
					w.remove(pod)
				}
			case 7:
				switch r(6) {
				case 0:
					w.restartQueues()
				case 1:
					ending := r(2) == 0
					w.queue(aQueue("x-2", "x", limited(5), func(q *view.Queue) { q.Weight, q.Deleting = 2, ending }))
				}
			default:
				w.goOn(time.Duration(r(3000)) * time.Millisecond)
			}
			w.wantSound()
			w.wantWithinLimits()
			if r(4) == 0 {
				w.wantReported()
			}
			if r(4) == 0 {
				w.wantSettled()
			}
		}
		w.queue(aQueue("x-2", "x", limited(5), func(q *view.Queue) { q.Weight = 2 }))
		w.goOnBy(2*time.Minute, time.Second)
		w.wantSound()
		calm := len(w.evicted)
		w.goOnBy(10*time.Minute, time.Second)
		if len(w.evicted) != calm {
			t.Errorf("nothing comes or goes, but pods are evicted: %q", w.evicted[calm:])
		}
		w.wantSound()
		placed, evicted = len(w.posted), len(w.evicted)
		w.removeAll()
	}, func(o *Options) {
		o.Placement = contract.Placements()[r(len(contract.Placements()))]
	})
	return placed, evicted
}

// wantReported lets nothing come or go for longer than reports take, after which
// they must be what is.
func (w *world) wantReported() {
	w.Helper()
	w.after(10 * reportEvery)
	w.wantNone((*state).outdated)
}

// anyPod is one of all pods, nil if there is none.
func (w *world) anyPod(r func(n int) int) *corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	uids := slices.Sorted(maps.Keys(w.pods))
	if len(uids) == 0 {
		return nil
	}
	return w.pods[uids[r(len(uids))]]
}

// removeAll lets all pods be gone, and looks for what is left of them.
func (w *world) removeAll() {
	w.Helper()
	first := func(int) int { return 0 }
	for pod := w.anyPod(first); pod != nil; pod = w.anyPod(first) {
		w.remove(pod)
	}
	w.wantReported()
	w.goOn(time.Minute)
	w.wantNone((*state).leftover)
}

// restartQueues is restart with what queues need; more is told before the pods.
func (w *world) restartQueues(more ...func()) {
	queues := map[string]*view.Queue{}
	spaces := map[string]*view.Namespace{}
	_, err := ask(w.Context(), w.p, func(_ context.Context, s *state, _ time.Time) struct{} {
		for name, q := range s.queues {
			if q.view != nil {
				queues[name] = q.view
			}
		}
		maps.Copy(spaces, s.namespaces)
		return struct{}{}
	})
	if err != nil {
		w.Fatal(err)
	}
	w.before = func() {
		for _, n := range spaces {
			w.p.ObserveNamespace(w.Context(), n)
		}
		for _, q := range queues {
			w.p.ObserveQueue(w.Context(), q)
		}
		for _, f := range more {
			f()
		}
	}
	w.restart()
	w.before = nil
}

func TestQueuesUnderRandomEvents(t *testing.T) {
	placed, evicted := 0, 0
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			p, e := queueStorm(t, rand.New(rand.NewPCG(seed, 2)).IntN, 150)
			placed, evicted = placed+p, evicted+e
		})
	}
	t.Logf("%d pods placed, %d evicted", placed, evicted)
}
