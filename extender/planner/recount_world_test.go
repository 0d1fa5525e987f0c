package planner

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"pgregory.net/rapid"

	"github.com/tranche-dev/tranche/extender/internal/fixture"
	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/placement"
	"github.com/tranche-dev/tranche/pkg/units"
)

// recounted is a running planner beside a recount that is told the same, and an
// API server and a scheduler for both.
type recounted struct {
	*rapid.T
	test    *testing.T
	ctx     context.Context
	p       *Planner
	effects *effects
	stop    func()
	o       *recount
	// names are all nodes that there ever were, and one that never was.
	names []string
	// foreign says that there may be nodes of another device plugin. Then only
	// probes ask for whole GPUs of any model: what becomes of a pod that the other
	// plugin serves is not recount's business.
	foreign bool
	made    int
	// history is what happened, for whoever reads of a failure.
	history []string
}

func newRecounted(test *testing.T, t *rapid.T) *recounted {
	w := &recounted{T: t, test: test, o: &recount{}, names: []string{"nobody"}}
	w.o.opts.Placement = draw(t, "setting", contract.PlacementBinpack, contract.PlacementLeastWaste, contract.PlacementSpread)
	w.o.opts.Nominate = rapid.Bool().Draw(t, "nominate")
	w.o.queuePlacement = draw(t, "queue's", "", "", contract.PlacementSpread, contract.PlacementLeastWaste)
	w.foreign = oneIn(t, 3, "foreign")
	w.start()
	return w
}

// draw draws one of a few.
func draw[T any](t *rapid.T, label string, list ...T) T {
	return rapid.SampledFrom(list).Draw(t, label)
}

// oneIn is true once in n times.
func oneIn(t *rapid.T, n int, label string) bool {
	return rapid.IntRange(0, n-1).Draw(t, label) == n-1
}

func (w *recounted) note(format string, args ...any) {
	w.history = append(w.history, fmt.Sprintf(format, args...))
}

// wrong ends the case.
func (w *recounted) wrong(format string, args ...any) {
	w.Helper()
	for i, text := range w.history {
		w.Logf("%d. %s", i+1, text)
	}
	for _, n := range w.o.nodes {
		w.Logf("%s: free %v", n, w.o.free(n, nil))
	}
	for _, p := range w.o.pods {
		w.Logf("%s", p)
	}
	w.Fatalf(format, args...)
}

// start runs a planner and tells it of all that there is.
func (w *recounted) start() {
	w.effects = &effects{}
	w.p, _ = newPlanner(w.test, w.effects, func(o *Options) {
		o.Queues, o.DefaultQueue = true, "default"
		o.Placement, o.Nominate = w.o.opts.Placement, w.o.opts.Nominate
	})
	w.o.opts = w.p.opts
	ctx, cancel := context.WithCancel(klog.NewContext(w.test.Context(), logr.Discard()))
	w.ctx = ctx
	done, p := make(chan struct{}), w.p
	go func() {
		p.Run(ctx)
		close(done)
	}()
	w.stop = func() {
		cancel()
		<-done
	}
	if w.o.queuePlacement != "" {
		w.p.ObserveQueue(ctx, aQueue("default", "", func(q *view.Queue) { q.Placement = w.o.queuePlacement }))
	}
	w.o.workload = workload{}
	for _, n := range w.o.nodes {
		w.p.ObserveNode(ctx, view.NodeOf(n.object, w.o.opts.Resources))
		w.o.workload.moved = true
	}
	for _, p := range w.o.pods {
		w.tell(p)
	}
	if err := w.p.Rebuilt(ctx); err != nil {
		w.wrong("%v", err)
	}
	w.settled()
}

// restart kills the planner. Another knows nothing of holds, nor of pods that may
// run on though they are gone. Its first round serves all that have come.
func (w *recounted) restart() {
	w.note("restart")
	w.stop()
	w.o.pods = slices.DeleteFunc(w.o.pods, func(p *apiPod) bool { return !p.lingers.IsZero() })
	for _, p := range w.o.pods {
		if p.heard {
			w.seeBound(p)
		}
		if p.runs == "" {
			p.claim, p.kept, p.given, p.refused, p.waitsForNews = nil, "", "", false, false
			p.object = newer(p.object)
			p.object.Status.NominatedNodeName = ""
		}
		p.learned = false
	}
	for range draw(w.T, "new pods", 4, 0, 2, 8) {
		if len(w.o.pods) < 40 {
			w.create()
		}
	}
	w.start()
}

// seeBound makes a pod what the API server makes of it.
func (w *recounted) seeBound(p *apiPod) {
	text, err := p.claim.plan.Format()
	if err != nil {
		w.wrong("%v", err)
	}
	p.object = annotated(newer(p.object), contract.PlanAnnotation, text)
	p.object.Spec.NodeName, p.object.Status.Phase, p.object.Status.NominatedNodeName = p.claim.node, corev1.PodRunning, ""
	p.runs, p.waitsForNews, p.heard, p.kept = p.claim.node, false, false, ""
}

