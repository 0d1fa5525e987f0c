package planner

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/tranche-dev/tranche/extender/internal/fixture"
	"github.com/tranche-dev/tranche/extender/metrics"
	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/placement"
	"github.com/tranche-dev/tranche/pkg/units"
)

// effects writes down what the planner asks for.
type effects struct {
	mu       sync.Mutex
	woken    []string
	warned   []string
	verified []string
	admitted []Admission
	// withdrawn and evicted are names of pods.
	withdrawn []string
	evicted   []string
	spared    []string
	// protected are pods that a budget protects, kept those of them that were to
	// go together with others.
	protected, kept []string
	// budgeted are pods of a budget that allows so many of them to go together.
	budgeted []string
	allowed  int
	reports  map[GangKey]GangReport
	queues   map[string]QueueReport
}

func (e *effects) Wake(pod ledger.Pod, _ uint64) { e.note(&e.woken, pod.Name) }
func (e *effects) Warn(pod ledger.Pod, reason, message string) {
	e.note(&e.warned, pod.Name+": "+reason+": "+message)
}
func (e *effects) Verify(pod ledger.Pod) { e.note(&e.verified, pod.Name) }

func (e *effects) Admit(list []Admission) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.admitted = append(e.admitted, list...)
}
func (e *effects) Withdraw(pod ledger.Pod)           { e.note(&e.withdrawn, pod.Name) }
func (e *effects) Evict(pod ledger.Pod, _, _ string) { e.note(&e.evicted, pod.Name) }
func (e *effects) Report(r GangReport) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.reports == nil {
		e.reports = map[GangKey]GangReport{}
	}
	e.reports[r.Key] = r
}

// EvictTogether notes who goes, or who of them is protected.
func (e *effects) EvictTogether(list []Eviction) {
	e.mu.Lock()
	protected, budgeted, allowed := e.protected, e.budgeted, e.allowed
	e.mu.Unlock()
	all := &e.evicted
	if slices.ContainsFunc(list, func(one Eviction) bool { return slices.Contains(protected, one.Pod.Name) }) {
		all = &e.kept
	}
	var counted []string
	for _, one := range list {
		if slices.Contains(budgeted, one.Pod.Name) {
			counted = append(counted, one.Pod.Name)
		}
	}
	if len(counted) > allowed {
		for _, name := range counted[allowed:] {
			e.note(&e.kept, name)
		}
		return
	}
	for _, one := range list {
		if all == &e.evicted || slices.Contains(protected, one.Pod.Name) {
			e.note(all, one.Pod.Name)
		}
	}
}

// protect names the pods that must not go.
func (e *effects) protect(pods ...string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.protected = pods
}

// budget makes a budget for pods, of which so many may go together.
func (e *effects) budget(pods []string, allowed int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.budgeted, e.allowed = pods, allowed
}
func (e *effects) Spare(pod ledger.Pod) { e.note(&e.spared, pod.Name) }
func (e *effects) ReportQueue(r QueueReport) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.queues == nil {
		e.queues = map[string]QueueReport{}
	}
	e.queues[r.Name] = r
}

func (e *effects) note(list *[]string, text string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	*list = append(*list, text)
}

// take returns a list and empties it.
func (e *effects) take(list *[]string) []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := *list
	*list = nil
	return all
}

// kit is a running planner.
type kit struct {
	*testing.T
	p       *Planner
	effects *effects
	metrics *metrics.Metrics
	stop    func()
	// set changes the planner's options.
	set []func(o *Options)
}

const (
	holdTimeout     = 15 * time.Second
	gangBindTimeout = 20 * time.Second
	gangHoldTimeout = time.Minute
)

func newPlanner(tb testing.TB, e Effects, set ...func(o *Options)) (*Planner, *metrics.Metrics) {
	tb.Helper()
	m := metrics.New(prometheus.NewRegistry())
	opts := Options{
		Resources: contract.DefaultResources(), Placement: contract.PlacementBinpack, HoldTimeout: holdTimeout, Clock: clock.RealClock{},
		Gangs: true, Nominate: true, GangBindTimeout: gangBindTimeout, GangHoldTimeout: gangHoldTimeout,
	}
	for _, f := range set {
		f(&opts)
	}
	p, err := New(opts, m, e)
	if err != nil {
		tb.Fatal(err)
	}
	return p, m
}

// run runs f with a planner whose time passes only when everybody waits.
func run(t *testing.T, f func(k *kit), set ...func(o *Options)) {
	synctest.Test(t, func(t *testing.T) {
		k := &kit{T: t, set: set}
		k.start()
		k.rebuilt()
		f(k)
		k.stop()
	})
}

// rebuilt says that everything that exists has been observed.
func (k *kit) rebuilt() {
	k.Helper()
	if err := k.p.Rebuilt(k.Context()); err != nil {
		k.Fatal(err)
	}
}

