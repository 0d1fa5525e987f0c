package planner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/extender/internal/fixture"
	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
)

// memberPod is a gated pod of a gang.
func memberPod(gang, name string, minCount int, limits ...string) *corev1.Pod {
	pod := fixture.Pod(name, limits...)
	pod.Labels = map[string]string{contract.GangLabel: gang}
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	if minCount > 0 {
		pod.Annotations[contract.GangMinCountAnnotation] = strconv.Itoa(minCount)
	}
	pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: contract.AdmissionGate}}
	return pod
}

// gangPods are n members, called gang-0 and so on.
func gangPods(gang string, n, minCount int, limits ...string) []*corev1.Pod {
	pods := make([]*corev1.Pod, 0, n)
	for i := range n {
		pods = append(pods, memberPod(gang, fmt.Sprintf("%s-%d", gang, i), minCount, limits...))
	}
	return pods
}

// world is an API server with a scheduler that knows no more of gangs than the
// real one: it takes ungated pods one by one, asks Filter, and binds at leisure.
type world struct {
	*kit
	mu   sync.Mutex
	pods map[types.UID]*corev1.Pod
	// failBind says what becomes of a Binding; nil: it succeeds.
	failBind func(pod *corev1.Pod) error
	// refuses says that the scheduler's own filters refuse a node.
	refuses func(pod *corev1.Pod, node string) bool
	// full says that a node lacks resources by the scheduler's own count.
	full func(pod *corev1.Pod, node string) bool
	// tells says that the scheduler writes into a pod's status that it found no
	// node.
	tells bool
	nodes []string
	busy  map[types.UID]bool
	// size is what the members' annotations say; started are the gangs of which
	// that many were bound once.
	size    int
	started map[string]bool
	// ended counts members of a gang that succeeded and are gone.
	ended map[string]int
	// accepted are the pods that have come to Bind, with their gang; evicted the names of
	// those that the planner asked to go.
	accepted map[types.UID]string
	evicted  []string
	// before is called by restart before pods are told of.
	before func()
	// made counts calls of submit.
	made int
	// posted are the pods whose Binding reached the API server, in order.
	posted []string
	binds  sync.WaitGroup
}

func newWorld(k *kit, nodes ...string) *world {
	if err := k.p.Rebuilt(k.Context()); err != nil {
		k.Fatal(err)
	}
	return &world{kit: k, pods: map[types.UID]*corev1.Pod{}, busy: map[types.UID]bool{}, started: map[string]bool{}, accepted: map[types.UID]string{}, ended: map[string]int{}, nodes: nodes}
}

// create makes pods appear.
func (w *world) create(pods ...*corev1.Pod) {
	w.mu.Lock()
	for _, pod := range pods {
		w.pods[pod.UID] = pod
	}
	w.mu.Unlock()
	w.observe(pods...)
}

// change edits a pod and tells of it.
func (w *world) change(uid types.UID, edit func(pod *corev1.Pod)) {
	w.mu.Lock()
	pod, ok := w.pods[uid]
	if ok {
		pod = pod.DeepCopy()
		pod.ResourceVersion += "1"
		edit(pod)
		w.pods[uid] = pod
	}
	w.mu.Unlock()
	if ok {
		w.tell(pod)
	}
}

func (w *world) tell(pod *corev1.Pod) {
	if v := view.PodOf(pod, w.p.opts.Resources); v != nil {
		w.p.Observe(w.Context(), v)
	}
	if u := view.UsageOf(pod); u != nil {
		w.p.ObserveUsage(w.Context(), u)
	} else {
		w.p.ForgetUsage(w.Context(), pod.UID)
	}
}

// remove lets pods be gone, ended as kubelets do.
func (w *world) remove(pods ...*corev1.Pod) {
	for _, pod := range pods {
		w.mu.Lock()
		last := w.pods[pod.UID]
		delete(w.pods, pod.UID)
		if last != nil && last.Status.Phase == corev1.PodSucceeded {
			w.ended[last.Labels[contract.GangLabel]]++
		}
		w.mu.Unlock()
		if last != nil {
			if last.Status.Phase != corev1.PodSucceeded {
				w.tell(ended(last, corev1.PodFailed))
			}
			w.p.ForgetUsage(w.Context(), pod.UID)
			w.gone(last)
			w.filter(last, w.nodes...) // the scheduler hears of it last
		}
	}
}

