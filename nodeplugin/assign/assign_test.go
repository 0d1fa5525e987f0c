package assign_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/tranche-dev/tranche/nodeplugin/assign"
	"github.com/tranche-dev/tranche/nodeplugin/cdi"
	"github.com/tranche-dev/tranche/nodeplugin/ledger"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
	"github.com/tranche-dev/tranche/tests/testkit"
)

const (
	node  = "n"
	share = "nvidia.com/gpu-share"
	whole = "nvidia.com/gpu"
)

// world is what the Assigner sees: pods, the kubelet's records, GPUs.
type world struct {
	pods    []*corev1.Pod
	fail    error
	devices map[string]map[string]map[string][]string // by pod
	asked   int
	lingers bool
	// fromAPIServer lists are not the kubelet's; unknown pods it has not met.
	fromAPIServer bool
	unknown       map[string]bool
	gpus          map[contract.GPUUUID]assign.GPU
	clock         *clocktesting.FakeClock
	store         *ledger.Store
	assigner      *assign.Assigner
	created       int
	reg           *prometheus.Registry
}

func (w *world) Pods(context.Context) (assign.PodList, error) {
	return assign.PodList{Pods: w.pods, FromKubelet: !w.fromAPIServer}, w.fail
}

func (w *world) Devices(_ context.Context, _, name string) (map[string]map[string][]string, error) {
	w.asked++
	if w.unknown[name] {
		return nil, assign.ErrPodUnknown
	}
	return w.devices[name], nil
}

func (w *world) Lingers(*ledger.Pod, bool) bool { return w.lingers }

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{
		devices: map[string]map[string]map[string][]string{}, clock: clocktesting.NewFakeClock(time.Unix(0, 0)), reg: prometheus.NewRegistry(),
		gpus: map[contract.GPUUUID]assign.GPU{"g": {Healthy: true, Memory: 1000}, "h": {Healthy: true, Memory: 2000}, "sick": {Reason: "XID 79"}},
	}
	var err error
	if w.store, err = ledger.Open(filepath.Join(t.TempDir(), "ledger.json")); err != nil {
		t.Fatal(err)
	}
	w.assigner = assign.New(
		assign.Options{Node: node, Resources: contract.DefaultResources(), Clock: w.clock, GPUs: func() map[contract.GPUUUID]assign.GPU { return w.gpus }},
		w, w, w, w.store, cdi.New(cdi.Options{Dir: t.TempDir()}), assign.NewMetrics(w.reg, share, whole))
	return w
}

func grants(shares units.Shares, gpus ...contract.GPUUUID) []contract.Grant {
	var gs []contract.Grant
	for _, g := range gpus {
		gs = append(gs, contract.Grant{GPU: g, Shares: shares, MemoryMiB: 1})
	}
	return gs
}

// add puts a pod with a plan on the node.
func (w *world) add(t *testing.T, b *testkit.PodBuilder, plan map[string][]contract.Grant) *corev1.Pod {
	t.Helper()
	p := b.Obj()
	w.created++
	p.UID = types.UID("uid-" + p.Name)
	p.CreationTimestamp = metav1.NewTime(time.Unix(int64(w.created), 0))
	text, err := contract.Plan{Node: node, Containers: plan}.Format()
	if err != nil {
		t.Fatal(err)
	}
	p.Annotations[contract.PlanAnnotation] = text
	w.pods = append(w.pods, p)
	return p
}

func (w *world) simple(t *testing.T, name string, g contract.GPUUUID, shares units.Shares) *corev1.Pod {
	t.Helper()
	return w.add(t, testkit.MakePod("ns", name).Container("main", testkit.Shares(fmt.Sprint(shares))), map[string][]contract.Grant{"main": grants(shares, g)})
}

// ids returns the devices from..to-1 of a GPU.
func ids(g contract.GPUUUID, from, to int) []string {
	var s []string
	for i := from; i < to; i++ {
		s = append(s, contract.DeviceID{GPU: g, Slice: i}.String())
	}
	return s
}

func ctx(t *testing.T) context.Context {
	t.Helper()
	_, c := ktesting.NewTestContext(t)
	return c
}

func (w *world) preferred(t *testing.T, resource string, size int, available ...string) []string {
	t.Helper()
	return w.assigner.Preferred(ctx(t), resource, available, nil, size)
}

