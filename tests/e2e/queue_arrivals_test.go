package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/tranche-dev/tranche/pkg/contract"
	. "github.com/tranche-dev/tranche/tests/testkit"
)

// runFor has a simulated pod end by itself.
func runFor(d time.Duration) func(*PodBuilder) {
	return func(b *PodBuilder) { b.Annotation(contract.SimRunForAnnotation, d.String()) }
}

// Pods of random length come at random to three queues, whoever is evicted comes
// again, and more is wanted than there is. No eviction takes a queue below what
// it deserves, and once nobody new comes, nobody is evicted.
func testRandomArrivalsComeToRest(p *plot) {
	deserved := map[string]int{"a": 4, "b": 2, "c": 2}
	threeTeams(p)
	seed := uint64(time.Now().UnixNano())
	p.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	names := []string{"a", "b", "c"}

	// What a queue has just after an eviction: pods that nobody has asked to go,
	// and those that ended by themselves since the extender decided.
	const decided = 3 * time.Second
	again := make(chan string, 10000)
	p.diary.mu.Lock()
	p.diary.onEviction = func(victim *life) {
		queue := strings.TrimPrefix(victim.pod.Labels[contract.QueueLabel], p.name+"-")
		left := 0
		for _, l := range p.diary.lives {
			if l.pod.Labels[contract.QueueLabel] == p.q(queue) && !l.bound.IsZero() && !evicted(l) && (l.ended.IsZero() || time.Since(l.ended) < decided) {
				left++
			}
		}
		if left < deserved[queue] {
			p.Errorf("after the eviction of %s queue %s has %d, and deserves %d", victim.pod.Name, queue, left, deserved[queue])
		}
		again <- queue
	}
	p.diary.mu.Unlock()

	made := 0
	submit := func(queue string, d time.Duration) {
		made++
		b := p.pod(queue, fmt.Sprintf("%s-%d", queue, made)).Label("short", "yes")
		runFor(d)(b)
		p.create(b.Obj())
	}
	length := time.Duration(number(p.T, "TRANCHE_E2E_QUEUE_MINUTES", 0)) * time.Minute
	if length == 0 {
		length = 30 * time.Second
	}
	ctx, cancel := context.WithTimeout(p.Context(), length)
	defer cancel()
	_ = wait.PollUntilContextCancel(ctx, pollEvery, true, func(context.Context) (bool, error) {
		// One queue after the other has its rush.
		for len(again) > 0 {
			submit(<-again, randomLength(random))
		}
		if p.diary.count(waiting) < 12 {
			rush := names[int(time.Now().Unix()/7)%len(names)]
			if random.IntN(3) == 0 {
				rush = names[random.IntN(len(names))]
			}
			submit(rush, randomLength(random))
		}
		return false, nil
	})
	placed := p.diary.count(func(l *life) bool { return !l.bound.IsZero() })
	n := p.diary.count(evicted)
	p.Logf("%d pods were placed and %d evicted: %.3f evictions per placed pod", placed, n, float64(n)/float64(max(placed, 1)))
	if placed < 8 {
		p.Errorf("only %d pods were placed", placed)
	}

	// Calm: everybody wants more than there is, and nobody ends.
	if err := p.client.CoreV1().Pods(p.ns).DeleteCollection(p.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "short=yes"}); err != nil {
		p.Fatal(err)
	}
	for _, queue := range names {
		for i := range deserved[queue] + 1 {
			p.create(p.pod(queue, fmt.Sprintf("calm-%s-%d", queue, i)).Obj())
		}
	}
	p.wantRunning(deserved)
	calm := p.diary.count(evicted)
	steadilyFor(p.T, 10*time.Second, "everybody keeps what it has", func(context.Context) error { return p.isRunning(deserved) })
	if now := p.diary.count(evicted); now != calm {
		p.Errorf("%d were evicted although nobody came and nobody went", now-calm)
	}
}

func randomLength(r *rand.Rand) time.Duration {
	return time.Second + time.Duration(r.IntN(7000))*time.Millisecond
}
