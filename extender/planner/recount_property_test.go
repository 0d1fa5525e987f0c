package planner

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

// actions are what may happen.
func (w *recounted) actions() map[string]func(*rapid.T) {
	list := map[string]func(){
		"a node": w.aNode, "a GPU": w.aGPU, "a cordon": w.aCordon, "no node": w.noNode,
		"a pod": w.aPod, "a pod 2": w.aPod, "a pod 3": w.aPod,
		"a try": w.aTry, "a try 2": w.aTry, "a decision": w.aDecision, "a decision 2": w.aDecision, "news": w.news, "news 2": w.news, "a failure": w.aFailure,
		"an end": w.anEnd, "an end 2": w.anEnd, "a deletion": w.aDeletion, "a stranger": w.aStranger, "time": w.someTime,
		"a restart": func() {
			if oneIn(w.T, 4, "really") {
				w.restart()
			}
		},
	}
	actions := map[string]func(*rapid.T){}
	for name, f := range list {
		actions[name] = func(*rapid.T) { f() }
	}
	return actions
}

func (w *recounted) aNode() {
	w.observeNode(w.drawNode(draw(w.T, "name", "n0", "n1", "n2", "n3", "n4", "n5")))
}

func (w *recounted) someNode() *apiNode {
	if len(w.o.nodes) == 0 {
		return nil
	}
	return w.o.nodes[rapid.IntRange(0, len(w.o.nodes)-1).Draw(w.T, "node")]
}

// aGPU falls sick or recovers.
func (w *recounted) aGPU() {
	n := w.someNode()
	if len(n.gpus()) == 0 {
		return
	}
	inv := *n.inventory
	inv.GPUs = slices.Clone(inv.GPUs)
	g := &inv.GPUs[rapid.IntRange(0, len(inv.GPUs)-1).Draw(w.T, "gpu")]
	g.Healthy = !g.Healthy
	text, err := inv.Format()
	if err != nil {
		w.wrong("%v", err)
	}
	object := n.object.DeepCopy()
	object.Annotations[contract.InventoryAnnotation] = text
	w.observeNode(object)
}

func (w *recounted) aCordon() {
	if n := w.someNode(); n != nil {
		object := n.object.DeepCopy()
		object.Spec.Unschedulable = !object.Spec.Unschedulable
		w.observeNode(object)
	}
}

func (w *recounted) noNode() {
	n := w.someNode()
	if n == nil || !oneIn(w.T, 3, "really") {
		return
	}
	w.note("node %s is gone", n.object.Name)
	w.o.nodes = slices.DeleteFunc(w.o.nodes, func(old *apiNode) bool { return old == n })
	w.p.ForgetNode(w.ctx, n.object.Name)
	w.o.workload.moved = true
	w.settled()
}

func (w *recounted) aPod() {
	if len(w.o.pods) >= 40 {
		return
	}
	w.tell(w.create())
	w.settled()
}

// create has the API server have another pod.
func (w *recounted) create() *apiPod {
	p := w.another()
	w.note("%s", p)
	w.o.pods = append(w.o.pods, p)
	return p
}

// pending says that the scheduler may take the pod.
func (p *apiPod) pending() bool {
	return p.runs == "" && p.lingers.IsZero() && !gated(p.object) && p.object.DeletionTimestamp == nil && !p.waitsForNews
}

func (w *recounted) aTry() {
	if p := w.some((*apiPod).pending); p != nil {
		w.schedule(p)
	}
}