// start runs a planner that knows nothing yet.
func (k *kit) start() {
	k.effects = &effects{}
	k.p, k.metrics = newPlanner(k.T, k.effects, k.set...)
	ctx, cancel := context.WithCancel(k.Context())
	done := make(chan struct{})
	p := k.p
	go func() {
		p.Run(ctx)
		close(done)
	}()
	k.stop = func() {
		cancel()
		<-done
	}
}

func (k *kit) node(name string, gpus int) { k.inventory(name, fixture.Inventory(name, gpus)) }

func (k *kit) inventory(name string, inv contract.Inventory) {
	k.Helper()
	k.p.ObserveNode(k.Context(), view.NodeOf(fixture.Node(k, name, inv), k.p.opts.Resources))
	k.settled()
}

func (k *kit) observe(pods ...*corev1.Pod) {
	k.Helper()
	for _, pod := range pods {
		k.p.Observe(k.Context(), view.PodOf(pod, k.p.opts.Resources))
	}
	k.settled()
}

// gone ends pod the way kubelets do: it was said to have ended before.
func (k *kit) gone(pod *corev1.Pod) {
	k.Helper()
	k.vanished(ended(pod, corev1.PodFailed))
}

// vanished lets pod be gone as it is.
func (k *kit) vanished(pod *corev1.Pod) {
	k.Helper()
	k.p.Forget(k.Context(), view.PodOf(pod, k.p.opts.Resources))
	k.settled()
}

// settled waits until the planner has nothing left to do.
func (k *kit) settled() {
	k.Helper()
	if err := k.p.Ping(k.Context()); err != nil {
		k.Fatal(err)
	}
}

// after lets time pass.
func (k *kit) after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// filter returns the reason per node, in the order asked.
func (k *kit) filter(pod *corev1.Pod, nodes ...string) []Reason {
	k.Helper()
	v, err := k.p.Filter(k.Context(), pod, nodes)
	if err != nil {
		k.Fatal(err)
	}
	k.settled()
	reasons := make([]Reason, len(nodes))
	for i := range reasons {
		reasons[i] = v.Reason(i)
	}
	return reasons
}

func (k *kit) prioritize(pod *corev1.Pod, nodes ...string) []int64 {
	k.Helper()
	priorities, err := k.p.Prioritize(k.Context(), pod, nodes)
	if err != nil {
		k.Fatal(err)
	}
	return priorities
}

func target(pod *corev1.Pod, node string) Target {
	return Target{UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name, Node: node}
}

func (k *kit) reserve(pod *corev1.Pod, node string) (Reservation, error) {
	k.Helper()
	return k.p.Reserve(k.Context(), target(pod, node), nil)
}

// place takes a pod all the way to its Binding.
func (k *kit) place(pod *corev1.Pod, node string) *contract.Plan {
	k.Helper()
	k.filter(pod, node)
	r, err := k.reserve(pod, node)
	if err != nil {
		k.Fatal(err)
	}
	k.p.Bound(k.Context(), target(pod, node))
	return r.Plan
}

// charged returns a GPU's shares: allocated, held.
func (k *kit) charged(node string, gpu int) [2]units.Shares {
	k.Helper()
	k.settled()
	for _, g := range k.p.Snapshot().Ledger.Node(node).GPUs() {
		if g.Facts.UUID == fixture.GPU(node, gpu) {
			return [2]units.Shares{g.Allocated, g.Held}
		}
	}
	k.Fatalf("node %s has no GPU %d", node, gpu)
	return [2]units.Shares{}
}

func (k *kit) wantCharged(node string, gpu int, allocated, held units.Shares) {
	k.Helper()
	if got := k.charged(node, gpu); got != [2]units.Shares{allocated, held} {
		k.Errorf("GPU %d of %s: allocated and held %v, want [%d %d]", gpu, node, got, allocated, held)
	}
}

func (k *kit) overcommitted() int { return k.p.Snapshot().Ledger.Totals().Overcommitted }

func grant(gpu contract.GPUUUID, s units.Shares) contract.Grant {
	return contract.Grant{GPU: gpu, Shares: s, MemoryMiB: units.MemoryForShares(s, fixture.MemoryMiB, units.DefaultSharesPerGPU)}
}

func one(gpu contract.GPUUUID, s units.Shares) map[string]contract.Grant {
	return map[string]contract.Grant{"c0": grant(gpu, s)}
}

type (
	testPod = corev1.Pod
	testUID = types.UID
)

// refusedAt is the command that Filter leaves when it refuses pod everywhere.
func refusedAt(pod *view.Pod, seen uint64) func(context.Context, *state, time.Time) bool {
	return func(_ context.Context, s *state, now time.Time) bool {
		s.refused(pod, placement.NotEnoughFree, []string{"a"}, seen, now)
		return true
	}
}
