package mutate_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podresource "k8s.io/component-helpers/resource"
	"pgregory.net/rapid"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
	"github.com/tranche-dev/tranche/webhook/mutate"
)

// pods draws pods that are mostly sensible, so that most get past refusals.
func pods() *rapid.Generator[*corev1.Pod] {
	return rapid.Custom(func(t *rapid.T) *corev1.Pod {
		pod := &corev1.Pod{}
		names := []string{"a", "b", "c", "d"}
		inits := rapid.IntRange(0, 2).Draw(t, "inits")
		apps := rapid.IntRange(1, 2).Draw(t, "apps")
		always := corev1.ContainerRestartPolicyAlways
		for i := range inits {
			c := drawContainer(t, names[i])
			if rapid.Bool().Draw(t, "sidecar") {
				c.RestartPolicy = &always
			}
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
		}
		for i := range apps {
			pod.Spec.Containers = append(pod.Spec.Containers, drawContainer(t, names[inits+i]))
		}
		target := rapid.SampledFrom(names[:inits+apps])
		annotate := func(key, value string) {
			if pod.Annotations == nil {
				pod.Annotations = map[string]string{}
			}
			pod.Annotations[key] = value
		}
		// drawn picks a value that makes sense, or one time in ten one that does not.
		drawn := func(bad string, good ...string) *rapid.Generator[string] {
			return rapid.Custom(func(t *rapid.T) string {
				if rapid.IntRange(0, 9).Draw(t, "bad") == 9 {
					return bad
				}
				return rapid.SampledFrom(good).Draw(t, "good")
			})
		}
		rarely := rapid.IntRange(0, 5)
		part := map[string]*rapid.Generator[string]{
			contract.FractionAnnotation: drawn("2", "0.5", "1", "0.001", ".25", "0.123456789"),
			contract.MemoryAnnotation:   drawn("90Gi", "20Gi", "512Mi", "1Mi", "79Gi"),
			contract.CountAnnotation:    drawn("x", "1", "2", "3"),
			contract.ContainerAnnotation: rapid.Custom(func(t *rapid.T) string {
				return target.Draw(t, "target")
			}),
			contract.ModelAnnotation:        drawn("", "NVIDIA-A30", "NVIDIA-A30,other"),
			contract.PlacementAnnotation:    drawn("x", "least-waste", "binpack", "spread"),
			contract.IsolationAnnotation:    rapid.Just("required"),
			contract.GangMinCountAnnotation: drawn("x", "1", "4"),
			"example.com/own":               rapid.Just("kept"),
		}
		for _, key := range slices.Sorted(maps.Keys(part)) {
			if rarely.Draw(t, "has "+key) == 0 {
				annotate(key, part[key].Draw(t, key))
			}
		}
		for _, key := range []string{contract.FractionAnnotation, contract.MemoryAnnotation} {
			if rarely.Draw(t, "has per container "+key) == 0 {
				annotate(key+"."+target.Draw(t, "target"), part[key].Draw(t, key))
			}
		}
		if rapid.Bool().Draw(t, "has label") {
			pod.Labels = map[string]string{"app": "x"}
			if rapid.Bool().Draw(t, "has queue") {
				pod.Labels[contract.QueueLabel] = rapid.SampledFrom(append(slices.Sorted(maps.Keys(company)), "unknown", "")).Draw(t, "queue")
			}
			if rapid.Bool().Draw(t, "has gang") {
				pod.Labels[contract.GangLabel] = drawn("Bad", "gang").Draw(t, "gang")
			}
		}
		pod.Spec.Tolerations = rapid.SliceOfN(rapid.SampledFrom([]corev1.Toleration{
			{Operator: corev1.TolerationOpExists},
			{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists},
			{Key: "nvidia.com/gpu", Value: "x"},
			{Key: "other", Operator: corev1.TolerationOpExists},
		}), 0, 2).Draw(t, "tolerations")
		pod.Spec.SchedulingGates = rapid.SliceOfNDistinct(rapid.SampledFrom([]corev1.PodSchedulingGate{
			{Name: "a"}, {Name: "b"}, {Name: "c"}, {Name: contract.AdmissionGate},
		}), 0, 2, rapid.ID).Draw(t, "gates")
		if rarely.Draw(t, "has group") == 0 {
			pod.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: new("native")}
		}
		if rarely.Draw(t, "has owner") == 0 {
			kind := rapid.SampledFrom([]string{"DaemonSet", "ReplicaSet"}).Draw(t, "owner's kind")
			pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: "o", Controller: new(true)}}
		}
		if rarely.Draw(t, "has node") == 0 && len(pod.Spec.SchedulingGates) == 0 {
			pod.Spec.NodeName = "n"
		}
		return pod
	})
}

