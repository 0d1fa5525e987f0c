package planner

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/extender/internal/fixture"
	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
)

func (d *disorder) create() {
	if len(d.pods) > 12 {
		return
	}
	d.made++
	var pod *corev1.Pod
	limits := []string{"100", "50", "2 GPU", ""}[d.r.IntN(4)]
	name := fmt.Sprint("p", d.r.IntN(16))
	if d.pods[name] != nil {
		return
	}
	if d.oneIn(2) {
		pod = memberPod(fmt.Sprint("g", d.r.IntN(3)), name, 2+d.r.IntN(2), limits)
	} else {
		pod = queued("", name, limits)
		delete(pod.Labels, contract.QueueLabel)
	}
	if q := []string{"", "a", "b", "c"}[d.r.IntN(4)]; q != "" {
		pod.Labels[contract.QueueLabel] = q
	}
	if d.oneIn(3) {
		open(pod)
	}
	if d.oneIn(2) {
		withCPU(pod, fmt.Sprint(1+d.r.IntN(8)*50))
	}
	if d.oneIn(5) && pod.Labels[contract.GangLabel] == "" {
		withPriority(pod, 10)
	}
	if limits == "" && pod.Labels[contract.GangLabel] != "" {
		requests := &pod.Spec.Containers[0].Resources
		if requests.Limits == nil {
			requests.Limits = corev1.ResourceList{}
		}
		requests.Limits[contract.MemberResource] = resource.MustParse("1")
	}
	if d.oneIn(4) {
		pod.Finalizers = []string{"example.com/f"}
	}
	pod.UID = types.UID(fmt.Sprintf("%s.%d", name, d.made))
	pod.CreationTimestamp = metav1.NewTime(time.Now())
	d.note("create %s %s", describe(pod), limits)
	d.write(name, pod)
}

func (d *disorder) ends() {
	if pod, ok := pick(d, d.pods); ok && pod.Spec.NodeName != "" {
		phase := corev1.PodFailed
		if d.oneIn(2) {
			phase = corev1.PodSucceeded
		}
		d.note("%s has %s", pod.UID, phase)
		d.edit(pod, func(p *corev1.Pod) { p.Status.Phase = phase })
	}
}

func (d *disorder) goes() {
	pod, ok := pick(d, d.pods)
	if !ok {
		return
	}
	if pod.DeletionTimestamp == nil && (pod.Spec.NodeName != "" || len(pod.Finalizers) > 0) && !d.oneIn(4) {
		d.note("%s is to go", pod.UID)
		d.edit(pod, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} })
		return
	}
	d.note("%s goes", pod.UID)
	d.write(pod.Name, nil)
}

// relabel changes labels, which the webhook does not let people do where it looks.
func (d *disorder) relabel() {
	pod, ok := pick(d, d.pods)
	if !ok {
		return
	}
	d.edit(pod, func(p *corev1.Pod) {
		switch d.r.IntN(4) {
		case 0:
			p.Labels[contract.QueueLabel] = []string{"a", "b", "c"}[d.r.IntN(3)]
		case 1:
			delete(p.Labels, contract.QueueLabel)
		case 2:
			delete(p.Labels, contract.GangLabel)
			delete(p.Annotations, contract.GangMinCountAnnotation)
		default:
			p.Labels[contract.GangLabel] = fmt.Sprint("g", d.r.IntN(3))
			p.Annotations[contract.GangMinCountAnnotation] = fmt.Sprint(1 + d.r.IntN(3))
		}
		d.note("relabel %s: %v", p.UID, p.Labels)
	})
}

