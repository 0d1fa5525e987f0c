package validate_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/webhook/mutate"
	"github.com/tranche-dev/tranche/webhook/validate"
)

var defaults = mutate.Defaults{Resources: contract.DefaultResources(), Queue: "default", GangGate: true}

func parse(t testing.TB, text string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	if err := yaml.UnmarshalStrict([]byte(text), pod); err != nil {
		t.Fatalf("pod in test: %v\n%s", err, text)
	}
	return pod
}

func TestCreateRefusesWhatMutationDidNotSee(t *testing.T) {
	cases := map[string]struct {
		namespace mutate.Namespace
		pod       string
		want      []string
	}{
		"as mutation leaves it, without the toleration that an administrator may remove": {
			pod: `
metadata: {annotations: {tranche.dev/gpu-fraction: "0.5"}}
spec:
  containers:
  - {name: main, resources: {limits: {nvidia.com/gpu-share: "50"}, requests: {nvidia.com/gpu-share: "50"}}}
  - {name: beside, env: [{name: NVIDIA_VISIBLE_DEVICES, value: void}]}`,
		},
		"memory counted on another fleet than ours": {
			pod: `
metadata: {annotations: {tranche.dev/gpu-memory: 20Gi}}
spec:
  containers:
  - {name: main, resources: {limits: {nvidia.com/gpu-share: "7"}, requests: {nvidia.com/gpu-share: "7"}}}`,
		},
		"no GPU": {pod: `spec: {containers: [{name: main}]}`},
		"a fraction that was never translated": {
			pod: `
metadata: {annotations: {tranche.dev/gpu-fraction: "0.5"}}
spec: {containers: [{name: main}]}`,
			want: []string{"untranslated: container main asks for part of a GPU, but its limits lack nvidia.com/gpu-share: 50, so that it would get none; write that limit, or find out which admission webhook removes it or keeps Tranche's from adding it"},
		},
		"a whole GPU where the namespace gives a fraction": {
			namespace: mutate.Namespace{Name: "team", DefaultFraction: "0.5"},
			pod:       `spec: {containers: [{name: main, resources: {limits: {nvidia.com/gpu: "1"}}}]}`,
			want:      []string{"untranslated: container main asks for part of a GPU, but its limits lack nvidia.com/gpu-share: 50, so that it would get none; write that limit, or find out which admission webhook removes it or keeps Tranche's from adding it"},
		},
		"a container injected after mutation": {
			pod: `
spec:
  initContainers: [{name: injected}]
  containers: [{name: main, resources: {limits: {nvidia.com/gpu: "1"}}}]`,
			want: []string{"untranslated: container injected asks for no GPU but could see those of other containers; set NVIDIA_VISIBLE_DEVICES=void in its env, where it is written or in the webhook that injects it"},
		},
		"a member without the gate, which another webhook took away: the extender places it with its gang all the same": {
			pod: `
metadata: {labels: {tranche.dev/gang: g}}
spec: {containers: [{name: main, resources: {limits: {nvidia.com/gpu: "1"}}}]}`,
		},
		"the gate on a single pod, which its queue wanted a moment ago": {
			pod: `
spec: {schedulingGates: [{name: tranche.dev/admission}], containers: [{name: main, resources: {limits: {nvidia.com/gpu: "1"}}}]}`,
		},
		"a member without GPUs": {
			pod: `
metadata: {labels: {tranche.dev/gang: g}}
spec: {containers: [{name: main, resources: {limits: {tranche.dev/member: "0"}, requests: {tranche.dev/member: "0"}}}, {name: beside}]}`,
		},
		"a member without GPUs, of which nobody would tell the extender": {
			pod: `
metadata: {labels: {tranche.dev/gang: g}}
spec: {containers: [{name: main}, {name: beside}]}`,
			want: []string{"untranslated: the pod is in a gang, but the limits of its container main lack tranche.dev/member: 0, so that the scheduler would start it without the other members; write that limit, or find out which admission webhook removes it or keeps Tranche's from adding it"},
		},
		"a member that asks for more of what no node has": {
			pod: `
metadata: {labels: {tranche.dev/gang: g}}
spec: {containers: [{name: main, resources: {limits: {tranche.dev/member: "1"}, requests: {tranche.dev/member: "1"}}}]}`,
			want: []string{"request: container main asks for tranche.dev/member: 1, of which no node has any; write 0, or leave it out: Tranche adds it to members of gangs that use no GPU"},
		},
		"a member that asks for no shares": {
			pod: `
metadata: {labels: {tranche.dev/gang: g}}
spec: {containers: [{name: main, resources: {limits: {nvidia.com/gpu-share: "0"}, requests: {nvidia.com/gpu-share: "0"}}}]}`,
			want: []string{"request: container main asks for nvidia.com/gpu-share: 0; write at least 1, or leave it out if the container needs no GPU"},
		},
		"a single pod that asks for no shares": {
			pod:  `spec: {containers: [{name: main, resources: {limits: {nvidia.com/gpu-share: "0"}, requests: {nvidia.com/gpu-share: "0"}}}]}`,
			want: []string{"request: container main asks for nvidia.com/gpu-share: 0; write at least 1, or leave it out if the container needs no GPU"},
		},
		"everything that mutation refuses, should another webhook bring it in": {
			pod: `
metadata: {annotations: {tranche.dev/plan: "{}"}}
spec: {containers: [{name: main}]}`,
			want: []string{"forged: annotation tranche.dev/plan is for Tranche alone to write; remove it from the pod or from the template that it is made from"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := validate.Create(mutate.Input{Pod: parse(t, tc.pod), Namespace: tc.namespace, Defaults: defaults})
			if diff := cmp.Diff(tc.want, texts(got)); diff != "" {
				t.Errorf("refusals (-want +got):\n%s", diff)
			}
		})
	}
}

