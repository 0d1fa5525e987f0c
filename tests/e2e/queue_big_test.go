package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/tranche-dev/tranche/pkg/contract"
)

// TestLargeGangStartsOnABusyCluster: one-GPU pods of another queue keep 320 GPUs
// busy without end and nobody is evicted, so that 32 GPUs are never free at one
// time unless they are put by.
func TestLargeGangStartsOnABusyCluster(t *testing.T) {
	t.Parallel()
	const (
		nodes    = 40
		all      = nodes * 8
		size     = 32
		inSystem = 400
		delay    = 10 * time.Second
		shortest = 20 * time.Second
		longest  = 40 * time.Second
		// slack is for everything that a busy machine does late.
		slack = 15 * time.Second
	)
	y := newYard(t, "busy", nodes, "--reclaim=false", "--reservation-delay="+delay.String())
	y.once = true // to delete a thousand pods one by one would take a minute
	y.tend(t, "busy", func(p *plot) {
		p.queue("small")
		p.queue("large")
		flood(p, "small", inSystem, shortest, longest)
		eventually(t, "the cluster is full", func(context.Context) error {
			if n := p.busy(); n < all {
				return fmt.Errorf("%d of %d GPUs are in use", n, all)
			}
			return nil
		})

		began := time.Now()
		var wg sync.WaitGroup
		for i := range size {
			wg.Go(func() {
				pod := p.pod("large", fmt.Sprintf("gang-%d", i)).Label(contract.GangLabel, "big").Annotation(contract.GangMinCountAnnotation, strconv.Itoa(size)).Obj()
				if _, err := p.client.CoreV1().Pods(p.ns).Create(p.Context(), pod, metav1.CreateOptions{}); err != nil {
					p.Error(err)
				}
			})
		}
		wg.Wait()
		var samples []int
		bound := func() int {
			return p.diary.count(labelled(contract.GangLabel, "big"), func(l *life) bool { return !l.bound.IsZero() })
		}
		err := wait.PollUntilContextTimeout(p.Context(), time.Second, settle, true, func(context.Context) (bool, error) {
			samples = append(samples, p.busy())
			return bound() == size, nil
		})
		took := time.Since(began)
		if err != nil {
			p.Fatalf("%d members are bound after %v: %v", bound(), took, p.gangReasons("big"))
		}
		sum := 0
		for _, n := range samples {
			sum += n
		}
		share := float64(sum) / float64(len(samples)*all)
		p.Logf("the gang of %d waited for %.1f s; meanwhile %.1f %% of %d GPUs were in use", size, took.Seconds(), share*100, all)
		if most := delay + longest + slack; took > most {
			p.Errorf("the gang waited for %v, more than %v: the delay, the longest run and some slack", took, most)
		}
		if share < 0.9 {
			p.Errorf("%.1f %% of the GPUs were in use while the gang waited, want 90 %%", share*100)
		}
		if n := p.diary.count(evicted); n > 0 {
			p.Errorf("%d pods were evicted, with reclaim off", n)
		}
	})
}

// busy counts the GPUs of pods that run.
func (p *plot) busy() int {
	return p.diary.count(func(l *life) bool { return !l.bound.IsZero() && l.ended.IsZero() })
}

// flood keeps so many one-GPU pods of a queue in the system, until the test
// ends.
func flood(p *plot, queue string, inSystem int, shortest, longest time.Duration) {
	ctx, cancel := context.WithCancel(p.Context())
	var wg sync.WaitGroup
	p.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	const creators = 4
	for c := range creators {
		wg.Go(func() {
			made := 0
			_ = wait.PollUntilContextCancel(ctx, pollEvery, true, func(ctx context.Context) (bool, error) {
				for lacking := (inSystem - p.diary.count(queueIs(p.q(queue)), func(l *life) bool { return l.ended.IsZero() })) / creators; lacking > 0; lacking-- {
					made++
					b := p.pod(queue, fmt.Sprintf("%s-%d-%d", queue, c, made))
					runFor(shortest + time.Duration(rand.Int64N(int64(longest-shortest))).Truncate(time.Millisecond))(b)
					if _, err := p.client.CoreV1().Pods(p.ns).Create(ctx, b.Obj(), metav1.CreateOptions{}); err != nil && ctx.Err() == nil {
						p.Errorf("creating a pod of the flood: %v", err)
						return true, nil
					}
				}
				return false, nil
			})
		})
	}
}

// gangReasons are why a gang waits.
func (p *plot) gangReasons(name string) string {
	pods := p.diary.pods(labelled(contract.GangLabel, name), func(l *life) bool { return l.pod.Status.Phase == corev1.PodPending })
	if len(pods) == 0 {
		return "none of it waits"
	}
	events, err := podEventsOf(p.Context(), p.client, &pods[0])
	return fmt.Sprint(eventTexts(events), err)
}