// speak has the scheduler write into a pod's status, or ask about preemption.
func (d *disorder) speak() {
	pod, ok := pick(d, d.pods)
	if !ok || pod.Spec.NodeName != "" || len(pod.Spec.SchedulingGates) > 0 {
		return
	}
	switch d.r.IntN(3) {
	case 0:
		node := []string{"a", "b", ""}[d.r.IntN(3)]
		d.note("%s is nominated to %q", pod.UID, node)
		d.edit(pod, func(p *corev1.Pod) { p.Status.NominatedNodeName = node })
	case 1:
		text := []string{"0/2 nodes are available: 2 Insufficient cpu.", "0/2 nodes are available: 2 node(s) had volume node affinity conflict.", "0/2 nodes are available: 2 " + string(GangWaits) + "."}[d.r.IntN(3)]
		d.note("%s is unschedulable: %s", pod.UID, text)
		d.edit(pod, func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: text}}
		})
	default:
		var uids []types.UID
		for _, name := range slices.Sorted(maps.Keys(d.pods)) {
			if o := d.pods[name]; o.Spec.NodeName == "a" {
				uids = append(uids, o.UID)
			}
		}
		d.p.Preempt(d.Context(), pod, map[string][]types.UID{"a": uids})
	}
}

func (d *disorder) changeNode() {
	name := string(rune('a' + d.r.IntN(3)))
	if d.nodes[name] != nil && d.oneIn(3) {
		d.note("node %s goes", name)
		delete(d.nodes, name)
		d.feed("nodes", func() { d.p.ForgetNode(d.Context(), name) })
		return
	}
	d.setNode(name, d.r.IntN(5))
}

func (d *disorder) setNode(name string, gpus int) {
	inv := fixture.Inventory(name, gpus)
	if gpus > 0 && d.oneIn(4) && !d.calm {
		inv.GPUs[0].Healthy = false
	}
	node := fixture.Node(d.T, name, inv)
	if gpus == 0 && d.oneIn(2) {
		node = fixture.ForeignNode(name)
		node.Status.Allocatable[corev1.ResourceCPU], node.Status.Allocatable[corev1.ResourcePods] = resource.MustParse("1000"), resource.MustParse("110")
	}
	d.note("node %s has %d GPUs", name, gpus)
	d.nodes[name] = node
	d.feed("nodes", func() { d.p.ObserveNode(d.Context(), view.NodeOf(node, d.p.opts.Resources)) })
}

func (d *disorder) changeQueue() {
	name := []string{"a", "b", "c", "top"}[d.r.IntN(4)]
	old := d.queues[name]
	if old != nil && d.oneIn(3) {
		d.note("queue %s goes", name)
		delete(d.queues, name)
		d.feed("queues", func() { d.p.ForgetQueue(d.Context(), name) })
		if d.oneIn(2) {
			return
		}
		old = nil
	}
	q := aQueue(name, "")
	if name != "top" && d.oneIn(3) {
		q.Parent = "top"
	}
	if d.oneIn(2) {
		limited(float64(d.r.IntN(4)))(q)
	}
	if d.oneIn(3) {
		deserves(float64(d.r.IntN(4)))(q)
	}
	q.Deleting = d.oneIn(6)
	q.Stop = []v1alpha1.StopPolicy{v1alpha1.StopNone, v1alpha1.StopNone, v1alpha1.StopNone, v1alpha1.StopNone, v1alpha1.StopHold, v1alpha1.StopHoldAndDrain}[d.r.IntN(6)]
	if d.oneIn(3) {
		q.WhenFull = v1alpha1.WhenFullExpose
	}
	d.made++
	q.UID = types.UID(fmt.Sprint("queue", d.made))
	if old != nil && !d.oneIn(5) {
		q.UID = old.UID
	}
	d.setQueue(q)
}

func (d *disorder) setQueue(q *view.Queue) {
	d.note("queue %s parent %q uid %s deleting %v", q.Name, q.Parent, q.UID, q.Deleting)
	d.queues[q.Name] = q
	d.feed("queues", func() { d.p.ObserveQueue(d.Context(), q) })
}

func (d *disorder) changeGang() {
	name := fmt.Sprint("g", d.r.IntN(3))
	if d.gangs[name] != nil && d.oneIn(3) {
		d.note("gang %s goes", name)
		delete(d.gangs, name)
		d.feed("gangs", func() { d.p.ForgetGang(d.Context(), "demo", name) })
		return
	}
	d.made++
	g := &view.Gang{Namespace: "demo", Name: name, UID: types.UID(fmt.Sprint("gang", d.made)), MinCount: int32(1 + d.r.IntN(3)), Queue: []string{"", "a", "b"}[d.r.IntN(3)], Managed: d.oneIn(3)}
	d.note("gang %+v", *g)
	d.gangs[name] = g
	d.feed("gangs", func() { d.p.ObserveGang(d.Context(), g) })
}