func (w *world) allocate(t *testing.T, resource string, devices ...string) *assign.Refusal {
	t.Helper()
	_, refusal := w.assigner.Allocate(ctx(t), resource, devices)
	return refusal
}

func (w *world) must(t *testing.T, refusal *assign.Refusal) {
	t.Helper()
	if refusal != nil {
		t.Fatalf("%s: %s", refusal.Reason, refusal.Message)
	}
}

func (w *world) wantRefusal(t *testing.T, refusal *assign.Refusal, reason assign.Reason, words ...string) {
	t.Helper()
	if refusal == nil {
		t.Fatalf("given; want refusal %s", reason)
	}
	if refusal.Reason != reason {
		t.Errorf("reason %s (%s); want %s", refusal.Reason, refusal.Message, reason)
	}
	for _, word := range words {
		if !strings.Contains(refusal.Message, word) {
			t.Errorf("%q lacks %q", refusal.Message, word)
		}
	}
}

// held lists who holds what in the ledger.
func (w *world) held() map[string][]string {
	held := map[string][]string{}
	for _, p := range w.store.State().Pods() {
		for name, c := range p.Containers {
			held[p.Name+"/"+name] = c.IDs
		}
	}
	return held
}

func (w *world) counter(t *testing.T, name string) float64 {
	t.Helper()
	families, err := w.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() == "tranche_nodeplugin_"+name {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

func TestEqualPodsMaySwapAndTotalsStay(t *testing.T) {
	w := newWorld(t)
	w.simple(t, "a", "g", 50)
	w.simple(t, "b", "h", 50)
	all := append(ids("g", 0, 100), ids("h", 0, 100)...)
	// The kubelet asks for a, as we think, but takes what is planned for b.
	if got := w.preferred(t, share, 50, all...); !slices.Equal(got, ids("g", 0, 50)) {
		t.Fatalf("preferred %v", got)
	}
	w.must(t, w.allocate(t, share, ids("h", 0, 50)...))
	w.must(t, w.allocate(t, share, ids("g", 0, 50)...))
	if diff := cmp.Diff(map[string][]string{"a/main": ids("g", 0, 50), "b/main": ids("h", 0, 50)}, w.held()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := w.counter(t, "swaps_total"); got != 1 {
		t.Errorf("%v swaps; want 1", got)
	}
}

func TestTheKubeletsRecordsAreAdopted(t *testing.T) {
	w := newWorld(t)
	a, b := w.simple(t, "a", "g", 50), w.simple(t, "b", "h", 50)
	w.must(t, w.allocate(t, share, ids("g", 0, 50)...))
	w.must(t, w.allocate(t, share, ids("h", 0, 50)...))
	for _, p := range []*corev1.Pod{a, b} {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main"}}
	}
	w.devices["a"] = map[string]map[string][]string{"main": {share: ids("h", 0, 50)}}
	w.devices["b"] = map[string]map[string][]string{"main": {share: ids("g", 0, 50)}}
	r := assign.NewReconciler(w.assigner, clock.RealClock{})
	if again, err := r.Pass(ctx(t)); again || err != nil {
		t.Fatal(again, err)
	}
	if diff := cmp.Diff(map[string][]string{"a/main": ids("h", 0, 50), "b/main": ids("g", 0, 50)}, w.held()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[contract.GPUUUID]units.Shares{"g": 50, "h": 50}, w.store.State().Charged("")); diff != "" {
		t.Errorf("charges (-want +got):\n%s", diff)
	}
	if got := w.counter(t, "plan_mismatch_total"); got != 2 {
		t.Errorf("%v mismatches; want 2", got)
	}
	if got := w.counter(t, "overcommitted_shares"); got != 0 {
		t.Errorf("%v overcommitted", got)
	}
	// Once is enough.
	before := w.asked
	if _, err := r.Pass(ctx(t)); err != nil || w.asked != before {
		t.Errorf("asked %d times more, %v", w.asked-before, err)
	}
}

func TestOvercommitmentByTheKubeletIsReported(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"a", "b"} {
		p := w.simple(t, name, "g", 80)
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main"}}
		w.devices[name] = map[string]map[string][]string{"main": {share: ids("g", 0, 80)}}
	}
	if _, err := assign.NewReconciler(w.assigner, clock.RealClock{}).Pass(ctx(t)); err != nil {
		t.Fatal(err)
	}
	if got := w.counter(t, "overcommitted_shares"); got != 60 {
		t.Errorf("%v overcommitted; want 60", got)
	}
}

func TestOnlyTheNextContainerOfAPodIsServed(t *testing.T) {
	w := newWorld(t)
	w.add(t, testkit.MakePod("ns", "p").Container("a", testkit.Shares("10")).Container("b", testkit.Shares("20")),
		map[string][]contract.Grant{"a": grants(10, "g"), "b": grants(20, "g")})
	w.wantRefusal(t, w.allocate(t, share, ids("g", 0, 20)...), assign.ReasonUnknownPod, "20 of nvidia.com/gpu-share")
	w.must(t, w.allocate(t, share, ids("g", 0, 10)...))
	w.must(t, w.allocate(t, share, ids("g", 10, 30)...))
}

func TestPodsThatAreDeletedOrRunAreNotTakenForTheOneThatWaits(t *testing.T) {
	w := newWorld(t)
	deleted := w.simple(t, "deleted", "g", 50)
	deleted.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	running := w.simple(t, "running", "g", 50)
	running.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main"}}
	failed := w.simple(t, "failed", "g", 50)
	failed.Status.Phase = corev1.PodFailed
	w.simple(t, "new", "h", 50)
	if got := w.preferred(t, share, 50, append(ids("g", 0, 100), ids("h", 0, 100)...)...); !slices.Equal(got, ids("h", 0, 50)) {
		t.Errorf("preferred %v", got)
	}
	if w.asked != 0 {
		t.Errorf("the kubelet was asked %d times for its records", w.asked)
	}
}

// The ledger is lost, and the kubelet starts a container whose record it lost:
// two that look alike, of which one has its devices.
func TestTheKubeletsRecordsDecideBetweenEqualCandidates(t *testing.T) {
	w := newWorld(t)
	a, b := w.simple(t, "a", "g", 50), w.simple(t, "b", "h", 50)
	for _, p := range []*corev1.Pod{a, b} {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main"}}
	}
	w.devices["a"] = map[string]map[string][]string{"main": {share: ids("g", 0, 50)}}
	if got := w.preferred(t, share, 50, append(ids("g", 50, 100), ids("h", 0, 100)...)...); !slices.Equal(got, ids("h", 0, 50)) {
		t.Errorf("preferred %v", got)
	}
}

func TestWithoutAListOfPodsNothingIsPreferredAndAllocateSaysWhy(t *testing.T) {
	w := newWorld(t)
	w.simple(t, "a", "g", 50)
	w.fail = errors.New("kubelet is starting")
	if got := w.preferred(t, share, 50, ids("g", 0, 100)...); len(got) > 0 {
		t.Errorf("preferred %v", got)
	}
	w.wantRefusal(t, w.allocate(t, share, ids("g", 0, 50)...), assign.ReasonNoPods, "kubelet is starting", "Create the pod again")
	w.fail = nil
	w.must(t, w.allocate(t, share, ids("g", 7, 57)...)) // any 50 of the GPU will do
}

func TestWhatIsNotOursOrNotFitIsRefused(t *testing.T) {
	w := newWorld(t)
	w.simple(t, "a", "g", 2)
	w.wantRefusal(t, w.allocate(t, share, "GPU-1"), assign.ReasonUnknownDevice, "GPU-1")
	w.wantRefusal(t, w.allocate(t, share, "g::0", "g::0"), assign.ReasonUnknownDevice, "twice")
	w.wantRefusal(t, w.allocate(t, share, "x::0", "x::1"), assign.ReasonUnknownDevice, "GPU x")
	w.wantRefusal(t, w.allocate(t, share, "sick::0", "sick::1"), assign.ReasonUnhealthyGPU, "XID 79")
	w.wantRefusal(t, w.allocate(t, share, "h::0", "h::1"), assign.ReasonWrongGPU, "ns/a", "planned on [g]", "h×2")
	w.wantRefusal(t, w.allocate(t, share, "g::0", "h::1"), assign.ReasonWrongGPU, "g×1 h×1")
	if got := w.preferred(t, share, 2, "GPU-1", "GPU-2"); len(got) > 0 {
		t.Errorf("preferred %v", got)
	}
	w.must(t, w.allocate(t, share, "g::0", "g::1"))
}

func TestAHolderThatIsGoneIsForgottenBeforeAnybodyIsRefused(t *testing.T) {
	w := newWorld(t)
	old := w.simple(t, "old", "g", 60)
	w.must(t, w.allocate(t, share, ids("g", 0, 60)...))
	w.simple(t, "new", "g", 60)
	w.wantRefusal(t, w.allocate(t, share, ids("g", 0, 60)...), assign.ReasonOverCapacity, "ns/old")
	w.pods = w.pods[1:]
	w.lingers = true
	w.wantRefusal(t, w.allocate(t, share, ids("g", 0, 60)...), assign.ReasonOverCapacity, "ns/old")
	w.lingers = false
	w.must(t, w.allocate(t, share, ids("g", 0, 60)...))
	if diff := cmp.Diff(map[string][]string{"new/main": ids("g", 0, 60)}, w.held()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// One that stays in the list but has ended is gone as well.
	w.pods = append(w.pods, old)
	w.pods[0].Status.Phase = corev1.PodSucceeded
	w.simple(t, "third", "g", 100)
	w.must(t, w.allocate(t, share, ids("g", 0, 100)...))
}

// An evicted pod is Failed while its containers still run.
func TestAFailedPodHoldsItsDevicesWhileAContainerRuns(t *testing.T) {
	w := newWorld(t)
	p := w.simple(t, "evicted", "g", 100)
	w.must(t, w.allocate(t, share, ids("g", 0, 100)...))
	p.Status = corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}}
	w.simple(t, "next", "g", 100)
	w.wantRefusal(t, w.allocate(t, share, ids("g", 0, 100)...), assign.ReasonOverCapacity)
	p.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
	w.must(t, w.allocate(t, share, ids("g", 0, 100)...))
}

// To say that a pod is in its own way would help nobody.
func TestAnEarlierPodOfTheSameNameIsCalledThat(t *testing.T) {
	const earlier = "an earlier pod of this name that is still ending"
	w := newWorld(t)
	w.simple(t, "other", "g", 10)
	w.must(t, w.allocate(t, share, ids("g", 0, 10)...))
	w.simple(t, "p", "g", 80)
	w.must(t, w.allocate(t, share, ids("g", 10, 90)...))
	w.lingers = true
	w.pods = w.pods[:1] // deleted by force: its containers may still run
	w.simple(t, "p", "g", 80).UID = "another"
	w.wantRefusal(t, w.allocate(t, share, ids("g", 10, 90)...), assign.ReasonOverCapacity, "90 are in use by ", earlier, "ns/other")
	w.pods = w.pods[:1]
	w.simple(t, "p", "g", 10).UID = "a third"
	w.wantRefusal(t, w.allocate(t, share, ids("g", 10, 20)...), assign.ReasonDuplicateDevice, "container main of "+earlier+" holds")
}

func TestAPodsWholePlanIsChargedFromItsFirstContainerOn(t *testing.T) {
	w := newWorld(t)
	w.add(t, testkit.MakePod("ns", "p").Container("a", testkit.Shares("10")).Container("b", testkit.Shares("60")),
		map[string][]contract.Grant{"a": grants(10, "g"), "b": grants(60, "g")})
	w.must(t, w.allocate(t, share, ids("g", 0, 10)...))
	w.simple(t, "q", "g", 31)
	w.wantRefusal(t, w.allocate(t, share, ids("g", 10, 41)...), assign.ReasonOverCapacity, "70 are in use by ns/p")
}

func TestAnAnswerThatCannotBeWrittenDownIsNotGiven(t *testing.T) {
	w := newWorld(t)
	w.simple(t, "a", "g", 2)
	broken := cdi.New(cdi.Options{Dir: "/dev/null/cdi"})
	a := assign.New(assign.Options{Node: node, Resources: contract.DefaultResources(), Clock: w.clock, GPUs: func() map[contract.GPUUUID]assign.GPU { return w.gpus }},
		w, w, w, w.store, broken, assign.NewMetrics(prometheus.NewRegistry()))
	_, refusal := a.Allocate(ctx(t), share, []string{"g::0", "g::1"})
	w.wantRefusal(t, refusal, assign.ReasonInternal, "ns/a", "could not record")
	if len(w.held()) > 0 {
		t.Errorf("held: %v", w.held())
	}
}

func TestAPreferenceIsStaleAfterAWhile(t *testing.T) {
	w := newWorld(t)
	w.simple(t, "a", "g", 50)
	got := w.preferred(t, share, 50, ids("g", 0, 100)...)
	w.clock.Step(time.Minute)
	w.pods = nil // it is gone
	w.wantRefusal(t, w.allocate(t, share, got...), assign.ReasonUnknownPod)
}

// The list of the API server is ahead of the kubelet: it asked for a, we took it
// for b, which it has not met yet.
func TestWhoeverDoesNotHoldWhatWeThoughtIsChargedOnceAndServedLater(t *testing.T) {
	t.Run("not met yet", func(t *testing.T) { chargedOnce(t, nil) })
	t.Run("met", func(t *testing.T) { chargedOnce(t, map[string]map[string][]string{}) })
}

func chargedOnce(t *testing.T, met map[string]map[string][]string) {
	t.Helper()
	w := newWorld(t)
	a, b := w.simple(t, "a", "h", 50), w.simple(t, "b", "g", 50)
	w.must(t, w.allocate(t, share, ids("g", 0, 50)...)) // taken for b
	a.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main"}}
	w.devices["a"] = map[string]map[string][]string{"main": {share: ids("g", 0, 50)}}
	w.unknown = map[string]bool{"b": met == nil}
	w.devices["b"] = met
	if again, err := assign.NewReconciler(w.assigner, clock.RealClock{}).Pass(ctx(t)); again || err != nil {
		t.Fatal(again, err)
	}
	if diff := cmp.Diff(map[string][]string{"a/main": ids("g", 0, 50)}, w.held()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	w.unknown = nil
	if got := w.preferred(t, share, 50, ids("g", 50, 100)...); !slices.Equal(got, ids("g", 50, 100)) {
		t.Errorf("preferred %v", got)
	}
	w.must(t, w.allocate(t, share, ids("g", 50, 100)...))
	if !w.store.State().Holds(b.UID, "main", share) {
		t.Error("b holds nothing")
	}
}

func TestAListThatIsAheadOfTheKubeletIsNarrowedByItsRecords(t *testing.T) {
	w := newWorld(t)
	w.fromAPIServer = true
	w.simple(t, "first", "h", 50)
	w.simple(t, "later", "g", 50)
	w.unknown = map[string]bool{"first": true} // the kubelet meets "later" first
	if got := w.preferred(t, share, 50, append(ids("g", 0, 100), ids("h", 0, 100)...)...); !slices.Equal(got, ids("g", 0, 50)) {
		t.Errorf("preferred %v", got)
	}
}

func TestARefusedPodComesLast(t *testing.T) {
	w := newWorld(t)
	w.fromAPIServer = true // its list says nothing of the refusal yet
	w.simple(t, "first", "g", 50)
	w.must(t, w.allocate(t, share, ids("g", 0, 50)...))
	w.simple(t, "toobig", "g", 60)
	w.wantRefusal(t, w.allocate(t, share, ids("g", 40, 100)...), assign.ReasonOverCapacity, "ns/toobig")
	w.simple(t, "next", "h", 60)
	if got := w.preferred(t, share, 60, append(ids("g", 40, 100), ids("h", 0, 100)...)...); !slices.Equal(got, ids("h", 0, 60)) {
		t.Errorf("preferred %v", got)
	}
}

// The kubelet failed "first" for a reason of its own.
func TestTheLastThatAStartingKubeletMetIsTheOneItAsksFor(t *testing.T) {
	w := newWorld(t)
	w.fromAPIServer = true
	w.simple(t, "first", "g", 50)
	w.simple(t, "second", "h", 50)
	w.simple(t, "later", "g", 50)
	w.unknown = map[string]bool{"later": true}
	if got := w.preferred(t, share, 50, append(ids("g", 0, 100), ids("h", 0, 100)...)...); !slices.Equal(got, ids("h", 0, 50)) {
		t.Errorf("preferred %v", got)
	}
}