// aDecision has the scheduler send a pod to a node: mostly the one where it holds
// GPUs.
func (w *recounted) aDecision() {
	p := w.some(func(p *apiPod) bool { return p.pending() && (p.claim != nil || oneIn(w.T, 3, "unheld")) })
	if p == nil {
		return
	}
	node := draw(w.T, "node", w.names...)
	if p.claim != nil && !oneIn(w.T, 4, "elsewhere") {
		node = p.claim.node
	}
	n := w.o.node(node)
	if n != nil && n.inventory == nil && n.foreign() && p.wholeOnly() {
		return
	}
	w.note("%s is to be bound to %s", p.object.Name, node)
	keeps := p.claim != nil && p.claim.node == node && n != nil && n.inventory != nil
	if keeps {
		for uuid := range p.claim.charges {
			keeps = keeps && slices.ContainsFunc(n.inventory.GPUs, func(g contract.GPU) bool { return g.UUID == uuid && g.Healthy })
		}
	}
	want := Reason("")
	if !keeps {
		want = w.o.verdict(p, node)
	}
	r, err := w.p.Reserve(w.ctx, target(p.object, node), nil)
	var refused *RefusedError
	switch {
	case want != "":
		if !errors.As(err, &refused) || len(p.asks.Demands) == 1 && refused.Reason != want {
			w.wrong("Reserve of %s on %s: %v, want it refused: %s", p.object.Name, node, err, want)
		}
		w.settled()
		return
	case err != nil || r.Plan == nil:
		w.wrong("Reserve of %s on %s: %+v %v", p.object.Name, node, r, err)
	}
	if record := w.records()[p.object.UID]; !keeps {
		w.take(p, record, w.o.rate(p, n), holdTimeout)
		if p.kept != "" {
			p.kept = node
		}
	}
	p.claim.held, p.waitsForNews, p.refused = false, true, false
	w.settled()
	if got := fmt.Sprint(r.Plan.Containers); got != fmt.Sprint(p.claim.plan.Containers) {
		w.wrong("Reserve of %s gives %s, want %v", p.object.Name, got, p.claim.plan.Containers)
	}
}

// news tells that a Binding was done. The scheduler may hear of that before.
func (w *recounted) news() {
	p := w.some(func(p *apiPod) bool { return p.waitsForNews })
	if p == nil {
		return
	}
	t, heard := target(p.object, p.claim.node), p.heard
	if !heard && oneIn(w.T, 2, "heard") {
		w.note("the API server has accepted that %s is bound", p.object.Name)
		p.heard = true
		w.p.Bound(w.ctx, t)
		w.settled()
		return
	}
	w.note("%s is seen bound", p.object.Name)
	w.seeBound(p)
	w.tell(p)
	if !heard {
		w.p.Bound(w.ctx, t)
	}
	w.settled()
}

// aFailure tells that a Binding was refused.
func (w *recounted) aFailure() {
	if p := w.some(func(p *apiPod) bool { return p.waitsForNews && !p.heard }); p != nil && oneIn(w.T, 3, "really") {
		w.note("%s is not bound", p.object.Name)
		w.p.Abort(w.ctx, target(p.object, p.claim.node))
		p.release()
		p.waitsForNews = false
		w.settled()
	}
}

// anEnd is that of a running pod, or of one that is deleted by force and whose
// containers may run on for a while.
func (w *recounted) anEnd() {
	p := w.some(func(p *apiPod) bool { return p.runs != "" })
	if p == nil {
		return
	}
	n := w.o.node(p.claim.node)
	forced := oneIn(w.T, 5, "forced")
	w.note("%s ends, forced %v", p.object.Name, forced)
	w.p.ForgetUsage(w.ctx, p.object.UID)
	p.runs = ""
	w.settled()
	if forced && n != nil && n.inventory != nil {
		w.p.Forget(w.ctx, view.PodOf(p.object, w.o.opts.Resources))
		p.lingers = time.Now().Add(2*time.Second + lingerMargin) // its grace period is 2 s
		w.settled()
		return
	}
	if !forced {
		p.object = ended(p.object, corev1.PodSucceeded)
		w.p.Observe(w.ctx, view.PodOf(p.object, w.o.opts.Resources))
		p.release()
		w.settled()
	}
	p.release()
	w.vanish(p)
}

// aDeletion is that of a pod that does not run yet.
func (w *recounted) aDeletion() {
	p := w.some(func(p *apiPod) bool { return p.runs == "" && !p.waitsForNews && p.lingers.IsZero() })
	if p == nil {
		return
	}
	w.note("%s is deleted", p.object.Name)
	if oneIn(w.T, 2, "slowly") && p.object.DeletionTimestamp == nil {
		p.object = deleted(p.object, time.Now())
		p.refused = false
		p.release()
		w.tell(p)
		w.settled()
		return
	}
	w.vanish(p)
}

