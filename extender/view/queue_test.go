package view

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"pgregory.net/rapid"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

func quantity(text string) *resource.Quantity { return new(resource.MustParse(text)) }

func TestQueueOf(t *testing.T) {
	now := metav1.Now()
	o := &v1alpha1.Queue{
		ObjectMeta: metav1.ObjectMeta{Name: "q", UID: "uid", Generation: 3, DeletionTimestamp: &now, Finalizers: []string{"x", v1alpha1.QueueFinalizer}},
		Spec: v1alpha1.QueueSpec{
			Parent: "p", Weight: 7, Priority: -1,
			Deserved: v1alpha1.QueueResources{GPU: quantity("3.5"), CPU: quantity("500m"), Memory: quantity("1Gi")},
			Limit:    v1alpha1.QueueResources{GPU: quantity("8"), GPUModels: map[string]resource.Quantity{"A": resource.MustParse("1.5")}},
			Reclaim: v1alpha1.ReclaimPolicy{
				Policy: v1alpha1.ReclaimNever, Delay: metav1.Duration{Duration: time.Second}, MinRuntime: metav1.Duration{Duration: time.Minute},
			},
			StopPolicy: v1alpha1.StopHold, Placement: v1alpha1.PlacementSpread, Admission: v1alpha1.AdmissionGated, WhenFull: v1alpha1.WhenFullExpose,
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}},
			Gang:              v1alpha1.QueueGangDefaults{HoldTimeout: &metav1.Duration{Duration: time.Hour}},
		},
	}
	got := QueueOf(o, 100)
	if got.Selector == nil || !got.Selector.Matches(labels.Set{"team": "a"}) || got.Selector.Matches(labels.Set{"team": "b"}) {
		t.Errorf("selector %v", got.Selector)
	}
	got.Selector = nil
	want := &Queue{
		Name: "q", UID: "uid", Generation: 3, Deleting: true, Finalized: true, Parent: "p", Weight: 7, Priority: -1,
		Deserved: QueueAmounts{GPU: new(units.Shares(350)), CPU: new(int64(500)), Memory: new(int64(1 << 30))},
		Limit:    QueueAmounts{GPU: new(units.Shares(800)), Models: map[string]units.Shares{"A": 150}},
		Reclaim:  v1alpha1.ReclaimNever, ReclaimDelay: time.Second, MinRuntime: time.Minute, Stop: v1alpha1.StopHold, Placement: contract.PlacementSpread,
		Admission: v1alpha1.AdmissionGated, WhenFull: v1alpha1.WhenFullExpose, HoldTimeout: new(time.Hour),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("queue (-want +got):\n%s", diff)
	}
}

func TestAnEmptyQueueHasDefaults(t *testing.T) {
	for name, selector := range map[string]*metav1.LabelSelector{"absent": nil, "empty": {}} {
		got := QueueOf(&v1alpha1.Queue{Spec: v1alpha1.QueueSpec{NamespaceSelector: selector}}, 100)
		want := &Queue{Weight: 1, Reclaim: v1alpha1.ReclaimAny, Stop: v1alpha1.StopNone, Admission: v1alpha1.AdmissionAuto, WhenFull: v1alpha1.WhenFullHold}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("selector %s: (-want +got):\n%s", name, diff)
		}
	}
}