func drawContainer(t *rapid.T, name string) corev1.Container {
	c := corev1.Container{Name: name}
	c.Env = rapid.SliceOfN(rapid.SampledFrom([]corev1.EnvVar{
		{Name: "A", Value: "b"}, {Name: "B", Value: "all"}, {Name: "NVIDIA_VISIBLE_DEVICES", Value: "void"},
	}), 0, 2).Draw(t, "env")
	amounts := map[corev1.ResourceName]*rapid.Generator[string]{
		"nvidia.com/gpu-share": rapid.SampledFrom([]string{"1", "50", "100", "60", "30", "20", "101", "0"}),
		"nvidia.com/gpu":       rapid.SampledFrom([]string{"1", "1", "2"}),
		"tranche.dev/member":   rapid.SampledFrom([]string{"0", "0", "0", "0", "0", "0", "0", "0", "0", "1"}),
		"cpu":                  rapid.Just("500m"),
	}
	asks := false
	for _, name := range []corev1.ResourceName{"cpu", "tranche.dev/member", "nvidia.com/gpu-share", "nvidia.com/gpu"} {
		if asks || rapid.IntRange(0, 2).Draw(t, "has "+string(name)) != 0 {
			continue
		}
		asks = strings.HasPrefix(string(name), "nvidia.com/") && rapid.IntRange(0, 9).Draw(t, "may ask for both") != 9
		q := resource.MustParse(amounts[name].Draw(t, string(name)))
		if c.Resources.Limits == nil {
			c.Resources.Limits = corev1.ResourceList{}
		}
		c.Resources.Limits[name] = q
		if rapid.Bool().Draw(t, "requests too") { // the API server copies limits, other callers may not
			if c.Resources.Requests == nil {
				c.Resources.Requests = corev1.ResourceList{}
			}
			c.Resources.Requests[name] = q
		}
	}
	return c
}

func inputs() *rapid.Generator[mutate.Input] {
	return rapid.Custom(func(t *rapid.T) mutate.Input {
		return mutate.Input{
			Pod: pods().Draw(t, "pod"),
			Namespace: mutate.Namespace{
				Name:            "team",
				Queue:           rapid.SampledFrom([]string{"", "open", "busy", "below-cores"}).Draw(t, "namespace queue"),
				DefaultFraction: rapid.SampledFrom([]string{"", "", "0.5", "0.3", "x"}).Draw(t, "namespace fraction"),
			},
			Owner:    drawOwner(t),
			Fleet:    rapid.SampledFrom([]mutate.Fleet{mixed, {}}).Draw(t, "fleet"),
			Queues:   rapid.SampledFrom([]mutate.Queues{company, company, {}, nil}).Draw(t, "queues"),
			Defaults: rapid.SampledFrom([]mutate.Defaults{queueDefaults, queueDefaults, gatedDefaults, defaults}).Draw(t, "defaults"),
		}
	})
}

func drawOwner(t *rapid.T) *mutate.Owner {
	label := func(bad, good string) string {
		return rapid.SampledFrom([]string{"", "", good, good, good, good, bad}).Draw(t, good)
	}
	if rapid.Bool().Draw(t, "no owner") {
		return nil
	}
	o := &mutate.Owner{Kind: "Job", Name: "train", Labels: map[string]string{}, Annotations: map[string]string{"tranche.dev/gpu-count": "2"}}
	if rapid.IntRange(0, 5).Draw(t, "unread") == 5 {
		o.Unread = "does not exist any more"
		return o
	}
	for key, value := range map[string]string{contract.GangLabel: label("Bad", "owners-gang"), contract.QueueLabel: label("owners-queue", "owners-queue")} {
		if value != "" {
			o.Labels[key] = value
		}
	}
	if size := label("x", "8"); size != "" {
		o.Annotations[contract.GangMinCountAnnotation] = size
	}
	return o
}