// aStranger is a pod that somebody else has bound, with a plan that heeds nobody.
func (w *recounted) aStranger() {
	n := w.someNode()
	if len(n.gpus()) == 0 || len(w.o.pods) >= 40 || !oneIn(w.T, 3, "really") {
		return
	}
	g := n.gpus()[rapid.IntRange(0, len(n.gpus())-1).Draw(w.T, "gpu")]
	limit := draw(w.T, "limit", 10, 60, 100)
	w.made++
	pod := newer(podAsking(fmt.Sprint("p", w.made), strconv.Itoa(limit)))
	plan := contract.Plan{Node: n.object.Name, Containers: map[string][]contract.Grant{"c0": {{GPU: g.UUID, Shares: units.Shares(limit)}}}}
	text, err := plan.Format()
	if err != nil {
		w.wrong("%v", err)
	}
	pod = annotated(pod, contract.PlanAnnotation, text)
	pod.Spec.NodeName, pod.Status.Phase = n.object.Name, corev1.PodRunning
	p := w.podOf(pod)
	p.runs, p.claim = n.object.Name, &claimed{node: n.object.Name, plan: plan, charges: map[contract.GPUUUID]units.Shares{g.UUID: units.Shares(limit)}}
	w.note("%s is there on GPU %s with %d shares", pod.Name, g.UUID, limit)
	w.o.pods = append(w.o.pods, p)
	w.tell(p)
	w.displaced()
}

func (w *recounted) someTime() {
	d := draw(w.T, "time", tick, time.Second, 5*time.Second, 16*time.Second)
	w.note("%v pass", d)
	w.pass(d)
}

// timeless is a test within a bubble, where rapid must not ask for its deadline.
type timeless struct{ *testing.T }

// TestFilterPrioritizeAndRoundsAreARecount compares the planner with recount in
// random states: what Filter and Prioritize answer about a random pod in each of
// them, where rounds put the pods that wait, and what everybody is charged.
//
// -rapid.checks and -rapid.steps say how many sequences of events there are, and
// how many states in each on average; "make property" has a million. -rapid.seed
// repeats a run.
func TestFilterPrioritizeAndRoundsAreARecount(t *testing.T) {
	sequences, seed := numberFlag(t, "rapid.checks"), numberFlag(t, "rapid.seed")
	defer setFlag(t, "rapid.checks", sequences)
	defer setFlag(t, "rapid.seed", seed)
	if seed == 0 {
		seed = rand.Uint64() >> 1
	}
	states := 0
	for sequences := sequences; sequences > 0; {
		// Rapid ends after a day, of which a sequence takes half a minute.
		part := min(sequences, 1000)
		setFlag(t, "rapid.checks", part)
		setFlag(t, "rapid.seed", seed)
		t.Logf("%d sequences: -rapid.checks=%d -rapid.seed=%d", part, part, seed)
		synctest.Test(t, func(t *testing.T) { rapid.Check(timeless{t}, recountSequence(t, &states)) })
		sequences -= part
		seed = rand.New(rand.NewPCG(seed, 1)).Uint64() >> 1
	}
	t.Logf("%d states", states)
}

// recountSequence is one sequence of events; states counts the states.
func recountSequence(t *testing.T, states *int) func(*rapid.T) {
	return func(r *rapid.T) {
		w := newRecounted(t, r)
		defer func() { w.stop() }()
		for range draw(r, "nodes", 3, 4, 2, 5) {
			w.aNode()
		}
		actions := w.actions()
		// Between the events, and so in every state:
		actions[""] = func(*rapid.T) {
			*states++
			w.probe()
		}
		r.Repeat(actions)
	}
}

func numberFlag(t *testing.T, name string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(flag.Lookup(name).Value.String(), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func setFlag(t *testing.T, name string, n uint64) {
	t.Helper()
	if err := flag.Set(name, strconv.FormatUint(n, 10)); err != nil {
		t.Fatal(err)
	}
}