func TestDeservedIsRoundedUpAndLimitsDown(t *testing.T) {
	cases := map[string]struct {
		text           string
		perGPU         units.Shares
		deserved, most units.Shares
	}{
		"whole":           {"2", 100, 200, 200},
		"exact":           {"3.5", 100, 350, 350},
		"a third":         {"0.333", 100, 34, 33},
		"a little":        {"0.001", 100, 1, 0},
		"nothing":         {"0", 100, 0, 0},
		"uneven grain":    {"0.5", 3, 2, 1},
		"milli":           {"1500m", 10, 15, 15},
		"exponent":        {"1e2", 100, 10000, 10000},
		"nano":            {"1n", 1000, 1, 0},
		"the most":        {"1000000000", 1000, 1_000_000_000_000, 1_000_000_000_000},
		"thousand":        {"1k", 100, 100_000, 100_000},
		"beyond 9 digits": {"0.3333333333333333", 3, 2, 1}, // the Quantity itself rounds up to 10^-9
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			amounts := v1alpha1.QueueResources{GPU: quantity(tc.text)}
			q := QueueOf(&v1alpha1.Queue{Spec: v1alpha1.QueueSpec{Deserved: amounts, Limit: amounts}}, tc.perGPU)
			if q.Problem != "" || q.Deserved.GPU == nil || q.Limit.GPU == nil {
				t.Fatalf("problem %q", q.Problem)
			}
			if *q.Deserved.GPU != tc.deserved || *q.Limit.GPU != tc.most {
				t.Errorf("deserved %d, limit %d, want %d and %d", *q.Deserved.GPU, *q.Limit.GPU, tc.deserved, tc.most)
			}
		})
	}
}

// Whatever its digits, an absurd amount is refused without writing them out.
func TestWhatCannotBeUnderstoodIsSaid(t *testing.T) {
	gpu := func(text string) v1alpha1.QueueSpec {
		return v1alpha1.QueueSpec{Limit: v1alpha1.QueueResources{GPU: quantity(text)}}
	}
	const write = `spec.limit.gpu is not a number of GPUs from 0 to 1000000000; write a decimal number such as "3.5"`
	cases := map[string]struct {
		spec v1alpha1.QueueSpec
		want string
	}{
		"absurd":    {gpu("1e999999999"), write},
		"too many":  {gpu("1000000001"), write},
		"negative":  {gpu("-1"), write},
		"wraps":     {gpu("9223372036854775807"), write},
		"by model":  {v1alpha1.QueueSpec{Deserved: v1alpha1.QueueResources{GPUModels: map[string]resource.Quantity{"B": resource.MustParse("-1"), "A": resource.MustParse("1e99")}}}, "spec.deserved.gpuModels.A is not a number"},
		"cores":     {v1alpha1.QueueSpec{Limit: v1alpha1.QueueResources{CPU: quantity("1e999999999")}}, `spec.limit.cpu cannot be counted; write a number of cores`},
		"memory":    {v1alpha1.QueueSpec{Deserved: v1alpha1.QueueResources{Memory: quantity("1Ei")}}, `spec.deserved.memory cannot be counted; write an amount of memory`},
		"selection": {v1alpha1.QueueSpec{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b c"}}}, "spec.namespaceSelector is not a label selector"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			q := QueueOf(&v1alpha1.Queue{Spec: tc.spec}, 100)
			if !strings.Contains(q.Problem, tc.want) || strings.Contains(q.Problem, "\n") {
				t.Errorf("problem %q, want %q", q.Problem, tc.want)
			}
			if q.Limit.GPU != nil || q.Limit.CPU != nil || q.Deserved.Memory != nil || len(q.Deserved.Models) > 0 {
				t.Errorf("amounts %+v, %+v", q.Deserved, q.Limit)
			}
		})
	}
	q := QueueOf(&v1alpha1.Queue{Spec: cases["selection"].spec}, 100)
	if q.Selector == nil || q.Selector.Matches(labels.Set{"a": "b"}) {
		t.Error("a selector that cannot be read lets a namespace in")
	}
}