// The API server calls again when another webhook has changed the pod.
func TestPodTwiceIsPodOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := inputs().Draw(t, "input")
		before := in.Pod.DeepCopy()
		once := mutate.Pod(in)
		if !equality.Semantic.DeepEqual(before, in.Pod) {
			t.Fatalf("the input was changed:\n%s", cmp.Diff(before, in.Pod))
		}
		if len(once.Refusals) > 0 {
			return
		}
		in.Pod = once.Pod
		twice := mutate.Pod(in)
		if len(twice.Refusals) > 0 || twice.Pod != once.Pod {
			t.Fatalf("refusals %v, changed again:\n%s", twice.Refusals, cmp.Diff(once.Pod, twice.Pod))
		}
	})
}

// Translation must not change what is asked for, but for the namespace's default.
func TestPodKeepsTheRequest(t *testing.T) {
	res := defaults.Resources
	rapid.Check(t, func(t *rapid.T) {
		in := inputs().Draw(t, "input")
		want, err := contract.ParsePod(in.Pod, res)
		out := mutate.Pod(in)
		if err != nil {
			if len(out.Refusals) == 0 {
				t.Fatalf("accepted although: %v", err)
			}
			return
		}
		if len(out.Refusals) > 0 {
			return
		}
		if f, err := units.ParseFraction(in.Namespace.DefaultFraction); err == nil {
			for i, d := range want.Demands {
				if d.Whole && d.Count == 1 {
					want.Demands[i].Whole, want.Demands[i].Shares = false, f.Shares(res.PerGPU)
				}
			}
		}
		got, err := contract.ParsePod(out.Pod, res)
		if err != nil {
			t.Fatalf("the outcome makes no sense: %v", err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("request (-before +after):\n%s", diff)
		}
		for key, value := range in.Pod.Annotations {
			if out.Pod.Annotations[key] != value {
				t.Fatalf("annotation %s was changed from %q to %q", key, value, out.Pod.Annotations[key])
			}
		}
	})
}

// Scheduler and kubelet see what the ledger charges, or less where it depends
// on the GPU; nobody else sees a GPU; the rest of the pod is the user's.
func TestPodIsReadyForScheduler(t *testing.T) {
	res := defaults.Resources
	rapid.Check(t, func(t *rapid.T) {
		in := inputs().Draw(t, "input")
		out := mutate.Pod(in)
		if len(out.Refusals) > 0 {
			return
		}
		request, err := contract.ParsePod(out.Pod, res)
		if err != nil {
			t.Fatal(err)
		}
		if len(request.Demands) == 0 {
			leavesPodsWithoutGPUsAlone(t, &in, out.Pod)
			return
		}
		demands := map[string]contract.Demand{}
		for _, d := range request.Demands {
			demands[d.Name] = d
		}
		for _, c := range slices.Concat(out.Pod.Spec.InitContainers, out.Pod.Spec.Containers) {
			d, uses := demands[c.Name]
			if !uses {
				if !mutate.HidesGPUs(c.Env) {
					t.Fatalf("container %s sees the GPUs of its siblings", c.Name)
				}
				continue
			}
			name, most := d.Limit(res, 81920)
			limit, request := c.Resources.Limits[name], c.Resources.Requests[name]
			if limit.Cmp(request) != 0 || limit.Value() < int64(d.Count) || limit.Value() > most || d.Memory == 0 && limit.Value() != most {
				t.Fatalf("container %s: limit %s, request %s for %+v", c.Name, limit.String(), request.String(), d)
			}
		}
		if out.Pod.Labels[contract.QueueLabel] == "" {
			t.Fatalf("no queue")
		}
		taint := &corev1.Taint{Key: "nvidia.com/gpu", Value: "present", Effect: corev1.TaintEffectNoSchedule}
		if !slices.ContainsFunc(out.Pod.Spec.Tolerations, func(x corev1.Toleration) bool {
			return (x.Key == taint.Key || x.Key == "") && x.Operator == corev1.TolerationOpExists && (x.Effect == "" || x.Effect == taint.Effect)
		}) {
			t.Fatalf("tolerations %v", out.Pod.Spec.Tolerations)
		}
	})
}

// leavesPodsWithoutGPUsAlone: but for labels, the size of the gang, gates, and
// the 0 by which they come to the extender.
func leavesPodsWithoutGPUsAlone(t *rapid.T, in *mutate.Input, after *corev1.Pod) {
	before, settings := in.Pod, in.Defaults
	want := before.DeepCopy()
	want.Labels, want.Annotations, want.Spec.SchedulingGates = after.Labels, after.Annotations, after.Spec.SchedulingGates
	name, _, _, err := contract.GangOf(after)
	if err == nil && !free(before) && !contract.InterestsExtender(&before.Spec, defaults.Resources) {
		counted := podresource.PodRequests(before, podresource.PodResourcesOptions{})
		if name != "" {
			askForNone(&want.Spec.Containers[0], contract.MemberResource)
		} else if settings.RateCPUOnly && counted.Cpu().Sign() > 0 {
			askForNone(&want.Spec.Containers[0], contract.CPUOnlyResource)
		}
	}
	if !equality.Semantic.DeepEqual(want, after) {
		t.Fatalf("a pod without GPUs was changed (-want +got):\n%s", cmp.Diff(want, after))
	}
}

func askForNone(c *corev1.Container, name corev1.ResourceName) {
	for _, list := range []*corev1.ResourceList{&c.Resources.Limits, &c.Resources.Requests} {
		*list = maps.Clone(*list)
		if *list == nil {
			*list = corev1.ResourceList{}
		}
		(*list)[name] = resource.MustParse("0")
	}
}

// free says that a pod without GPUs is in no queue and no gang.
func free(pod *corev1.Pod) bool {
	return pod.Spec.NodeName != "" || len(pod.OwnerReferences) > 0 && pod.OwnerReferences[0].Kind == "DaemonSet"
}

// heldByQueue says, in other words than package mutate, whether a single pod of
// the queue must wait.
func heldByQueue(queues mutate.Queues, name, implicit string, usesGPU bool) bool {
	queue, exists := queues[name]
	switch {
	case !exists:
		return name != implicit
	case queue.Admission == v1alpha1.AdmissionDirect:
		return false
	case queue.Admission == v1alpha1.AdmissionGated, usesGPU && !queue.Open:
		return true
	}
	line := []string{name}
	for len(line) <= 16 && queues[line[len(line)-1]].Parent != "" {
		line = append(line, queues[line[len(line)-1]].Parent)
	}
	return slices.ContainsFunc(line, func(n string) bool { return queues[n].Stopped || !usesGPU && queues[n].Compute })
}

// Every member is gated, single pods are as their queue wants it, and gates of
// others stay where they are.
func TestPodIsGatedIfItMustWait(t *testing.T) {
	foreign := func(pod *corev1.Pod) []string {
		return slices.DeleteFunc(gates(pod), func(g string) bool { return g == contract.AdmissionGate })
	}
	rapid.Check(t, func(t *rapid.T) {
		in := inputs().Draw(t, "input")
		out := mutate.Pod(in)
		if !slices.Equal(foreign(in.Pod), foreign(out.Pod)) {
			t.Fatalf("gates of others were %v and are %v", foreign(in.Pod), foreign(out.Pod))
		}
		if len(out.Refusals) > 0 {
			return
		}
		request, err := contract.ParsePod(out.Pod, defaults.Resources)
		if err != nil {
			t.Fatal(err)
		}
		outside := len(request.Demands) == 0 && free(in.Pod)
		name, _, _, err := contract.GangOf(out.Pod)
		if err != nil && !outside {
			t.Fatalf("accepted although: %v", err)
		}
		queue := out.Pod.Labels[contract.QueueLabel]
		want := slices.Contains(gates(in.Pod), contract.AdmissionGate)
		switch {
		case outside:
			if want || queue != in.Pod.Labels[contract.QueueLabel] {
				t.Fatalf("a pod in no queue: gated %t, queue %q", want, queue)
			}
		case queue == "":
			t.Fatal("no queue")
		case name != "":
			want = want || in.Defaults.GangGate
		default:
			want = want || in.Defaults.QueueGate && in.Queues != nil && heldByQueue(in.Queues, queue, in.Defaults.Queue, len(request.Demands) > 0)
		}
		if got := slices.Contains(gates(out.Pod), contract.AdmissionGate); got != want {
			t.Fatalf("gang %q, queue %q: gated %t, want %t", name, queue, got, want)
		}
		for _, own := range []string{contract.GangLabel, contract.QueueLabel} {
			if value := in.Pod.Labels[own]; value != "" && out.Pod.Labels[own] != value {
				t.Fatalf("label %s was changed from %q to %q", own, value, out.Pod.Labels[own])
			}
		}
		if owner := in.Owner; owner != nil && !outside && in.Pod.Labels[contract.GangLabel] == "" {
			if want := owner.Labels[contract.GangLabel]; out.Pod.Labels[contract.GangLabel] != want {
				t.Fatalf("gang %q, want the owner's %q", out.Pod.Labels[contract.GangLabel], want)
			}
		}
	})
}

// Whoever runs between our two calls may take the label away: it comes back, and
// the gate does not come twice.
func TestReinvocationAfterOthersChangedTheGang(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := inputs().Draw(t, "input")
		once := mutate.Pod(in)
		if len(once.Refusals) > 0 || in.Owner == nil || in.Owner.Labels[contract.GangLabel] == "" {
			return
		}
		if request, err := contract.ParsePod(in.Pod, defaults.Resources); err == nil && len(request.Demands) == 0 && free(in.Pod) {
			return // nothing of the owner's comes back to a pod that is in no gang
		}
		changed := once.Pod.DeepCopy()
		if changed.Labels[contract.GangLabel] == in.Owner.Labels[contract.GangLabel] {
			delete(changed.Labels, contract.GangLabel)
		}
		changed.Spec.SchedulingGates = append(changed.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: "late"})
		want := once.Pod.DeepCopy()
		want.Spec.SchedulingGates = append(want.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: "late"})
		in.Pod = changed
		twice := mutate.Pod(in)
		if len(twice.Refusals) > 0 || !equality.Semantic.DeepEqual(want, twice.Pod) {
			t.Fatalf("refusals %v (-want +got):\n%s", twice.Refusals, cmp.Diff(want, twice.Pod))
		}
	})
}