func texts(refusals []mutate.Refusal) []string {
	var texts []string
	for _, r := range refusals {
		texts = append(texts, string(r.Reason)+": "+r.Message)
	}
	return texts
}

func TestUpdateFreezesWhatWasAskedAndPlanned(t *testing.T) {
	const (
		settled = " cannot be changed, added or removed once the pod exists; create a new pod with what it shall ask for, or change the template that pods are made from"
		walked  = "frozen: label tranche.dev/gang cannot be changed, added or removed once the pod exists, since its gang counts on it; create a new pod with the label that it shall have, or change the template that pods are made from"
		moved   = "frozen: label tranche.dev/queue cannot be changed, added or removed once the pod exists; to move a pod to another queue delete it and create it with the other label, or change the template that pods are made from"
		ours    = " is for Tranche alone to write; leave it as it is"
	)
	cases := map[string]struct {
		old, pod string
		want     []string
	}{
		"a change": {
			old:  `metadata: {annotations: {tranche.dev/gpu-fraction: "0.5"}}`,
			pod:  `metadata: {annotations: {tranche.dev/gpu-fraction: "0.6"}}`,
			want: []string{"frozen: annotation tranche.dev/gpu-fraction" + settled},
		},
		"a removal, also of all annotations": {
			old:  `metadata: {annotations: {tranche.dev/plan: "{}", tranche.dev/gpu-memory.main: 1Gi}}`,
			pod:  `metadata: {}`,
			want: []string{"frozen: annotation tranche.dev/gpu-memory.main" + settled, "frozen: annotation tranche.dev/plan" + ours},
		},
		"an addition, also of nothing": {
			old: `metadata: {}`,
			pod: `metadata: {annotations: {tranche.dev/retry: "", tranche.dev/isolation: required, tranche.dev/translated-from: x}}`,
			want: []string{
				"frozen: annotation tranche.dev/isolation" + settled,
				"frozen: annotation tranche.dev/retry" + ours,
				"frozen: annotation tranche.dev/translated-from" + ours,
			},
		},
		"every other one that is asked for": {
			old: `metadata: {annotations: {tranche.dev/gpu-count: "2", tranche.dev/container: a, tranche.dev/gpu-model: x, tranche.dev/placement: spread, tranche.dev/gpu-fraction.a: "1"}}`,
			pod: `metadata: {annotations: {tranche.dev/gpu-count: "3", tranche.dev/container: b, tranche.dev/gpu-model: y, tranche.dev/placement: binpack, tranche.dev/gpu-fraction.a: "0.5"}}`,
			want: []string{
				"frozen: annotation tranche.dev/container" + settled,
				"frozen: annotation tranche.dev/gpu-count" + settled,
				"frozen: annotation tranche.dev/gpu-fraction.a" + settled,
				"frozen: annotation tranche.dev/gpu-model" + settled,
				"frozen: annotation tranche.dev/placement" + settled,
			},
		},
		"another queue": {
			old:  `metadata: {labels: {tranche.dev/queue: a}}`,
			pod:  `metadata: {labels: {tranche.dev/queue: b}}`,
			want: []string{moved},
		},
		"a queue left, with all labels": {
			old:  `metadata: {labels: {tranche.dev/queue: a}}`,
			pod:  `metadata: {}`,
			want: []string{moved},
		},
		"a queue joined": {
			old:  `metadata: {labels: {b: c}}`,
			pod:  `metadata: {labels: {b: c, tranche.dev/queue: ""}}`,
			want: []string{moved},
		},
		"another queue and gang": {
			old:  `metadata: {labels: {tranche.dev/queue: a}}`,
			pod:  `metadata: {labels: {tranche.dev/queue: b, tranche.dev/gang: g}}`,
			want: []string{walked, moved},
		},
		"the same queue, and others' labels": {
			old: `metadata: {labels: {tranche.dev/queue: a, b: c}}`,
			pod: `metadata: {labels: {tranche.dev/queue: a}}`,
		},
		"nothing of ours: labels, finalizers, other annotations, even on a pod that would be refused today": {
			old: `
metadata:
  labels: {a: b}
  finalizers: [batch.kubernetes.io/job-tracking]
  annotations: {tranche.dev/gpu-fraction: nonsense, tranche.dev/plan: forged, example.com/a: b}
spec: {containers: [{name: main, env: [{name: NVIDIA_VISIBLE_DEVICES, value: all}]}]}`,
			pod: `
metadata:
  deletionTimestamp: "2026-01-01T00:00:00Z"
  annotations: {tranche.dev/gpu-fraction: nonsense, tranche.dev/plan: forged, example.com/c: d}
spec: {containers: [{name: main, image: new, env: [{name: NVIDIA_VISIBLE_DEVICES, value: all}]}]}`,
		},
		"no annotations at all": {old: `metadata: {}`, pod: `metadata: {}`},
		"another gang": {
			old:  `metadata: {labels: {tranche.dev/gang: a}}`,
			pod:  `metadata: {labels: {tranche.dev/gang: b}}`,
			want: []string{walked},
		},
		"a gang left, with all labels": {
			old:  `metadata: {labels: {tranche.dev/gang: a}, annotations: {tranche.dev/gang-min-count: "4"}}`,
			pod:  `metadata: {annotations: {tranche.dev/gang-min-count: "4"}}`,
			want: []string{walked},
		},
		"a gang joined, with a size": {
			old:  `metadata: {}`,
			pod:  `metadata: {labels: {tranche.dev/gang: a}, annotations: {tranche.dev/gang-min-count: "4"}}`,
			want: []string{walked},
		},
		"a gang that grows": {
			old: `metadata: {labels: {tranche.dev/gang: a}, annotations: {tranche.dev/gang-min-count: "4"}}`,
			pod: `metadata: {labels: {tranche.dev/gang: a}, annotations: {tranche.dev/gang-min-count: "8"}}`,
		},
		"a gang that gets its size, and others' labels": {
			old: `metadata: {labels: {tranche.dev/gang: a}}`,
			pod: `metadata: {labels: {tranche.dev/gang: a, b: c}, annotations: {tranche.dev/gang-min-count: "8"}}`,
		},
		"a gang that loses its size": {
			old: `metadata: {labels: {tranche.dev/gang: a}, annotations: {tranche.dev/gang-min-count: "4"}}`,
			pod: `metadata: {labels: {tranche.dev/gang: a}}`,
		},
		"a native group that gets its size": {
			old: `spec: {schedulingGroup: {podGroupName: native}}`,
			pod: "metadata: {annotations: {tranche.dev/gang-min-count: '8'}}\nspec: {schedulingGroup: {podGroupName: native}}",
		},
		"a size that makes no sense": {
			old:  `metadata: {labels: {tranche.dev/gang: a}, annotations: {tranche.dev/gang-min-count: "4"}}`,
			pod:  `metadata: {labels: {tranche.dev/gang: a}, annotations: {tranche.dev/gang-min-count: many}}`,
			want: []string{`gang: annotation tranche.dev/gang-min-count is "many"; write a whole number from 1 to 100000, such as "4"`},
		},
		"a size without a gang": {
			old:  `metadata: {}`,
			pod:  `metadata: {annotations: {tranche.dev/gang-min-count: "4"}}`,
			want: []string{"gang: annotation tranche.dev/gang-min-count says how large a gang is, but no label names the gang; add the label tranche.dev/gang with a name that all members have, or remove the annotation"},
		},
		"a size that made no sense before, and stays": {
			old: `metadata: {labels: {tranche.dev/gang: Bad}, annotations: {tranche.dev/gang-min-count: many}}`,
			pod: `metadata: {labels: {tranche.dev/gang: Bad, a: b}, annotations: {tranche.dev/gang-min-count: many}}`,
		},
		"gates, by anybody": {
			old: `spec: {schedulingGates: [{name: tranche.dev/admission}]}`,
			pod: `spec: {}`,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := validate.Update(parse(t, tc.old), parse(t, tc.pod))
			if diff := cmp.Diff(tc.want, texts(got)); diff != "" {
				t.Errorf("refusals (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEphemeralContainersMustHideGPUs(t *testing.T) {
	old := parse(t, `spec: {containers: [{name: main, resources: {limits: {nvidia.com/gpu: "1"}}}]}`)
	with := func(env string) *corev1.Pod {
		pod := old.DeepCopy()
		pod.Spec.EphemeralContainers = parse(t, `spec: {ephemeralContainers: [{name: debug, env: [`+env+`]}]}`).Spec.EphemeralContainers
		return pod
	}
	plain := parse(t, `spec: {containers: [{name: main}]}`)
	from := plain.DeepCopy()
	from.Spec.EphemeralContainers = parse(t, `spec: {ephemeralContainers: [{name: debug, envFrom: [{configMapRef: {name: all}}]}]}`).Spec.EphemeralContainers
	cases := map[string]struct {
		pod  *corev1.Pod
		want []string
	}{
		"in a pod without GPUs, with an environment from elsewhere": {pod: from, want: []string{"untranslated: container debug asks for no GPU but could see those of other containers; set NVIDIA_VISIBLE_DEVICES=void in its env, where it is written or in the webhook that injects it"}},
		"hidden":  {pod: with(`{name: NVIDIA_VISIBLE_DEVICES, value: void}`)},
		"visible": {pod: with(``), want: []string{"untranslated: container debug asks for no GPU but could see those of other containers; set NVIDIA_VISIBLE_DEVICES=void in its env, where it is written or in the webhook that injects it"}},
		"asking":  {pod: with(`{name: NVIDIA_VISIBLE_DEVICES, value: all}`), want: []string{"environment: container debug sets NVIDIA_VISIBLE_DEVICES, but a container sees the GPUs that it asks for and no others; remove the variable and ask with nvidia.com/gpu-share, nvidia.com/gpu or the annotation tranche.dev/gpu-fraction"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := validate.EphemeralContainers(old, mutate.Input{Pod: tc.pod, Defaults: defaults})
			if diff := cmp.Diff(tc.want, texts(got)); diff != "" {
				t.Errorf("refusals (-want +got):\n%s", diff)
			}
		})
	}
}
