package e2e

import (
	"context"
	"errors"
	"fmt"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
)

// Single pods of a queue are gated always, never, or while the queue has a
// backlog.
func testAdmissionSaysWhoIsGated(p *plot) {
	p.queue("gated", admission(v1alpha1.AdmissionGated))
	p.queue("direct", admission(v1alpha1.AdmissionDirect), limit("1"))
	p.queue("auto", limit("2"))
	hasGate := func(queue string) bool {
		p.Helper()
		pod := p.submit(queue, 1)[0]
		return gated(&life{pod: pod})
	}
	p.wantOpen("auto")
	for queue, want := range map[string]bool{"gated": true, "direct": false, "auto": false} {
		if got := hasGate(queue); got != want {
			p.Errorf("the first pod of queue %s: gate %t, want %t", queue, got, want)
		}
	}
	p.wantRunning(map[string]int{"gated": 1, "direct": 1, "auto": 1})

	// Now with a backlog.
	p.submit("auto", 2)
	p.wantStatus("auto", "has a backlog", func(s *v1alpha1.QueueStatus) bool { return s.PendingGangs == 1 && !s.Open })
	for queue, want := range map[string]bool{"direct": false, "auto": true} {
		eventually(p.T, fmt.Sprintf("a pod of %s comes with gate %t", queue, want), func(context.Context) error {
			if hasGate(queue) != want { // the webhook hears of it a moment later
				return errors.New("it does not")
			}
			return nil
		})
	}
	p.wantRunning(map[string]int{"direct": 1, "auto": 2})
	p.wantReasons()

	// The backlog goes, and the queue is open again.
	p.change("auto", limit("8"))
	p.change("direct", limit("8"))
	eventually(p.T, "nobody waits", func(context.Context) error {
		if names := p.diary.names(waiting); len(names) > 0 {
			return fmt.Errorf("%v wait", names)
		}
		return nil
	})
	p.wantOpen("auto")
	eventually(p.T, "a pod comes without a gate", func(context.Context) error {
		defer p.remove("auto")
		if hasGate("auto") {
			return errors.New("it has one")
		}
		return nil
	})
}

func (p *plot) wantOpen(queue string) {
	p.Helper()
	p.wantStatus(queue, "is open", func(s *v1alpha1.QueueStatus) bool { return s.Open })
}

// With whenFull Expose the head of the queue, and nobody behind it, is shown to
// cluster autoscalers, which see what kube-scheduler could not place.
func testExposeShowsTheHeadToAutoscalers(p *plot) {
	p.queue("full", deserves("8"))
	p.queue("a", admission(v1alpha1.AdmissionGated), func(s *v1alpha1.QueueSpec) { s.WhenFull = v1alpha1.WhenFullExpose })
	p.submit("full", 8)
	p.wantRunning(map[string]int{"full": 8})
	pods := p.submit("a", 3)
	p.wantEvent(pods[0], "FailedScheduling")
	for i, pod := range pods {
		p.wantEvent(pod, "GPUUnavailable", "wholly free")
		want := i > 0
		if got := p.diary.count(podIs(pod), gated) == 1; got != want {
			p.Errorf("pod %d of the queue has the gate: %t, want %t", i, got, want)
		}
	}
	p.remove("full")
	p.wantRunning(map[string]int{"a": 3})
}