func (w *world) pod(uid types.UID) *corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pods[uid]
}

// admit does what the planner asked for.
func (w *world) admit() {
	w.effects.mu.Lock()
	list := w.effects.admitted
	w.effects.admitted = nil
	w.effects.mu.Unlock()
	for _, a := range list {
		w.change(a.Pod.UID, func(pod *corev1.Pod) {
			pod.Status.NominatedNodeName = a.Node
			pod.Spec.SchedulingGates = slices.DeleteFunc(pod.Spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool { return g.Name == contract.AdmissionGate })
		})
	}
}

// schedule takes every pending pod once.
func (w *world) schedule() {
	w.mu.Lock()
	pending := make([]*corev1.Pod, 0, len(w.pods))
	for _, uid := range slices.Sorted(maps.Keys(w.pods)) {
		if pod := w.pods[uid]; pod.Spec.NodeName == "" && len(pod.Spec.SchedulingGates) == 0 && pod.DeletionTimestamp == nil && !w.busy[uid] {
			pending = append(pending, pod)
		}
	}
	w.mu.Unlock()
	for _, pod := range pending {
		w.scheduleOne(pod)
	}
}

func (w *world) scheduleOne(pod *corev1.Pod) {
	if !contract.InterestsExtender(&pod.Spec, w.p.opts.Resources) {
		w.change(pod.UID, func(p *corev1.Pod) { p.Spec.NodeName, p.Status.Phase = w.nodes[0], corev1.PodRunning })
		return
	}
	offered := make([]string, 0, len(w.nodes))
	message := fmt.Sprintf("0/%d nodes are available:", len(w.nodes))
	for _, n := range w.nodes {
		switch {
		case w.refuses != nil && w.refuses(pod, n):
			message += " 1 is not what the pod needs."
		case w.full != nil && w.full(pod, n):
			message += " 1 Insufficient nvidia.com/gpu-share."
		default:
			offered = append(offered, n)
		}
	}
	try := func(offered []string) string {
		verdict, err := w.p.Filter(w.Context(), pod, offered)
		if err != nil {
			w.Error(err)
		}
		var pass []string
		for i, n := range offered {
			if reason := verdict.Reason(i); reason == "" {
				pass = append(pass, n)
			} else {
				message += " 1 " + string(reason) + "."
			}
		}
		switch len(pass) {
		case 0:
			return ""
		case 1:
			return pass[0]
		}
		scores, err := w.p.Prioritize(w.Context(), pod, pass)
		if err != nil {
			w.Error(err)
		}
		best := 0
		for i := range pass {
			if scores[i] > scores[best] {
				best = i
			}
		}
		return pass[best]
	}
	node := ""
	if n := pod.Status.NominatedNodeName; n != "" && slices.Contains(offered, n) {
		node = try([]string{n})
	}
	if node == "" && len(offered) > 0 {
		node = try(offered)
	}
	if node != "" {
		w.mu.Lock()
		w.busy[pod.UID] = true
		w.mu.Unlock()
		w.binds.Go(func() { w.bind(pod, node) })
		return
	}
	if w.tells && view.PodOf(pod, w.p.opts.Resources).Refusal != message {
		w.change(pod.UID, func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: message}}
		})
	}
}

var errConflict = errors.New("conflict")

func (w *world) bind(pod *corev1.Pod, node string) {
	defer func() {
		w.mu.Lock()
		delete(w.busy, pod.UID)
		w.mu.Unlock()
	}()
	t := target(pod, node)
	ctx, cancel := context.WithTimeout(w.Context(), 30*time.Second) // httpTimeout
	defer cancel()
	w.mu.Lock()
	w.accepted[pod.UID] = pod.Labels[contract.GangLabel]
	w.mu.Unlock()
	r, err := w.p.Reserve(ctx, t, nil)
	if err != nil || r.Done {
		if !errors.Is(err, ErrGangLate) {
			w.mu.Lock()
			delete(w.accepted, pod.UID)
			w.mu.Unlock()
		}
		return
	}
	w.mu.Lock()
	current, alive := w.pods[pod.UID], true
	if current == nil || current.DeletionTimestamp != nil {
		alive = false
	}
	w.mu.Unlock()
	if !alive || w.failBind != nil && w.failBind(pod) != nil {
		w.p.Abort(ctx, t)
		return
	}
	w.checkWhole(pod)
	text := ""
	if r.Plan != nil {
		if text, err = r.Plan.Format(); err != nil {
			w.Error(err)
		}
	}
	w.mu.Lock()
	w.posted = append(w.posted, pod.Name)
	w.mu.Unlock()
	w.change(pod.UID, func(p *corev1.Pod) {
		p.Spec.NodeName = node
		if text != "" {
			p.Annotations[contract.PlanAnnotation] = text
		}
		p.Status.Phase = corev1.PodRunning
		p.Status.NominatedNodeName = ""
	})
	w.p.Bound(ctx, t)
}