// tell tells of a pod as it is, as the watch does.
func (w *recounted) tell(p *apiPod) {
	if u := view.UsageOf(p.object); u != nil {
		w.p.ObserveUsage(w.ctx, u)
	}
	w.p.Observe(w.ctx, view.PodOf(p.object, w.o.opts.Resources))
	w.o.workload.learn(p, w.o.opts.Resources.PerGPU)
}

// records are what the planner has charged to pods.
func (w *recounted) records() map[types.UID]*ledger.Record {
	list := map[types.UID]*ledger.Record{}
	for n := range w.p.Snapshot().Ledger.Nodes() {
		for _, r := range n.Claims() {
			if list[r.Pod.UID] != nil {
				w.wrong("pod %s is charged twice", r.Pod.Name)
			}
			list[r.Pod.UID] = r
		}
	}
	return list
}

// settled waits until the planner has nothing left to do, follows it where
// recount lets it choose, and compares all claims.
func (w *recounted) settled() {
	w.Helper()
	if err := w.p.Ping(w.ctx); err != nil {
		w.wrong("%v", err)
	}
	w.follow()
}

// follow does what a round has to do: every pod that waits gets the best node
// that takes it, in turn.
func (w *recounted) follow() {
	w.Helper()
	records := w.records()
	var admitted, woken []string
	for _, p := range w.o.inOrder() {
		if w.give(p, records[p.object.UID]) {
			if gated(p.object) {
				admitted = append(admitted, p.object.Name)
			} else {
				woken = append(woken, p.object.Name)
			}
		}
	}
	w.o.review(time.Now())
	w.wantClaims(records)
	w.react(admitted, woken)
}

// give finds a waiting pod's place by rating all nodes, and checks that the
// planner gave it that one.
func (w *recounted) give(p *apiPod, r *ledger.Record) bool {
	w.Helper()
	scores, ratings := map[string]int64{}, map[string]rating{}
	for _, n := range w.o.nodes {
		if !p.problem && n.inventory != nil && w.o.open(p, n) && w.o.fits(p, n) == "" {
			ratings[n.object.Name] = w.o.rate(p, n)
			scores[n.object.Name] = ratings[n.object.Name].score
		}
	}
	best := bestOf(scores, w.o.policyOf(p))
	switch {
	case r == nil && len(best) == 0:
		return false
	case r == nil:
		w.wrong("pod %s waits, though node %v takes it", p.object.Name, best)
	case !best[r.Node]:
		w.wrong("pod %s was given node %s by %s, want %v of %v", p.object.Name, r.Node, w.o.policyOf(p), best, scores)
	}
	w.take(p, r, ratings[r.Node], gangHoldTimeout)
	p.refused, p.kept, p.given = false, r.Node, r.Node
	return true
}

// take checks that a pod holds what it should, and remembers that.
func (w *recounted) take(p *apiPod, r *ledger.Record, best rating, timeout time.Duration) {
	w.Helper()
	switch problem := w.o.misplaced(p, r.Plan); {
	case r.Plan.Node != r.Node:
		w.wrong("pod %s has a plan for %s on %s", p.object.Name, r.Plan.Node, r.Node)
	case problem != "":
		w.wrong("pod %s has plan %+v on node %s: %s", p.object.Name, r.Plan, r.Node, problem)
	case best.wrongGPUs(w.o.node(r.Node), r.Plan, w.o.policyOf(p)):
		w.wrong("pod %s has plan %+v on node %s, want GPUs %v of costs %v", p.object.Name, r.Plan, r.Node, best.gpus, best.costs)
	}
	p.claim = &claimed{node: r.Node, charges: w.o.chargesOf(p, r.Plan), plan: r.Plan, held: true, expires: time.Now().Add(timeout)}
}

// hold is what asking for one node leads to: the pod holds GPUs there, and nothing
// elsewhere.
func (w *recounted) hold(p *apiPod, node string) {
	w.Helper()
	r := w.records()[p.object.UID]
	if r == nil || r.Node != node || r.State != ledger.Held {
		w.wrong("pod %s holds %+v, want a hold on node %s", p.object.Name, r, node)
	}
	w.take(p, r, w.o.rate(p, w.o.node(node)), holdTimeout)
	p.refused = false
	if p.kept != "" {
		p.kept = node
	}
	if p.given != node {
		p.given = ""
	}
}

// release ends a pod's claim.
func (p *apiPod) release() { p.claim, p.kept, p.given = nil, "", "" }

