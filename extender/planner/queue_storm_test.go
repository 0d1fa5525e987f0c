package planner

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/gang"
	"github.com/tranche-dev/tranche/pkg/queue"
)

// wantSound checks what must be true at any moment.
func (w *world) wantSound() {
	w.Helper()
	problem, err := ask(w.Context(), w.p, func(_ context.Context, s *state, _ time.Time) string { return s.unsound() })
	if err != nil || problem != "" {
		w.Fatalf("%s %v", problem, err)
	}
}

// unsound says what is wrong with the sums, empty if nothing is.
func (s *state) unsound() string {
	s.settleBooks()
	var total int64
	for _, r := range s.ledger.Records() {
		if seat, yes := strings.CutPrefix(string(r.Pod.UID), "reserved for "); yes {
			id, _, _ := strings.Cut(seat, " on ")
			if s.reservations[id] == nil {
				return fmt.Sprintf("%q is held for nobody", r.Pod.UID)
			}
			continue
		}
		c, ok := s.tree.Charged(r.Pod.UID)
		if !ok || c.State != queue.Held && c.State != queue.Allocated {
			return fmt.Sprintf("pod %s has GPUs and is charged %v", r.Pod.Name, c)
		}
		var shares int64
		for _, charge := range r.Charges {
			shares += int64(charge.Shares)
		}
		if shares != c.Amounts.Get(queue.GPU) {
			return fmt.Sprintf("pod %s has %d shares and is charged %d", r.Pod.Name, shares, c.Amounts.Get(queue.GPU))
		}
		total += shares
	}
	for id := range s.reservations {
		if c, ok := s.tree.Charged(creditFor(id)); ok {
			total += c.Amounts.Get(queue.GPU)
		}
	}
	u := s.tree.Total()
	if used := u.Allocated.Get(queue.GPU) + u.Held.Get(queue.GPU); used != total {
		return fmt.Sprintf("queues are charged %d shares, pods have %d", used, total)
	}
	for _, q := range s.queues {
		v := s.tree.Usage(q.name)
		if used := v.Allocated.Add(v.Held).Get(queue.GPU); used > v.EffectiveLimit.Get(queue.GPU) {
			return fmt.Sprintf("queue %s uses %d of its limit of %d", q.name, used, v.EffectiveLimit.Get(queue.GPU))
		}
	}
	kept := map[string]gang.Resources{}
	for _, e := range s.pending {
		if e.kept != nil {
			kept[e.kept.node] = kept[e.kept.node].Add(e.kept.needs)
		}
	}
	for _, m := range s.members {
		if m.place != nil {
			kept[m.place.Node] = kept[m.place.Node].Add(m.needs)
		}
	}
	for name, n := range s.nodes {
		if !n.kept.Equal(kept[name]) {
			return fmt.Sprintf("node %s keeps %v, its holds %v", name, n.kept, kept[name])
		}
	}
	return ""
}

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
		some := func() *corev1.Pod {
			w.mu.Lock()
			defer w.mu.Unlock()
			uids := slices.Sorted(maps.Keys(w.pods))
			if len(uids) == 0 {
				return nil
			}
			return w.pods[uids[r(len(uids))]]
		}
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
				pods := gangPods(fmt.Sprint("g", made), 3, 3, "100")
				name := leaves[r(len(leaves))]
				for _, pod := range pods {
					pod.Labels[contract.QueueLabel] = name
				}
				w.create(pods...)
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
				if r(6) == 0 {
					w.restartQueues()
				}
			default:
				w.goOn(time.Duration(r(3000)) * time.Millisecond)
			}
			w.wantSound()
		}
		w.goOnBy(2*time.Minute, time.Second)
		w.wantSound()
		calm := len(w.evicted)
		w.goOnBy(10*time.Minute, time.Second)
		if len(w.evicted) != calm {
			t.Errorf("nothing comes or goes, but pods are evicted: %q", w.evicted[calm:])
		}
		w.wantSound()
		placed, evicted = len(w.posted), len(w.evicted)
		for pod := some(); pod != nil; pod = some() {
			w.remove(pod)
		}
		w.goOn(time.Minute)
		left, err := ask(w.Context(), w.p, func(_ context.Context, s *state, _ time.Time) string {
			return fmt.Sprint(s.ledger.Len(), " ", s.tree.Total().Demand.Get(queue.GPU), " ", len(s.reservations), " ", len(s.counted), " ", len(s.pending), " ", len(s.wanting))
		})
		if err != nil || left != "0 0 0 0 0 0" {
			t.Errorf("claims, demand, reservations, counted, pending, wanting: %s, want nothing left", left)
		}
	})
	return placed, evicted
}

// restartQueues is restart with what queues need.
func (w *world) restartQueues() {
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