// checkWhole is what the API server would see: no member is bound before all
// have been accepted.
func (w *world) checkWhole(pod *corev1.Pod) {
	gang := pod.Labels[contract.GangLabel]
	if gang == "" || w.size == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	accepted := 0
	for uid, of := range w.accepted {
		if of == gang && w.pods[uid] == nil {
			accepted++ // and deleted since
		}
	}
	snapshot := w.p.Snapshot()
	charged := map[types.UID]bool{}
	for n := range snapshot.Ledger.Nodes() {
		for _, r := range n.Claims() {
			charged[r.Pod.UID] = r.State == ledger.Allocated // its Reserve returns at any moment
		}
	}
	for uid, other := range w.pods {
		if other.Labels[contract.GangLabel] == gang && (charged[uid] || w.accepted[uid] != "" || other.Status.Phase == corev1.PodSucceeded) {
			accepted++
		}
	}
	if accepted+w.ended[gang] >= w.size {
		w.started[gang] = true
	}
	if !w.started[gang] {
		w.Errorf("%s is bound while only %d of its gang's %d are accepted", pod.Name, accepted, w.size)
	}
}

// goOn lets everybody work for a time.
func (w *world) goOn(d time.Duration) {
	w.goOnBy(d, tick)
}

// goOnWithoutEvicting leaves those who are to go where they are.
func (w *world) goOnWithoutEvicting(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		w.admit()
		w.schedule()
		w.after(tick)
	}
}

func (w *world) goOnBy(d, step time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		w.admit()
		w.evict()
		w.schedule()
		w.after(step)
	}
}

// finish waits for all calls.
func (w *world) finish() {
	w.binds.Wait()
	synctest.Wait()
}

// bound counts the gang's bound members.
func (w *world) bound(gang string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, pod := range w.pods {
		if pod.Labels[contract.GangLabel] == gang && pod.Spec.NodeName != "" && pod.Status.Phase == corev1.PodRunning {
			n++
		}
	}
	return n
}

// why is the type of the gang's reason, and its text.
func (w *world) why(gang string) (word, message string) {
	w.effects.mu.Lock()
	defer w.effects.mu.Unlock()
	r := w.effects.reports[GangKey{"demo", gang}]
	if len(r.Status.Reasons) == 0 {
		return "", ""
	}
	return r.Status.Reasons[0].Type, r.Status.Reasons[0].Message
}

func (w *world) phase(gang string) string {
	w.effects.mu.Lock()
	defer w.effects.mu.Unlock()
	return string(w.effects.reports[GangKey{"demo", gang}].Status.Phase)
}

// held is the sum of all held shares.
func (w *world) held() int { return int(w.p.Snapshot().Ledger.Totals().Held) }

func (w *world) bigNode(name string, gpus int) {
	w.Helper()
	w.labelledNode(name, gpus, nil)
}

func (w *world) labelledNode(name string, gpus int, labels map[string]string) {
	w.Helper()
	w.nodeWith(name, fixture.Inventory(name, gpus), labels)
}

func (w *world) nodeWith(name string, inv contract.Inventory, labels map[string]string) {
	w.Helper()
	node := fixture.Node(w, name, inv)
	gpus := len(inv.GPUs)
	node.Labels = labels
	node.Status.Allocatable = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("1Ti"), corev1.ResourcePods: resource.MustParse("110"),
		"nvidia.com/gpu-share": *resource.NewQuantity(int64(100*gpus), resource.DecimalSI), "nvidia.com/gpu": *resource.NewQuantity(int64(gpus), resource.DecimalSI),
	}
	w.p.ObserveNode(w.Context(), view.NodeOf(node, w.p.opts.Resources))
	w.settled()
}

func ownedBy(pod *corev1.Pod, kind, name, uid string) *corev1.Pod {
	yes := true
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: kind, Name: name, UID: types.UID(uid), Controller: &yes}}
	return pod
}
