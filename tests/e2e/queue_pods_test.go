package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/contract"
	. "github.com/tranche-dev/tranche/tests/testkit"
)

// pod is a pod of a queue with one whole GPU.
func (p *plot) pod(queue, name string) *PodBuilder {
	return MakePod(p.ns, name).Label(contract.QueueLabel, p.q(queue)).Container("main", GPUs("1"))
}

// submit creates n pods with one GPU each, named after their queue, and returns
// them as they were created.
func (p *plot) submit(queue string, n int, with ...func(*PodBuilder)) []*corev1.Pod {
	p.Helper()
	made := p.diary.count(queueIs(p.q(queue)))
	pods := make([]*corev1.Pod, 0, n)
	for i := range n {
		b := p.pod(queue, fmt.Sprintf("%s-%d", queue, made+i))
		for _, f := range with {
			f(b)
		}
		pods = append(pods, p.create(b.Obj()))
	}
	return pods
}

func (p *plot) create(pod *corev1.Pod) *corev1.Pod {
	p.Helper()
	created, err := p.client.CoreV1().Pods(pod.Namespace).Create(p.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		p.Fatalf("creating pod %s: %v", pod.Name, err)
	}
	// The diary must know it before the test counts pods.
	eventually(p.T, "the watch tells of pod "+pod.Name, func(context.Context) error {
		if pod.Namespace == p.ns && p.diary.count(func(l *life) bool { return l.pod.UID == created.UID }) == 0 {
			return errors.New("it has not yet")
		}
		return nil
	})
	return created
}

// remove deletes all pods of a queue.
func (p *plot) remove(queue string) {
	p.Helper()
	err := p.client.CoreV1().Pods(p.ns).DeleteCollection(p.Context(), metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: contract.QueueLabel + "=" + p.q(queue)})
	if err != nil {
		p.Fatal(err)
	}
	eventually(p.T, "pods of "+queue+" are gone", func(context.Context) error {
		if n := p.diary.count(queueIs(p.q(queue)), alive); n > 0 {
			return fmt.Errorf("%d are left", n)
		}
		return nil
	})
}

// wantRunning waits until exactly so many pods run, in each of the queues.
func (p *plot) wantRunning(want map[string]int) {
	p.Helper()
	eventually(p.T, fmt.Sprintf("so many run: %v", want), func(context.Context) error { return p.isRunning(want) })
}

func (p *plot) isRunning(want map[string]int) error {
	for queue, n := range want {
		if got := p.diary.count(queueIs(p.q(queue)), running); got != n {
			return fmt.Errorf("queue %s runs %d\n%s", queue, got, p.picture())
		}
	}
	return nil
}

// wantEvicted checks how many pods of a queue were ever evicted.
func (p *plot) wantEvicted(queue string, want int) {
	p.Helper()
	eventually(p.T, fmt.Sprintf("%d pods of %s are evicted", want, queue), func(context.Context) error {
		if got := p.diary.count(queueIs(p.q(queue)), evicted); got != want {
			return fmt.Errorf("it is %d: %s", got, strings.Join(p.diary.names(queueIs(p.q(queue)), evicted), " "))
		}
		return nil
	})
}

// picture is what one would look at first if the test fails.
func (p *plot) picture() string {
	ctx := context.WithoutCancel(p.Context())
	var b strings.Builder
	for _, name := range p.queues {
		var q v1alpha1.Queue
		if err := p.objects.Get(ctx, ctrlclient.ObjectKey{Name: name}, &q); err != nil {
			fmt.Fprintf(&b, "queue %s: %v\n", name, err)
			continue
		}
		s := q.Status
		fmt.Fprintf(&b, "queue %s: allocated %s, held %s, demand %s, fair share %s, %d pending, open %t\n",
			name, s.Allocated.GPU, s.Held.GPU, s.Demand.GPU, s.FairShare.GPU, s.PendingGangs, s.Open)
	}
	for _, pod := range p.diary.pods(waiting) {
		events, err := podEventsOf(ctx, p.client, &pod)
		fmt.Fprintf(&b, "pod %s waits, gates %v: %s %v\n", pod.Name, pod.Spec.SchedulingGates, eventTexts(events), err)
	}
	return b.String()
}

// boundAt waits until a pod is bound, and returns when the watch told so.
func (p *plot) boundAt(pod *corev1.Pod) time.Time {
	p.Helper()
	var at time.Time
	eventually(p.T, "pod "+pod.Name+" is bound", func(context.Context) error {
		p.diary.mu.Lock()
		defer p.diary.mu.Unlock()
		if l := p.diary.lives[pod.UID]; l != nil {
			at = l.bound
		}
		if at.IsZero() {
			return fmt.Errorf("it is not")
		}
		return nil
	})
	return at
}

// wantEvent waits until a pod has an event of that reason with all the parts in
// its text.
func (p *plot) wantEvent(pod *corev1.Pod, reason string, parts ...string) {
	p.Helper()
	eventually(p.T, fmt.Sprintf("event %s with %q on %s", reason, parts, pod.Name), func(ctx context.Context) error {
		events, err := podEventsOf(ctx, p.client, pod)
		if err != nil {
			return err
		}
		for _, e := range events {
			lacks := func(part string) bool { return !strings.Contains(e.Message, part) }
			if e.Reason == reason && e.InvolvedObject.UID == pod.UID && !slices.ContainsFunc(parts, lacks) {
				return nil
			}
		}
		return fmt.Errorf("events so far: %s", eventTexts(events))
	})
}

// wantReasons checks that whoever waits has been told why by Tranche: with an
// event, or in the Gang.
func (p *plot) wantReasons() {
	p.Helper()
	for _, pod := range p.diary.pods(waiting) {
		eventually(p.T, "pod "+pod.Name+" says why it waits", func(ctx context.Context) error {
			if p.diary.count(podIs(&pod), waiting) == 0 {
				return nil // not any more
			}
			if gang := pod.Labels[contract.GangLabel]; gang != "" {
				var g v1alpha1.Gang
				if err := p.objects.Get(ctx, ctrlclient.ObjectKey{Namespace: pod.Namespace, Name: gang}, &g); err == nil && len(g.Status.Reasons) > 0 {
					return nil
				}
			}
			events, err := podEventsOf(ctx, p.client, &pod)
			if err != nil {
				return err
			}
			if !slices.ContainsFunc(events, func(e corev1.Event) bool {
				return e.InvolvedObject.UID == pod.UID && e.Source.Component+e.ReportingController != "default-scheduler" && e.Type == corev1.EventTypeWarning
			}) {
				return fmt.Errorf("gates %v, events: %s", pod.Spec.SchedulingGates, eventTexts(events))
			}
			return nil
		})
	}
}