// wantClaims compares what the planner has charged with what recount has.
func (w *recounted) wantClaims(records map[types.UID]*ledger.Record) {
	w.Helper()
	n := 0
	for _, p := range w.o.pods {
		r := records[p.object.UID]
		if p.claim == nil {
			if r != nil {
				w.wrong("pod %s has %+v, want nothing", p.object.Name, r)
			}
			continue
		}
		n++
		if r == nil || r.Node != p.claim.node || (r.State == ledger.Held) != p.claim.held {
			w.wrong("pod %s has %+v, want %+v", p.object.Name, r, p.claim)
		}
		charges := map[contract.GPUUUID]units.Shares{}
		for _, c := range r.Charges {
			charges[c.GPU] = c.Shares
		}
		if !maps.Equal(charges, p.claim.charges) {
			w.wrong("pod %s is charged %v, want %v", p.object.Name, charges, p.claim.charges)
		}
	}
	if len(records) != n {
		w.wrong("%d pods are charged, want %d", len(records), n)
	}
}

// react does what the planner asks for: it lifts gates, has the scheduler try
// pods again, and takes nominations back.
func (w *recounted) react(admitted, woken []string) {
	w.Helper()
	w.effects.mu.Lock()
	list := w.effects.admitted
	w.effects.admitted = nil
	w.effects.mu.Unlock()
	got := make([]string, 0, len(list))
	for _, a := range list {
		got = append(got, a.Pod.Name)
	}
	slices.Sort(got)
	if slices.Sort(admitted); !slices.Equal(got, admitted) {
		w.wrong("admitted are %v, want %v", got, admitted)
	}
	awake := w.effects.take(&w.effects.woken)
	slices.Sort(awake)
	if slices.Sort(woken); !slices.Equal(awake, woken) {
		w.wrong("woken are %v, want %v", awake, woken)
	}
	for _, name := range w.effects.take(&w.effects.withdrawn) {
		if p := w.o.pod(uidOf(name)); p != nil && p.runs == "" {
			p.object = newer(p.object)
			p.object.Status.NominatedNodeName = ""
			w.tell(p)
		}
	}
	for _, a := range list {
		p := w.o.pod(a.Pod.UID)
		if want := map[bool]string{true: p.given}[w.o.opts.Nominate]; a.Node != want {
			w.wrong("pod %s is nominated to %q, want %q", a.Pod.Name, a.Node, want)
		}
		p.object = open(newer(p.object))
		p.object.Status.NominatedNodeName = a.Node
		w.note("%s is admitted to %s", a.Pod.Name, p.given)
		w.tell(p)
		w.settled()
	}
	for _, name := range awake {
		w.note("%s is woken", name)
		w.schedule(w.o.pod(uidOf(name)))
	}
}

// pass lets time pass, a tick at a time.
func (w *recounted) pass(d time.Duration) {
	w.Helper()
	for ; d > 0; d -= tick {
		time.Sleep(tick)
		synctest.Wait()
		now := time.Now()
		gone := map[*apiPod]bool{}
		for _, p := range w.o.pods {
			if p.claim != nil && p.claim.held && !p.claim.expires.After(now) {
				w.note("the hold of %s expires", p.object.Name)
				p.release()
			}
			gone[p] = !p.lingers.IsZero() && !p.lingers.After(now)
		}
		w.o.pods = slices.DeleteFunc(w.o.pods, func(p *apiPod) bool { return gone[p] })
		w.follow()
	}
}

// displaced follows the planner where pods had to give way: those with holds on
// GPUs that turned out to be fuller than was known. No hold stays there, and no
// other has to go.
func (w *recounted) displaced() {
	w.Helper()
	if err := w.p.Ping(w.ctx); err != nil {
		w.wrong("%v", err)
	}
	records := w.records()
	type gpu struct {
		n  *apiNode
		at int
	}
	full := map[contract.GPUUUID]gpu{}
	for _, n := range w.o.nodes {
		for i, free := range w.o.free(n, nil) {
			if free < 0 {
				full[n.gpus()[i].UUID] = gpu{n, i}
			}
		}
	}
	for _, p := range w.o.pods {
		if p.claim == nil || !p.claim.held || records[p.object.UID] != nil && w.same(p, records[p.object.UID]) {
			continue
		}
		on := false
		for uuid := range p.claim.charges {
			_, yes := full[uuid]
			on = on || yes
		}
		if !on {
			w.wrong("pod %s has lost its hold %+v, though there was room", p.object.Name, p.claim)
		}
		w.note("the hold of %s is displaced", p.object.Name)
		p.release()
	}
	for _, p := range w.o.pods {
		if p.claim == nil || !p.claim.held {
			continue
		}
		for uuid := range p.claim.charges {
			if g, yes := full[uuid]; yes && w.o.free(g.n, nil)[g.at] < 0 {
				w.wrong("pod %s keeps its hold on GPU %s, which is charged beyond its shares", p.object.Name, uuid)
			}
		}
	}
	w.follow()
}