// An injector that runs after us adds a container; we are then called again.
func TestPodHidesGPUsFromInjectedContainers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := inputs().Draw(t, "input")
		once := mutate.Pod(in)
		request, err := contract.ParsePod(once.Pod, defaults.Resources)
		if len(once.Refusals) > 0 || err != nil || len(request.Demands) == 0 {
			return
		}
		injected := once.Pod.DeepCopy()
		injected.Spec.Containers = append(injected.Spec.Containers, corev1.Container{Name: "injected"})
		in.Pod = injected
		twice := mutate.Pod(in)
		last := twice.Pod.Spec.Containers[len(twice.Pod.Spec.Containers)-1]
		if len(twice.Refusals) > 0 || !mutate.HidesGPUs(last.Env) {
			t.Fatalf("refusals %v, injected container %+v", twice.Refusals, last)
		}
	})
}

// Applied to the pod as a server sends it, with fields that we do not know and
// with or without empty parents, the patch gives the outcome.
func TestPatchGivesTheOutcome(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := inputs().Draw(t, "input")
		out := mutate.Pod(in)
		raw := serverJSON(t, in.Pod, rapid.Bool().Draw(t, "omit empty"))
		ops, err := json.Marshal(mutate.Patch(in.Pod, out.Pod))
		if err != nil {
			t.Fatal(err)
		}
		decoded, err := jsonpatch.DecodePatch(ops)
		if err != nil {
			t.Fatal(err)
		}
		options := jsonpatch.NewApplyOptions()
		options.SupportNegativeIndices = false
		patched, err := decoded.ApplyWithOptions(raw, options)
		if err != nil {
			t.Fatalf("apply %s to %s: %v", ops, raw, err)
		}
		got := &corev1.Pod{}
		if err := json.Unmarshal(patched, got); err != nil {
			t.Fatal(err)
		}
		if !equality.Semantic.DeepEqual(out.Pod, got) {
			t.Fatalf("patch %s gives (-want +got):\n%s", ops, cmp.Diff(out.Pod, got))
		}
		var generic map[string]any
		if err := json.Unmarshal(patched, &generic); err != nil {
			t.Fatal(err)
		}
		if generic["spec"].(map[string]any)["fromTheFuture"] != "kept" {
			t.Fatalf("an unknown field was lost: %s", patched)
		}
	})
}

