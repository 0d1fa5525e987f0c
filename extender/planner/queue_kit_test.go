package planner

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

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
		w.namespace("demo", true)
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
		w.change(uidOf(name), func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} })
	}
	w.goOn(after)
	for _, name := range names {
		if pod := w.pod(uidOf(name)); pod != nil {
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

// uidOf is the UID that fixtures give to a pod of that name.
func uidOf(name string) types.UID { return fixture.Identify(fixture.Pod(name)).UID }

// inQueue puts pods into a queue.
func inQueue(queue string, pods ...*corev1.Pod) []*corev1.Pod {
	for _, pod := range pods {
		pod.Labels[contract.QueueLabel] = queue
	}
	return pods
}

// withCPU lets a pod request CPU.
func withCPU(pod *corev1.Pod, cpu string) *corev1.Pod {
	requests := &pod.Spec.Containers[0].Resources.Requests
	if *requests == nil {
		*requests = corev1.ResourceList{}
	}
	(*requests)[corev1.ResourceCPU] = resource.MustParse(cpu)
	return pod
}

// annotated sets an annotation of a pod.
func annotated(pod *corev1.Pod, key, value string) *corev1.Pod {
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[key] = value
	return pod
}

func held(q *view.Queue) { q.Stop = v1alpha1.StopHold }
func cpuLimited(cores int64) func(q *view.Queue) {
	return func(q *view.Queue) { q.Limit.CPU = new(cores * 1000) }
}

// modelLimited limits a queue in GPUs of some models.
func modelLimited(models map[string]float64) func(q *view.Queue) {
	return func(q *view.Queue) {
		q.Limit.Models = map[string]units.Shares{}
		for model, n := range models {
			q.Limit.Models[model] = units.Shares(n * 100)
		}
	}
}

// modelNode is a node with GPUs of some model and memory.
func (w *world) modelNode(name string, gpus int, model string, memory units.MiB) {
	w.Helper()
	inv := fixture.Inventory(name, gpus)
	for i := range inv.GPUs {
		inv.GPUs[i].Model, inv.GPUs[i].MemoryMiB = model, memory
	}
	w.nodeWith(name, inv, nil)
}

// runModels is runQueues with one node for each of some GPU models, called a, b
// and so on.
func runModels(t *testing.T, nodes []modelOf, f func(w *world)) {
	t.Helper()
	run(t, func(k *kit) {
		names := make([]string, 0, len(nodes))
		for i := range nodes {
			names = append(names, string(rune('a'+i)))
		}
		w := newWorld(k, names...)
		w.namespace("demo", true)
		for i, n := range nodes {
			w.modelNode(names[i], n.gpus, n.model, n.memory)
		}
		f(w)
		w.finish()
	}, withQueues)
}

// modelOf is a node of runModels.
type modelOf struct {
	gpus   int
	model  string
	memory units.MiB
}

// namespace tells of a namespace whose pods the webhook is to look at, or not.
func (w *world) namespace(name string, injected bool) {
	w.Helper()
	labels := map[string]string{}
	if injected {
		labels[contract.InjectLabel] = contract.InjectEnabled
	}
	w.p.ObserveNamespace(w.Context(), &view.Namespace{Name: name, Labels: labels})
	w.settled()
}

// goOnWithSuccessors lets everybody work for a time, while each pod that is
// evicted has a successor in a queue at once, as controllers see to.
func (w *world) goOnWithSuccessors(d time.Duration, queue string, limits ...string) {
	seen := len(w.evicted)
	for end := time.Now().Add(d); time.Now().Before(end); {
		w.goOnBy(2*time.Second, time.Second)
		if more := len(w.evicted) - seen; more > 0 {
			w.submit(queue, more, limits...)
		}
		seen = len(w.evicted)
	}
}

// endOne lets one pod of a queue be gone.
func (w *world) endOne(queue string) {
	w.Helper()
	running := w.runningIn(queue)
	if len(running) == 0 {
		w.Fatalf("no pod of queue %s runs", queue)
	}
	w.remove(w.pod(uidOf(running[0])))
}
