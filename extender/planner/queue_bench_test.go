package planner

import (
	"fmt"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"github.com/tranche-dev/tranche/extender/internal/fixture"
	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/contract"
)

// manyQueues is a state with 1,000 queues below 20 departments, nodes of eight
// GPUs, and pods of one GPU that wait in all queues.
func manyQueues(b *testing.B, nodes, pods int) *state {
	b.Helper()
	p, _ := newPlanner(b, &effects{}, withQueues)
	s := newState(p)
	now := time.Now()
	log := klog.Background()
	p.live.Store(true)
	s.observeNamespace("demo", &view.Namespace{Name: "demo", Labels: map[string]string{contract.InjectLabel: contract.InjectEnabled}})
	for i := range nodes {
		name := fmt.Sprintf("n%04d", i)
		s.observeNode(log, view.NodeOf(fixture.Node(b, name, fixture.Inventory(name, 8)), p.opts.Resources), now)
	}
	for d := range 20 {
		s.observeQueue(aQueue(fmt.Sprint("dept-", d), "", deserves(100)))
	}
	for q := range 1000 {
		s.observeQueue(aQueue(fmt.Sprint("team-", q), fmt.Sprint("dept-", q%20), deserves(2)))
	}
	for i := range pods {
		pod := queued(fmt.Sprint("team-", i%1000), fmt.Sprint("p", i), "1 GPU")
		s.observe(log, view.PodOf(pod, p.opts.Resources), now)
	}
	return s
}

// A round in which nothing is free and 20,000 pods wait.
func BenchmarkRoundWithNothingFree(b *testing.B) {
	s := manyQueues(b, 0, 20000)
	log := klog.Background()
	now := time.Now()
	s.planRound(log, now, true)
	b.ReportAllocs()
	for b.Loop() {
		s.nextPlan = time.Time{}
		s.capacity++
		s.planRound(log, now, true)
	}
}

// A round in which 20,000 pods wait for the limits of their departments.
func BenchmarkRoundAtLimits(b *testing.B) {
	s := manyQueues(b, 200, 20000)
	for d := range 20 {
		s.observeQueue(aQueue(fmt.Sprint("dept-", d), "", deserves(100), limited(0)))
	}
	log := logr.Discard()
	// All time is after the present, so that no round is cut short.
	now := time.Now().Add(time.Hour)
	s.planRound(log, now, true)
	if s.newcomers || s.ledger.Len() > 0 {
		b.Fatalf("%d pods were admitted, want all to have been served and none to be admitted", s.ledger.Len())
	}
	b.ReportAllocs()
	for b.Loop() {
		s.nextPlan = time.Time{}
		s.capacity++
		s.planRound(log, now, true)
	}
}

// A round that admits 1,600 of 20,000 pods on 200 nodes, and what one costs.
func BenchmarkRoundThatAdmits(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		s := manyQueues(b, 200, 20000)
		b.StartTimer()
		for s.nextPlan = (time.Time{}); s.served != s.capacity; s.nextPlan = (time.Time{}) {
			s.planRound(klog.Background(), time.Now(), true)
			if s.ledger.Len() >= 1600 {
				break
			}
		}
		if s.ledger.Len() != 1600 {
			b.Fatalf("%d admitted, want 1600", s.ledger.Len())
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/1600, "µs/pod")
}

// A round on 5,000 nodes that admits ten pods that have just come.
func BenchmarkRoundOnManyNodes(b *testing.B) {
	s := manyQueues(b, 5000, 0)
	log := klog.Background()
	come := 0
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		if s.ledger.Len() > 20_000 {
			for _, r := range s.ledger.Records() {
				s.forget(r.Pod.UID, time.Now())
			}
		}
		for range 10 {
			come++
			s.observe(log, view.PodOf(queued("team-1", fmt.Sprint("p", come), "1 GPU"), s.p.opts.Resources), time.Now())
		}
		s.nextPlan = time.Time{}
		held := s.ledger.Len()
		b.StartTimer()
		s.planRound(log, time.Now(), true)
		if n := s.ledger.Len() - held; n != 10 {
			b.Fatalf("%d admitted, want 10", n)
		}
	}
}