// serverJSON is a pod as an API server of a newer release might send it.
func serverJSON(t *rapid.T, pod *corev1.Pod, omitEmpty bool) []byte {
	text, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	var generic map[string]any
	if err := json.Unmarshal(text, &generic); err != nil {
		t.Fatal(err)
	}
	spec := generic["spec"].(map[string]any)
	spec["fromTheFuture"] = "kept"
	if omitEmpty {
		delete(generic, "status")
		for _, kind := range []string{"containers", "initContainers"} {
			list, _ := spec[kind].([]any)
			for _, c := range list {
				c := c.(map[string]any)
				if r, ok := c["resources"].(map[string]any); ok && len(r) == 0 {
					delete(c, "resources")
				}
			}
		}
	} else {
		metadata := generic["metadata"].(map[string]any)
		for _, key := range []string{"labels", "annotations"} {
			if metadata[key] == nil {
				metadata[key] = map[string]any{}
			}
		}
		if spec["tolerations"] == nil {
			spec["tolerations"] = []any{}
		}
	}
	if text, err = json.Marshal(generic); err != nil {
		t.Fatal(err)
	}
	return text
}

func TestPatchIsMinimal(t *testing.T) {
	pod := parse(t, `
metadata: {annotations: {tranche.dev/gpu-fraction: "0.5"}, labels: {app: x}}
spec:
  containers:
  - {name: main, resources: {limits: {cpu: "1"}, requests: {cpu: "1"}}}
  - {name: beside, env: [{name: A, value: b}]}`)
	out := mutate.Pod(mutate.Input{Pod: pod, Fleet: mixed, Defaults: defaults})
	var got []string
	for _, op := range mutate.Patch(pod, out.Pod) {
		got = append(got, op.Json())
	}
	slices.Sort(got)
	want := []string{
		`{"op":"add","path":"/metadata/labels/tranche.dev~1queue","value":"default"}`,
		`{"op":"add","path":"/spec/containers/0/resources/limits/nvidia.com~1gpu-share","value":"50"}`,
		`{"op":"add","path":"/spec/containers/0/resources/requests/nvidia.com~1gpu-share","value":"50"}`,
		`{"op":"add","path":"/spec/containers/1/env/-","value":{"name":"NVIDIA_VISIBLE_DEVICES","value":"void"}}`,
		`{"op":"add","path":"/spec/tolerations","value":[{"key":"nvidia.com/gpu","operator":"Exists","effect":"NoSchedule"}]}`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("patch (-want +got):\n%s", diff)
	}
	if ops := mutate.Patch(out.Pod, out.Pod); ops != nil {
		t.Errorf("patch of nothing: %v", ops)
	}
}

func BenchmarkPod(b *testing.B) {
	big := parse(b, `
metadata: {annotations: {tranche.dev/gpu-fraction: "0.5", tranche.dev/gpu-model: NVIDIA-A30}}
spec: {containers: [{name: main}]}`)
	for i := range 10 {
		c := corev1.Container{Name: fmt.Sprintf("sidecar-%d", i)}
		for j := range 20 {
			c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("VARIABLE_%d", j), Value: "value"})
		}
		big.Spec.Containers = append(big.Spec.Containers, c)
	}
	cases := map[string]*corev1.Pod{
		"pod=plain":                parse(b, `spec: {containers: [{name: main}]}`),
		"pod=fraction":             parse(b, "metadata: {annotations: {tranche.dev/gpu-fraction: '0.5'}}\nspec: {containers: [{name: main}]}"),
		"pod=fraction/sidecars=10": big,
	}
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		b.Run(name, func(b *testing.B) {
			pod := cases[name]
			in := mutate.Input{Pod: pod, Fleet: mixed, Defaults: defaults}
			b.ReportAllocs()
			for b.Loop() {
				mutate.Patch(pod, mutate.Pod(in).Pod)
			}
		})
	}
}
