package e2e

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/tests/cluster"
	. "github.com/tranche-dev/tranche/tests/testkit"
)

// number reads a number from the environment.
func number(t *testing.T, key string, otherwise int) int {
	t.Helper()
	text := os.Getenv(key)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s=%q is not a number", key, text)
	}
	return n
}

// endsAfter has a simulated pod take its time to end.
func endsAfter(d time.Duration) func(*PodBuilder) {
	return func(b *PodBuilder) {
		b.Annotation(contract.Prefix+"sim-end-after", d.String()).
			Spec(func(s *corev1.PodSpec) { s.TerminationGracePeriodSeconds = new(int64(30)) })
	}
}

// The extender is killed while it makes room, again and again: neither does it
// evict more than is needed, nor does it leave GPUs held for nobody.
func testReclaimSurvivesAKilledExtender(p *plot) {
	threeTeams(p)
	p.replicas("a", 8, endsAfter(3*time.Second))
	for round := range number(p.T, "TRANCHE_E2E_ROUNDS", 3) {
		p.wantRunning(map[string]int{"a": 8})
		before := p.diary.count(queueIs(p.q("a")), evicted)
		begun := make(chan struct{}, 100)
		p.diary.mu.Lock()
		p.diary.onEviction = func(*life) { begun <- struct{}{} }
		p.diary.mu.Unlock()
		p.submit("b", 2)
		p.submit("c", 2)
		select {
		case <-begun:
		case <-time.After(settle):
			p.Fatal("nobody is evicted\n" + p.picture())
		}
		p.diary.mu.Lock()
		p.diary.onEviction = nil
		p.diary.mu.Unlock()
		if err := p.kube.Kill(p.Context(), cluster.Extender); err != nil {
			p.Fatal(err)
		}
		killed := p.diary.count(queueIs(p.q("a")), evicted) - before
		if err := p.kube.Start(p.Context(), cluster.Extender); err != nil {
			p.Fatal(err)
		}
		p.wantRunning(map[string]int{"a": 4, "b": 2, "c": 2})
		p.wantEvicted("a", before+4)
		p.wantNothingHeld()
		p.Logf("round %d: killed after %d of 4 evictions", round+1, killed)
		p.wantReasons()
		p.remove("b")
		p.remove("c")
	}
	p.wantRunning(map[string]int{"a": 8})
	p.wantEvicted("b", 0)
	p.wantEvicted("c", 0)
	p.wantNothingHeld()
}

// wantNothingHeld waits until nothing is put by for anybody.
func (p *plot) wantNothingHeld() {
	p.Helper()
	eventually(p.T, "nothing stays held", func(ctx context.Context) error {
		s, err := extenderStateOf(ctx, p.kube)
		if err != nil {
			return err
		}
		for _, n := range s.Nodes {
			for _, g := range n.GPUs {
				if g.Shares.Held != 0 {
					return fmt.Errorf("%d shares of GPU %s: %+v", g.Shares.Held, g.UUID, g.Pods)
				}
			}
		}
		return nil
	})
}
