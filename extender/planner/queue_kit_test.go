package planner

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tranche-dev/tranche/extender/internal/fixture"
	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

func withQueues(o *Options) {
	o.Queues, o.DefaultQueue, o.Reclaim, o.EvictionsInFlight = true, "default", true, 32
}

// runQueues is runWorld with queues.
func runQueues(t *testing.T, nodes int, f func(w *world), set ...func(o *Options)) {
	t.Helper()
	runWorld(t, nodes, func(w *world) {
		w.p.ObserveNamespace(w.Context(), &view.Namespace{Name: "demo", Labels: map[string]string{contract.InjectLabel: contract.InjectEnabled}})
		f(w)
	}, append([]func(o *Options){withQueues}, set...)...)
}

// gpus are whole GPUs as a queue names them.
func gpus(n float64) view.QueueAmounts {
	shares := units.Shares(n * 100)
	return view.QueueAmounts{GPU: &shares}
}

func aQueue(name, parent string, set ...func(q *view.Queue)) *view.Queue {
	q := &view.Queue{
		Name: name, Parent: parent, Weight: 1, Reclaim: v1alpha1.ReclaimAny, Stop: v1alpha1.StopNone,
		Admission: v1alpha1.AdmissionAuto, WhenFull: v1alpha1.WhenFullHold,
	}
	for _, f := range set {
		f(q)
	}
	return q
}

func deserves(n float64) func(q *view.Queue) { return func(q *view.Queue) { q.Deserved = gpus(n) } }
func limited(n float64) func(q *view.Queue)  { return func(q *view.Queue) { q.Limit = gpus(n) } }

func (w *world) queue(q *view.Queue) {
	w.p.ObserveQueue(w.Context(), q)
	w.settled()
}

// queued is a gated pod of a queue.
func queued(queue, name string, limits ...string) *corev1.Pod {
	pod := fixture.Pod(name, limits...)
	pod.Labels = map[string]string{contract.QueueLabel: queue}
	pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: contract.AdmissionGate}}
	return pod
}

func open(pod *corev1.Pod) *corev1.Pod {
	pod.Spec.SchedulingGates = nil
	return pod
}

func withPriority(pod *corev1.Pod, priority int32) *corev1.Pod {
	pod.Spec.Priority = &priority
	return pod
}

// submit creates n gated pods, named after their queue.
func (w *world) submit(queue string, n int, limits ...string) {
	w.made++
	for i := range n {
		w.create(queued(queue, fmt.Sprintf("%s-%d-%d", queue, w.made, i), limits...))
	}
}

// runningIn names the running pods of a queue.
func (w *world) runningIn(queue string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var names []string
	for _, pod := range w.pods {
		if pod.Labels[contract.QueueLabel] == queue && pod.Status.Phase == corev1.PodRunning {
			names = append(names, pod.Name)
		}
	}
	slices.Sort(names)
	return names
}

func (w *world) wantRunning(queue string, want int) {
	w.Helper()
	if got := w.runningIn(queue); len(got) != want {
		w.Errorf("queue %s: %d run (%s), want %d; warnings: %s", queue, len(got), strings.Join(got, " "), want, strings.Join(w.effects.take(&w.effects.warned), "\n"))
	}
}

// wantTold looks for an event on a pod that has all parts.
func (w *world) wantTold(pod string, parts ...string) {
	w.Helper()
	all := w.effects.take(&w.effects.warned)
	for _, text := range all {
		if !strings.HasPrefix(text, pod+": ") {
			continue
		}
		if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(text, part) }) {
			return
		}
	}
	w.Errorf("pod %s was not told %q, but:\n%s", pod, parts, strings.Join(all, "\n"))
}

func (w *world) status(queue string) v1alpha1.QueueStatus {
	w.effects.mu.Lock()
	defer w.effects.mu.Unlock()
	return w.effects.queues[queue].Status
}

func (w *world) condition(queue, kind string) *metav1.Condition {
	c := meta.FindStatusCondition(w.status(queue).Conditions, kind)
	if c == nil {
		return &metav1.Condition{}
	}
	return c
}

// leave marks pods as being deleted and lets them go after a while.
func (w *world) leave(names []string, after time.Duration) {
	for _, name := range names {
		uid := fixture.Identify(fixture.Pod(name)).UID
		w.change(uid, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} })
	}
	w.goOn(after)
	for _, name := range names {
		if pod := w.pod(fixture.Identify(fixture.Pod(name)).UID); pod != nil {
			w.remove(pod)
		}
	}
}

// waitingIn is a pod of a queue that has no node.
func (w *world) waitingIn(queue string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, pod := range w.pods {
		if pod.Labels[contract.QueueLabel] == queue && pod.Spec.NodeName == "" {
			return pod.Name
		}
	}
	return ""
}