// same says whether a pod holds what it held.
func (w *recounted) same(p *apiPod, r *ledger.Record) bool {
	return r.Node == p.claim.node && len(r.Charges) == len(p.claim.charges) &&
		!slices.ContainsFunc(r.Charges, func(c ledger.Charge) bool { return p.claim.charges[c.GPU] != c.Shares })
}

// filter asks Filter and compares, and returns the nodes that pass.
func (w *recounted) filter(p *apiPod, names []string) []string {
	w.Helper()
	want := make([]Reason, 0, len(names))
	for _, name := range names {
		want = append(want, w.o.verdict(p, name))
	}
	v, err := w.p.Filter(w.ctx, p.object, names)
	if err != nil {
		w.wrong("%v", err)
	}
	var passed []string
	for i, name := range names {
		got, wanted := v.Reason(i), want[i]
		if len(p.asks.Demands) > 1 {
			got, wanted = classOf(got), classOf(wanted)
		}
		if got != wanted {
			w.wrong("Filter of %s says of node %s %q, want %q; GPUs %+v, free %v, asks %+v",
				p.object.Name, name, v.Reason(i), want[i], w.o.node(name).gpus(), w.o.free(w.o.node(name), p), p.asks)
		}
		if wanted == "" {
			passed = append(passed, name)
		}
	}
	if v.Passed != len(passed) {
		w.wrong("Filter of %s says that %d pass, want %d", p.object.Name, v.Passed, len(passed))
	}
	decided := p.claim != nil && !p.claim.held
	switch {
	case p.object.DeletionTimestamp != nil || decided:
	case len(passed) == 1 && w.o.node(passed[0]).inventory != nil:
		w.hold(p, passed[0])
	case len(passed) == 0:
		p.refused = true
	}
	w.settled()
	return passed
}

// prioritize asks Prioritize and compares, and returns the best node.
func (w *recounted) prioritize(p *apiPod, names []string) string {
	w.Helper()
	scores := map[string]int64{}
	for _, name := range names {
		if n := w.o.node(name); n != nil && n.inventory != nil && w.o.verdict(p, name) == "" {
			scores[name] = w.o.rate(p, n).score
		}
	}
	got, err := w.p.Prioritize(w.ctx, p.object, names)
	if err != nil {
		w.wrong("%v", err)
	}
	best, node := bestOf(scores, w.o.policyOf(p)), ""
	for i, name := range names {
		_, fits := scores[name]
		least, most := int64(0), int64(0)
		if fits {
			least, most = prioritiesOf(scores, name, w.o.policyOf(p))
		}
		switch {
		case got[i] == placement.MaxPriority && node == "" && best[name]:
			node = name
		case got[i] < least || got[i] > most:
			w.wrong("Prioritize of %s by %s gives node %s of %v %d of %v, want %d to %d of scores %v, or 10 for one of %v",
				p.object.Name, w.o.policyOf(p), name, names, got[i], got, least, most, scores, best)
		}
	}
	switch {
	case (node == "") != (len(scores) == 0):
		w.wrong("Prioritize of %s gives %v to %v, want 10 for one of %v", p.object.Name, got, names, best)
	case node != "":
		w.hold(p, node)
	}
	w.settled()
	return node
}

// schedule has the scheduler take a pod: it asks about the node that the pod is
// nominated to first, then about all. It returns the node that it chooses.
func (w *recounted) schedule(p *apiPod) string {
	w.Helper()
	w.note("the scheduler takes %s", p.object.Name)
	if node := p.object.Status.NominatedNodeName; node != "" && w.o.node(node) != nil {
		if passed := w.filter(p, []string{node}); len(passed) == 1 {
			return node
		}
	}
	if p.claim != nil && !p.claim.held {
		return ""
	}
	switch passed := w.filter(p, w.names); len(passed) {
	case 0:
		return ""
	case 1:
		return passed[0]
	default:
		return w.prioritize(p, passed)
	}
}

// vanish lets a pod that does not run be gone.
func (w *recounted) vanish(p *apiPod) {
	w.p.Forget(w.ctx, view.PodOf(p.object, w.o.opts.Resources))
	w.o.pods = slices.DeleteFunc(w.o.pods, func(other *apiPod) bool { return other == p })
	w.settled()
}

// probe asks about a pod that nobody has seen and that goes at once.
func (w *recounted) probe() {
	p := w.drawPod(true)
	w.o.pods = append(w.o.pods, p)
	w.filter(p, w.names)
	if p.object.DeletionTimestamp == nil && !p.problem {
		w.prioritize(p, w.names)
	}
	w.vanish(p)
}

// gpuOf is a GPU's name.
func gpuOf(node string, at int) contract.GPUUUID { return fixture.GPU(node, at) }
