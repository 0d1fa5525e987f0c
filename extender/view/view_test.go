package view

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tranche-dev/tranche/extender/internal/fixture"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/tests/testkit"
)

var res = contract.DefaultResources()

func TestPodsWithoutGPUsAreNothing(t *testing.T) {
	if got := PodOf(fixture.Pod("p", "", ""), res); got != nil {
		t.Errorf("got %+v", got)
	}
}

func TestPodOf(t *testing.T) {
	init := fixture.Identify(testkit.MakePod("demo", "p").
		InitContainer("side", testkit.Sidecar).
		InitContainer("init", testkit.Shares("20")).
		Container("log").
		Container("main", testkit.Shares("50")).Obj())
	v := PodOf(init, res)
	want := []contract.ContainerRole{{Name: "init", Role: contract.RoleInit}, {Name: "main", Role: contract.RoleApp}}
	if diff := cmp.Diff(want, v.Roles); diff != "" || v.Problem != "" || v.Node != "" || v.Plan != nil {
		t.Errorf("%+v, roles (-want +got):\n%s", v, diff)
	}
	broken := PodOf(fixture.Pod("p", "101", "0"), res)
	if len(broken.Request.Demands) != 0 || len(broken.Roles) != 2 || strings.Contains(broken.Problem, "\n") || !strings.Contains(broken.Problem, "; ") {
		t.Errorf("broken request: %+v", broken)
	}
}

func TestPlansAreReadFromBoundPodsOnly(t *testing.T) {
	pod := fixture.Pod("p", "50")
	bound := fixture.Bound(t, pod, "a", map[string]contract.Grant{"c0": {GPU: "g", Shares: 50}})
	forged := bound.DeepCopy()
	forged.Spec.NodeName = ""
	elsewhere := bound.DeepCopy()
	elsewhere.Spec.NodeName = "b"
	garbled := bound.DeepCopy()
	garbled.Annotations[contract.PlanAnnotation] = "{"
	cases := map[string]struct {
		pod           *corev1.Pod
		plan, problem bool
	}{
		"bound":                {bound, true, false},
		"pending, forged":      {forged, false, false},
		"bound elsewhere":      {elsewhere, false, true},
		"bound, plan unusable": {garbled, false, true},
		"bound without a plan": {func() *corev1.Pod { p := pod.DeepCopy(); p.Spec.NodeName = "a"; return p }(), false, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			v := PodOf(tc.pod, res)
			if (v.Plan != nil) != tc.plan || (v.PlanProblem != "") != tc.problem {
				t.Errorf("plan %v, problem %q", v.Plan, v.PlanProblem)
			}
		})
	}
}

func TestDevicesAreThoseOfOurPlugin(t *testing.T) {
	bound := fixture.Bound(t, fixture.Pod("p", "50", "1 GPU"), "a", map[string]contract.Grant{"c0": {GPU: "g", Shares: 50}})
	both := fixture.Reported(fixture.Reported(bound, "c0", res.Share, 25, "GPU-1", "GPU-2"), "c1", res.GPU, 1, "GPU-3")
	want := map[string]Devices{
		"c0": {Count: map[contract.GPUUUID]int{"GPU-1": 25, "GPU-2": 25}},
		"c1": {Whole: true, Count: map[contract.GPUUUID]int{"GPU-3": 1}},
	}
	if diff := cmp.Diff(want, PodOf(both, res).Devices); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	foreign := fixture.Reported(bound, "c1", res.GPU, 1, "GPU-3")
	foreign.Status.ContainerStatuses[0].AllocatedResourcesStatus[0].Resources[0].ResourceID = "GPU-3"
	if got := PodOf(foreign, res).Devices; got != nil {
		t.Errorf("devices of another plugin: %v", got)
	}
	other := fixture.Reported(bound, "c1", "example.com/fpga", 1, "GPU-3")
	if got := PodOf(other, res).Devices; got != nil {
		t.Errorf("devices of another resource: %v", got)
	}
}