// setNamespace lets the webhook look at the namespace, or not.
func (d *disorder) setNamespace(injected bool) {
	d.namespace = &view.Namespace{Name: "demo"}
	if injected {
		d.namespace.Labels = map[string]string{contract.InjectLabel: contract.InjectEnabled}
	}
	d.note("namespace injected %v", injected)
	n := d.namespace
	d.feed("namespaces", func() { d.p.ObserveNamespace(d.Context(), n) })
}

// call is the scheduler's, about a pod as it is or was.
func (d *disorder) call() {
	pod, ok := pick(d, d.pods)
	if len(d.past) > 0 && d.oneIn(3) {
		pod, ok = d.past[d.r.IntN(len(d.past))], true
	}
	if !ok || pod.Spec.NodeName != "" || len(pod.Spec.SchedulingGates) > 0 {
		return
	}
	d.schedule(pod, d.oneIn(4) && !d.calm)
}

// schedule takes a pod once; broken says that it ends after Filter or Prioritize.
func (d *disorder) schedule(pod *corev1.Pod, broken bool) {
	if !contract.InterestsExtender(&pod.Spec, d.p.opts.Resources) {
		if d.pods[pod.Name] == pod && pod.DeletionTimestamp == nil {
			d.note("%s is bound without us", pod.UID)
			d.edit(pod, func(p *corev1.Pod) { p.Spec.NodeName, p.Status.Phase = "a", corev1.PodRunning })
		}
		return
	}
	nodes := slices.Sorted(maps.Keys(d.nodes))
	if n := pod.Status.NominatedNodeName; n != "" && slices.Contains(nodes, n) && d.oneIn(2) {
		nodes = []string{n}
	} else if len(nodes) > 1 && d.oneIn(4) && !d.calm {
		nodes = nodes[:1+d.r.IntN(len(nodes)-1)] // its own filters refuse the others
	}
	if len(nodes) == 0 {
		return
	}
	v, err := d.p.Filter(d.Context(), pod, nodes)
	if err != nil {
		d.Fatal(err)
	}
	var pass []string
	for i, n := range nodes {
		if v.Reason(i) == "" {
			pass = append(pass, n)
		}
	}
	d.note("filter %s: %v %v", pod.UID, pass, v.Reasons)
	if len(pass) == 0 || broken && d.oneIn(2) {
		return
	}
	best := pass[0]
	if len(pass) > 1 {
		scores, err := d.p.Prioritize(d.Context(), pod, pass)
		if err != nil {
			d.Fatal(err)
		}
		for i := range pass {
			if scores[i] > scores[slices.Index(pass, best)] {
				best = pass[i]
			}
		}
	}
	if broken {
		return
	}
	t := target(pod, best)
	p := d.p
	d.note("bind %s to %s", pod.UID, best)
	d.calls.Go(func() {
		r, err := p.Reserve(d.Context(), t, nil)
		if errors.Is(err, ErrUnknownPod) {
			return
		}
		if err != nil || r.Done {
			return
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.posts = append(d.posts, post{t, r.Plan, p})
	})
	synctest.Wait()
}

// postOne lets a Binding come to the API server.
func (d *disorder) postOne() {
	d.mu.Lock()
	if len(d.posts) == 0 {
		d.mu.Unlock()
		return
	}
	i := d.r.IntN(len(d.posts))
	b := d.posts[i]
	d.posts = slices.Delete(d.posts, i, i+1)
	d.mu.Unlock()
	if b.p != d.p {
		return // the extender that sent it is no more
	}
	pod := d.pods[b.Name]
	possible := pod != nil && pod.UID == b.UID && pod.DeletionTimestamp == nil && pod.Spec.NodeName == "" && len(pod.Spec.SchedulingGates) == 0
	lost, silent := d.oneIn(8) && !d.calm, d.oneIn(4) && !d.calm
	tell := func(what string, f func()) {
		d.answers = append(d.answers, func() {
			if d.p == b.p {
				d.note("answer about %s: %s", b.UID, what)
				f()
			}
		})
	}
	ctx := d.Context()
	if possible && !lost {
		d.note("%s is bound to %s, silent %v", b.UID, b.Node, silent)
		d.edit(pod, func(p *corev1.Pod) {
			p.Spec.NodeName, p.Status.Phase = b.Node, corev1.PodRunning
			if b.plan != nil {
				text, err := b.plan.Format()
				if err != nil {
					d.Fatal(err)
				}
				p.Annotations[contract.PlanAnnotation] = text
			}
		})
		if !silent {
			tell("bound", func() { d.p.Bound(ctx, b.Target) })
			return
		}
	} else if !silent && !lost {
		d.note("binding of %s is refused", b.UID)
		if pod == nil || pod.UID != b.UID {
			tell("no such pod", func() { d.p.Abort(ctx, b.Target) })
			return
		}
	} else {
		d.note("binding of %s is lost", b.UID)
	}
	if d.oneIn(3) {
		tell("unknown", func() { d.p.Unknown(b.Target) })
		return
	}
	// The Binder reads the pod.
	found := d.pods[b.Name]
	switch {
	case found == nil || found.UID != b.UID:
		tell("gone", func() { d.p.Truth(ctx, b.UID, nil) })
	case found.Spec.NodeName == "" && !possible && !lost:
		tell("conflict", func() { d.p.Abort(ctx, b.Target) })
	default:
		tell("read "+describe(found), func() { d.p.Truth(ctx, b.UID, view.PodOf(found, d.p.opts.Resources)) })
	}
}

// answer tells the planner one outcome.
func (d *disorder) answer() {
	if len(d.answers) > 0 {
		i := d.r.IntN(len(d.answers))
		f := d.answers[i]
		d.answers = slices.Delete(d.answers, i, i+1)
		f()
		synctest.Wait()
	}
}

// verify reads what the planner has doubts about. One pod is not read twice at a
// time, so an answer that was not told is told first.
func (d *disorder) verify() {
	for _, pod := range d.doubts.take() {
		found := d.pods[pod.Name]
		var v *view.Pod
		if found != nil && found.UID == pod.UID {
			v = view.PodOf(found, d.p.opts.Resources)
		}
		p := d.p
		d.note("verify %s: found %v", pod.UID, v != nil)
		d.answers = append(d.answers, func() {
			if d.p == p {
				d.note("truth about %s: exists %v", pod.UID, v != nil)
				d.p.Truth(d.Context(), pod.UID, v)
			}
		})
	}
}

// doubts are effects that remember who is to be verified.
type doubts struct {
	*effects
	mu   sync.Mutex
	pods []ledger.Pod
}

func (e *doubts) Verify(pod ledger.Pod) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !slices.Contains(e.pods, pod) {
		e.pods = append(e.pods, pod)
	}
}

func (e *doubts) take() []ledger.Pod {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := e.pods
	e.pods = nil
	return list
}

// obey does some of what the planner asked for.
func (d *disorder) obey(n int) {
	e := d.effects
	e.mu.Lock()
	list := e.admitted[:min(n, len(e.admitted))]
	e.admitted = e.admitted[len(list):]
	e.mu.Unlock()
	for _, a := range list {
		pod := d.pods[a.Pod.Name]
		if pod == nil || pod.UID != a.Pod.UID || len(pod.Spec.SchedulingGates) == 0 {
			continue
		}
		d.note("%s is admitted to %q", pod.UID, a.Node)
		d.edit(pod, func(p *corev1.Pod) {
			p.Spec.SchedulingGates, p.Status.NominatedNodeName = nil, a.Node
		})
	}
	for _, name := range e.take(&e.evicted) {
		if pod := d.pods[name]; pod != nil && d.oneIn(3) && !d.calm {
			d.note("a budget keeps %s", pod.UID)
			d.p.EvictionRefused(d.Context(), "a budget", pod.UID)
		} else if pod != nil && pod.DeletionTimestamp == nil {
			d.note("%s is evicted", pod.UID)
			d.edit(pod, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} })
		}
	}
}