func TestGPUsOf(t *testing.T) {
	cases := map[string]struct {
		shares, perGPU units.Shares
		want           v1alpha1.GPUs
	}{
		"nothing":        {0, 100, "0"},
		"whole":          {300, 100, "3"},
		"part":           {350, 100, "3.5"},
		"hundredth":      {1, 100, "0.01"},
		"a third":        {1, 3, "0.333"},
		"two thirds":     {2, 3, "0.667"},
		"nearly whole":   {9999, 10000, "1"},
		"hardly any":     {1, 10000, "0"},
		"finest":         {1, 1000, "0.001"},
		"less than none": {-350, 100, "-3.5"},
		"no sign":        {-1, 10000, "0"},
		"most":           {math.MaxInt64, 1, "9223372036854775807"},
	}
	for name, tc := range cases {
		if got := GPUsOf(tc.shares, tc.perGPU); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// What is written of shares is read as these shares, for every grain that three
// decimals express.
func TestGPUsAreReadAsTheyAreWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		perGPU := rapid.SampledFrom([]units.Shares{1, 2, 4, 5, 8, 10, 20, 25, 40, 50, 100, 125, 200, 250, 500, 1000}).Draw(t, "perGPU")
		shares := units.Shares(rapid.Int64Range(0, 1_000_000_000*int64(perGPU)).Draw(t, "shares"))
		text := GPUsOf(shares, perGPU)
		for _, round := range []rounding{down, up} {
			got, ok := amount(resource.MustParse(string(text)), int64(perGPU), math.MaxInt64, round)
			if !ok || units.Shares(got) != shares {
				t.Fatalf("%d of %d shares: %q, read as %d", shares, perGPU, text, got)
			}
		}
	})
}

func TestOnlyTheStatusAndTheVersionDoNotMatter(t *testing.T) {
	base := func() *v1alpha1.Queue {
		return &v1alpha1.Queue{
			ObjectMeta: metav1.ObjectMeta{Name: "q", UID: "u", Generation: 1},
			Spec: v1alpha1.QueueSpec{
				Deserved:          v1alpha1.QueueResources{GPU: quantity("1"), GPUModels: map[string]resource.Quantity{"A": resource.MustParse("1")}},
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b", "c": "d"}},
				Gang:              v1alpha1.QueueGangDefaults{HoldTimeout: &metav1.Duration{Duration: 1}},
			},
		}
	}
	cases := map[string]struct {
		change func(*v1alpha1.Queue)
		same   bool
	}{
		"nothing":    {func(*v1alpha1.Queue) {}, true},
		"status":     {func(o *v1alpha1.Queue) { o.Status.Open = true }, true},
		"version":    {func(o *v1alpha1.Queue) { o.ResourceVersion = "2" }, true},
		"generation": {func(o *v1alpha1.Queue) { o.Generation = 2 }, false},
		"made anew":  {func(o *v1alpha1.Queue) { o.UID = "v" }, false},
		"finalizer":  {func(o *v1alpha1.Queue) { o.Finalizers = []string{v1alpha1.QueueFinalizer} }, false},
		"deserved":   {func(o *v1alpha1.Queue) { o.Spec.Deserved.GPU = quantity("2") }, false},
		"by model":   {func(o *v1alpha1.Queue) { o.Spec.Deserved.GPUModels["A"] = resource.MustParse("2") }, false},
		"no amount":  {func(o *v1alpha1.Queue) { o.Spec.Deserved.GPU = nil }, false},
		"selector":   {func(o *v1alpha1.Queue) { o.Spec.NamespaceSelector = nil }, false},
		"timeout":    {func(o *v1alpha1.Queue) { o.Spec.Gang.HoldTimeout = nil }, false},
		"minRuntime": {func(o *v1alpha1.Queue) { o.Spec.Reclaim.MinRuntime.Duration = 1 }, false},
	}
	for name, tc := range cases {
		o := base()
		tc.change(o)
		a, b := QueueOf(base(), 100), QueueOf(o, 100)
		if a.Same(b) != tc.same || b.Same(a) != tc.same {
			t.Errorf("%s: same is %v, want %v", name, a.Same(b), tc.same)
		}
	}
}

func TestNamespacesDifferByTheirLabels(t *testing.T) {
	a := &Namespace{Name: "n", Labels: map[string]string{"a": "b"}}
	if !a.Same(&Namespace{Name: "n", Labels: map[string]string{"a": "b"}}) || a.Same(&Namespace{Name: "n"}) || a.Same(&Namespace{Name: "m", Labels: a.Labels}) {
		t.Error("namespaces are not compared by name and labels")
	}
}