// What one pod costs that ends while 20,000 wait: the round that follows.
func BenchmarkRoundAfterOneEnds(b *testing.B) {
	s := manyQueues(b, 200, 20000)
	log := klog.Background()
	for range 20 {
		s.nextPlan = time.Time{}
		s.planRound(log, time.Now(), true)
	}
	records := s.ledger.Records()
	at := 0
	b.ReportAllocs()
	for b.Loop() {
		s.release(records[at%len(records)].Pod.UID, time.Now())
		at++
		s.nextPlan = time.Time{}
		s.planRound(log, time.Now(), true)
	}
}

// What Filter looks up of queues is made anew.
func BenchmarkGates(b *testing.B) {
	s := manyQueues(b, 200, 20000)
	now := time.Now()
	b.ReportAllocs()
	for b.Loop() {
		s.gatesStale = true
		s.p.publishGates(s, now)
	}
}

// All queues are looked at for something to report.
func BenchmarkReportQueues(b *testing.B) {
	s := manyQueues(b, 200, 20000)
	b.ReportAllocs()
	for b.Loop() {
		s.queueTold, s.nextReport = true, time.Time{}
		s.reportQueues(time.Now())
	}
}

// borrowed is a state of nodes of eight GPUs, all of which pods of one GPU have,
// of queues that deserve nothing; and one pod that waits in a queue that deserves
// something.
func borrowed(b *testing.B, nodes, queues int) *state {
	b.Helper()
	p, _ := newPlanner(b, &effects{}, withQueues)
	s := newState(p)
	now := time.Now()
	log := klog.Background()
	p.live.Store(true)
	s.observeNamespace("demo", &view.Namespace{Name: "demo", Labels: map[string]string{contract.InjectLabel: contract.InjectEnabled}})
	for q := range queues {
		s.observeQueue(aQueue(fmt.Sprint("borrower-", q), ""))
	}
	s.observeQueue(aQueue("owner", "", deserves(8)))
	for i := range nodes {
		name := fmt.Sprintf("n%04d", i)
		s.observeNode(log, view.NodeOf(fixture.Node(b, name, fixture.Inventory(name, 8)), p.opts.Resources), now)
		for j := range 8 {
			pod := open(queued(fmt.Sprint("borrower-", (8*i+j)%queues), fmt.Sprintf("p%d-%d", i, j), "1 GPU"))
			s.observe(log, view.PodOf(fixture.Bound(b, pod, name, one(fixture.GPU(name, j), 100)), p.opts.Resources), now)
		}
	}
	s.observe(log, view.PodOf(queued("owner", "claimant", "1 GPU"), p.opts.Resources), now)
	return s
}

// One GPU is taken back where all are borrowed: the round in which the victim is
// found and asked to go.
func BenchmarkReclaimOneGPU(b *testing.B) {
	for _, queues := range []int{1, 1000} {
		b.Run(fmt.Sprintf("nodes=5000/pods=40000/queues=%d", queues), func(b *testing.B) {
			s := borrowed(b, 5000, queues)
			asked, _ := s.p.effects.(*effects)
			log := logr.Discard()
			// All time is after the present, so that no round is cut short.
			now := time.Now().Add(time.Hour)
			s.planRound(log, now, true)
			if len(s.wanting) != 1 || len(s.reservations) != 0 {
				b.Fatalf("%d want room and %d reservations, want 1 and none yet", len(s.wanting), len(s.reservations))
			}
			b.ReportAllocs()
			for b.Loop() {
				for id, w := range s.wanting {
					s.endReservation(id, now)
					delete(s.efforts, id)
					w.next = time.Time{}
				}
				now = now.Add(deservedPatience)
				s.nextPlan, s.newcomers, s.gangsDirty = time.Time{}, true, true
				s.planRound(log, now, true)
				if got := len(asked.take(&asked.evicted)); got != 1 {
					b.Fatalf("%d pods were asked to go, want 1", got)
				}
			}
		})
	}
}