// Whoever may write the phase of a pod does not end its containers by that.
func TestAPodHasEndedWhenNoContainerRuns(t *testing.T) {
	running := []corev1.ContainerStatus{{Name: "x", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	terminated := []corev1.ContainerStatus{{Name: "x", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}}
	waiting := []corev1.ContainerStatus{{Name: "x", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}}}
	const failed, succeeded = corev1.PodFailed, corev1.PodSucceeded
	cases := map[string]struct {
		status                   corev1.PodStatus
		wantEnded, wantSucceeded bool
	}{
		"running":                                {status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: running}},
		"between two runs":                       {status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: terminated}},
		"refused by its kubelet":                 {corev1.PodStatus{Phase: failed}, true, false},
		"evicted before it began":                {corev1.PodStatus{Phase: failed, ContainerStatuses: waiting}, true, false},
		"failed":                                 {corev1.PodStatus{Phase: failed, InitContainerStatuses: terminated, ContainerStatuses: terminated}, true, false},
		"succeeded":                              {corev1.PodStatus{Phase: succeeded, ContainerStatuses: terminated}, true, true},
		"said to have failed, but runs":          {status: corev1.PodStatus{Phase: failed, ContainerStatuses: running}},
		"said to have succeeded, a sidecar runs": {status: corev1.PodStatus{Phase: succeeded, InitContainerStatuses: running, ContainerStatuses: terminated}},
		"succeeded while somebody looks on":      {status: corev1.PodStatus{Phase: succeeded, ContainerStatuses: terminated, EphemeralContainerStatuses: running}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			pod := fixture.Pod("p", "50")
			pod.Labels[contract.GangLabel] = "g"
			pod.Status = tc.status
			v := PodOf(pod, res)
			if v.Member == nil {
				t.Fatal("it is in no gang")
			}
			if v.Ended != tc.wantEnded || v.Member.Succeeded != tc.wantSucceeded {
				t.Errorf("ended %t, succeeded %t; want %t, %t", v.Ended, v.Member.Succeeded, tc.wantEnded, tc.wantSucceeded)
			}
		})
	}
}

func TestSameDecision(t *testing.T) {
	bound := fixture.Bound(t, fixture.Pod("p", "50"), "a", map[string]contract.Grant{"c0": {GPU: "g", Shares: 50}})
	change := func(f func(*corev1.Pod)) *corev1.Pod {
		p := bound.DeepCopy()
		f(p)
		return p
	}
	cases := map[string]struct {
		pod  *corev1.Pod
		want bool
	}{
		"a condition":  {change(func(p *corev1.Pod) { p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady}} }), true},
		"a label":      {change(func(p *corev1.Pod) { p.Labels["x"] = "y" }), true},
		"running":      {change(func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }), true},
		"ended":        {change(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), false},
		"deleting":     {change(func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }), false},
		"another plan": {fixture.Bound(t, fixture.Pod("p", "50"), "a", map[string]contract.Grant{"c0": {GPU: "h", Shares: 50}}), false},
		"no plan":      {change(func(p *corev1.Pod) { delete(p.Annotations, contract.PlanAnnotation) }), false},
		"a model":      {change(func(p *corev1.Pod) { p.Annotations[contract.ModelAnnotation] = "m" }), false},
		"devices":      {fixture.Reported(bound, "c0", res.Share, 50, "g"), false},
		"another pod":  {change(func(p *corev1.Pod) { p.UID = "other" }), false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := PodOf(tc.pod, res).SameDecision(PodOf(bound, res)); got != tc.want {
				t.Errorf("same %v, want %v", got, tc.want)
			}
		})
	}
}

func TestNodeOf(t *testing.T) {
	broken := fixture.ForeignNode("broken")
	broken.Annotations = map[string]string{contract.InventoryAnnotation: "{"}
	cases := map[string]struct {
		node              *corev1.Node
		gpus              int
		foreign, isBroken bool
	}{
		"ours":            {fixture.Node(t, "a", fixture.Inventory("a", 2)), 2, false, false},
		"no GPUs":         {fixture.Node(t, "a", contract.Inventory{}), 0, false, false},
		"another plugin":  {fixture.ForeignNode("f"), 0, true, false},
		"ours and broken": {broken, 0, false, true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			n := NodeOf(tc.node, res)
			gpus := 0
			if n.Inventory != nil {
				gpus = len(n.Inventory.GPUs)
			}
			if gpus != tc.gpus || n.Foreign() != tc.foreign || (n.Problem != "") != tc.isBroken {
				t.Errorf("got %+v", n)
			}
		})
	}
}

func TestWholeOnly(t *testing.T) {
	cases := map[string]struct {
		pod  *corev1.Pod
		want bool
	}{
		"whole GPUs":         {fixture.Pod("p", "1 GPU", "2 GPU"), true},
		"one a share":        {fixture.Pod("p", "1 GPU", "50"), false},
		"of a model":         {testkit.MakePod("d", "p").Container("c", testkit.GPUs("1")).Annotation(contract.ModelAnnotation, "m").Obj(), false},
		"isolated":           {testkit.MakePod("d", "p").Container("c", testkit.GPUs("1")).Annotation(contract.IsolationAnnotation, contract.IsolationRequired).Obj(), false},
		"not understandable": {fixture.Pod("p", "0 GPU"), false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := PodOf(tc.pod, res).WholeOnly(); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}
