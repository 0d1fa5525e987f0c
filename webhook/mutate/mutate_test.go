package mutate_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/webhook/mutate"
)

var defaults = mutate.Defaults{Resources: contract.DefaultResources(), Queue: "default"}

// mixed has cards of three sizes.
var mixed = mutate.Fleet{Models: []mutate.Model{
	{Name: "NVIDIA-A100-SXM4-80GB", Memory: 81920},
	{Name: "NVIDIA-A30", Memory: 24576},
	{Name: "NVIDIA-L4", Memory: 23034},
}}

func parse(t testing.TB, text string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	if err := yaml.UnmarshalStrict([]byte(text), pod); err != nil {
		t.Fatalf("pod in test: %v\n%s", err, text)
	}
	return pod
}

func TestPodTranslatesForSchedulerAndKubelet(t *testing.T) {
	cases := map[string]struct {
		namespace    mutate.Namespace
		unknownFleet bool
		pod          string
		// want is the whole pod; empty: unchanged.
		want         string
		wantWarnings []string
	}{
		"a pod without GPUs gets its queue and nothing else, whatever the namespace's fraction": {
			namespace: mutate.Namespace{Queue: "team", DefaultFraction: "0.5"},
			pod: `
spec:
  containers:
  - {name: main, resources: {limits: {cpu: "1"}}}`,
			want: `
metadata: {labels: {tranche.dev/queue: team}}
spec:
  containers:
  - {name: main, resources: {limits: {cpu: "1"}}}`,
		},
		"a fraction becomes shares, rounded up": {
			pod: `
metadata: {annotations: {tranche.dev/gpu-fraction: "0.333"}}
spec:
  containers: [{name: main}]`,
			want: `
metadata: {annotations: {tranche.dev/gpu-fraction: "0.333"}, labels: {tranche.dev/queue: default}}
spec:
  containers:
  - {name: main, resources: {limits: {nvidia.com/gpu-share: "34"}, requests: {nvidia.com/gpu-share: "34"}}}
  tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]`,
		},
		"memory becomes the shares that it takes on the largest GPU": {
			pod: `
metadata: {annotations: {tranche.dev/gpu-memory: 20Gi}}
spec:
  containers: [{name: main}]`,
			want: `
metadata: {annotations: {tranche.dev/gpu-memory: 20Gi}, labels: {tranche.dev/queue: default}}
spec:
  containers:
  - {name: main, resources: {limits: {nvidia.com/gpu-share: "25"}, requests: {nvidia.com/gpu-share: "25"}}}
  tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]`,
		},
		"memory replaces a limit written by hand, which must not be too small for quotas or too large for the GPU": {
			pod: `
metadata: {annotations: {tranche.dev/gpu-memory: 20Gi}}
spec:
  containers:
  - {name: main, resources: {limits: {nvidia.com/gpu-share: "1"}, requests: {nvidia.com/gpu-share: "1"}}}`,
			want: `
metadata: {annotations: {tranche.dev/gpu-memory: 20Gi}, labels: {tranche.dev/queue: default}}
spec:
  containers:
  - {name: main, resources: {limits: {nvidia.com/gpu-share: "25"}, requests: {nvidia.com/gpu-share: "25"}}}
  tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]`,
		},
		"memory counts as one share per GPU while no GPU is known": {
			unknownFleet: true,
			pod: `
metadata: {annotations: {tranche.dev/gpu-memory: 20Gi, tranche.dev/gpu-count: "2"}}
spec:
  containers: [{name: main}]`,
			want: `
metadata: {annotations: {tranche.dev/gpu-memory: 20Gi, tranche.dev/gpu-count: "2"}, labels: {tranche.dev/queue: default}}
spec:
  containers:
  - {name: main, resources: {limits: {nvidia.com/gpu-share: "2"}, requests: {nvidia.com/gpu-share: "2"}}}
  tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]`,
			wantWarnings: []string{"no node has reported its GPUs yet, so container main counts as 1 of 100 shares per GPU until it is placed"},
		},
		"a fraction of several GPUs becomes their total": {
			pod: `
metadata: {annotations: {tranche.dev/gpu-fraction: "0.5", tranche.dev/gpu-count: "2"}}
spec:
  containers: [{name: main}]`,
			want: `
metadata: {annotations: {tranche.dev/gpu-fraction: "0.5", tranche.dev/gpu-count: "2"}, labels: {tranche.dev/queue: default}}
spec:
  containers:
  - {name: main, resources: {limits: {nvidia.com/gpu-share: "100"}, requests: {nvidia.com/gpu-share: "100"}}}
  tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]`,
		},
		"containers without a GPU beside one with it see none": {
			pod: `
metadata: {annotations: {tranche.dev/gpu-fraction.main: "0.5"}}
spec:
  initContainers:
  - {name: fetch}
  - {name: proxy, restartPolicy: Always, env: [{name: A, value: b}]}
  containers:
  - {name: main}
  - {name: hidden, env: [{name: NVIDIA_VISIBLE_DEVICES, value: void}]}`,
			want: `
metadata: {annotations: {tranche.dev/gpu-fraction.main: "0.5"}, labels: {tranche.dev/queue: default}}
spec:
  initContainers:
  - {name: fetch, env: [{name: NVIDIA_VISIBLE_DEVICES, value: void}]}
  - {name: proxy, restartPolicy: Always, env: [{name: A, value: b}, {name: NVIDIA_VISIBLE_DEVICES, value: void}]}
  containers:
  - {name: main, resources: {limits: {nvidia.com/gpu-share: "50"}, requests: {nvidia.com/gpu-share: "50"}}}
  - {name: hidden, env: [{name: NVIDIA_VISIBLE_DEVICES, value: void}]}
  tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]`,
		},
		"the pod's queue beats the namespace's, and a toleration for everything is enough": {
			namespace: mutate.Namespace{Queue: "team"},
			pod: `
metadata: {labels: {tranche.dev/queue: mine}}
spec:
  containers:
  - {name: main, resources: {limits: {nvidia.com/gpu-share: "50"}, requests: {nvidia.com/gpu-share: "50"}}}
  tolerations: [{operator: Exists}]`,
		},
		"the namespace's queue beats the default, and a toleration for another effect is not enough": {
			namespace: mutate.Namespace{Queue: "team"},
			pod: `
spec:
  containers:
  - {name: main, resources: {limits: {nvidia.com/gpu: "2"}, requests: {nvidia.com/gpu: "2"}}}
  tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoExecute}]`,
			want: `
metadata: {labels: {tranche.dev/queue: team}}
spec:
  containers:
  - {name: main, resources: {limits: {nvidia.com/gpu: "2"}, requests: {nvidia.com/gpu: "2"}}}
  tolerations:
  - {key: nvidia.com/gpu, operator: Exists, effect: NoExecute}
  - {key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}`,
		},
		"the namespace's fraction replaces one whole GPU, and only that": {
			namespace: mutate.Namespace{Name: "team", DefaultFraction: "0.25"},
			pod: `
spec:
  containers:
  - {name: one, resources: {limits: {nvidia.com/gpu: "1", cpu: "2"}, requests: {nvidia.com/gpu: "1", cpu: "1"}}}
  - {name: two, resources: {limits: {nvidia.com/gpu: "2"}, requests: {nvidia.com/gpu: "2"}}}
  - {name: part, resources: {limits: {nvidia.com/gpu-share: "10"}, requests: {nvidia.com/gpu-share: "10"}}}`,
			want: `
metadata:
  labels: {tranche.dev/queue: default}
  annotations: {tranche.dev/translated-from: "one: nvidia.com/gpu=1 (default-gpu-fraction=0.25)"}
spec:
  containers:
  - {name: one, resources: {limits: {nvidia.com/gpu-share: "25", cpu: "2"}, requests: {nvidia.com/gpu-share: "25", cpu: "1"}}}
  - {name: two, resources: {limits: {nvidia.com/gpu: "2"}, requests: {nvidia.com/gpu: "2"}}}
  - {name: part, resources: {limits: {nvidia.com/gpu-share: "10"}, requests: {nvidia.com/gpu-share: "10"}}}
  tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]`,
		},
		"each container that gets the namespace's fraction is recorded": {
			namespace: mutate.Namespace{Name: "team", DefaultFraction: "0.5"},
			pod: `
spec:
  containers:
  - {name: a, resources: {limits: {nvidia.com/gpu: "1"}, requests: {nvidia.com/gpu: "1"}}}
  - {name: b, resources: {limits: {nvidia.com/gpu: "1"}, requests: {nvidia.com/gpu: "1"}}}`,
			want: `
metadata:
  labels: {tranche.dev/queue: default}
  annotations: {tranche.dev/translated-from: "a: nvidia.com/gpu=1 (default-gpu-fraction=0.5); b: nvidia.com/gpu=1 (default-gpu-fraction=0.5)"}
spec:
  containers:
  - {name: a, resources: {limits: {nvidia.com/gpu-share: "50"}, requests: {nvidia.com/gpu-share: "50"}}}
  - {name: b, resources: {limits: {nvidia.com/gpu-share: "50"}, requests: {nvidia.com/gpu-share: "50"}}}
  tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]`,
		},
		"a namespace's fraction that cannot be read concerns only pods that need it": {
			namespace: mutate.Namespace{Name: "team", DefaultFraction: "half"},
			pod: `
metadata: {labels: {tranche.dev/queue: mine}}
spec:
  containers:
  - {name: main, resources: {limits: {nvidia.com/gpu-share: "50"}, requests: {nvidia.com/gpu-share: "50"}}}
  tolerations: [{operator: Exists}]`,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			in := mutate.Input{Pod: parse(t, tc.pod), Namespace: tc.namespace, Fleet: mixed, Defaults: defaults}
			if tc.unknownFleet {
				in.Fleet = mutate.Fleet{}
			}
			want := in.Pod.DeepCopy()
			if tc.want != "" {
				want = parse(t, tc.want)
			}
			got := mutate.Pod(in)
			if len(got.Refusals) > 0 {
				t.Fatalf("refused: %s", mutate.Text(got.Refusals))
			}
			if diff := cmp.Diff(want, got.Pod); diff != "" {
				t.Errorf("pod (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.wantWarnings, got.Warnings); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(parse(t, tc.pod), in.Pod); diff != "" {
				t.Errorf("the input was changed (-before +after):\n%s", diff)
			}
			if tc.want == "" && got.Pod != in.Pod {
				t.Errorf("an unchanged pod was copied")
			}
		})
	}
}

func TestPodRefusesWithWhatToWriteInstead(t *testing.T) {
	type refusals = map[mutate.Reason][]string
	cases := map[string]struct {
		namespace    mutate.Namespace
		unknownFleet bool
		pod          string
		want         refusals
	}{
		"nonsense, every problem of it": {
			pod: `
metadata: {annotations: {tranche.dev/placement: tight, tranche.dev/plan: "{}"}}
spec:
  nodeName: n1
  containers:
  - {name: main, resources: {limits: {nvidia.com/gpu-share: "101"}}}
  - {name: both, resources: {limits: {nvidia.com/gpu-share: "1", nvidia.com/gpu: "1"}}}`,
			want: refusals{
				mutate.ReasonRequest: {
					"container both asks for both nvidia.com/gpu-share and nvidia.com/gpu; write nvidia.com/gpu-share for part of a GPU or nvidia.com/gpu for whole GPUs, not both",
					"container main asks for nvidia.com/gpu-share: 101, but one GPU has 100; write at most 100, ask for nvidia.com/gpu for whole GPUs, or spread it over several GPUs with the annotation tranche.dev/gpu-count",
					`annotation tranche.dev/placement: "tight"; write "least-waste", "binpack" or "spread"`,
				},
				mutate.ReasonForged:   {"annotation tranche.dev/plan is for Tranche alone to write; remove it from the pod or from the template that it is made from"},
				mutate.ReasonNodeName: {"the pod asks for a GPU and sets spec.nodeName, which goes past the scheduler, so that nobody chooses a GPU for it; remove spec.nodeName and write spec.nodeSelector with kubernetes.io/hostname: n1"},
			},
		},
		"a forged retry, on a pod without GPUs": {
			pod: `
metadata: {annotations: {tranche.dev/retry: "7"}}
spec: {containers: [{name: main}]}`,
			want: refusals{mutate.ReasonForged: {"annotation tranche.dev/retry is for Tranche alone to write; remove it from the pod or from the template that it is made from"}},
		},
		"GPUs taken by environment, on a pod that asks for none": {
			pod: `
spec:
  initContainers:
  - {name: first, env: [{name: NVIDIA_VISIBLE_DEVICES, valueFrom: {configMapKeyRef: {name: c, key: k}}}]}
  containers:
  - {name: main, env: [{name: NVIDIA_VISIBLE_DEVICES, value: void}, {name: NVIDIA_VISIBLE_DEVICES, value: all}]}
  - {name: empty, env: [{name: NVIDIA_VISIBLE_DEVICES}]}`,
			want: refusals{mutate.ReasonEnvironment: {
				"container first sets NVIDIA_VISIBLE_DEVICES, but a container sees the GPUs that it asks for and no others; remove the variable and ask with nvidia.com/gpu-share, nvidia.com/gpu or the annotation tranche.dev/gpu-fraction",
				"container main sets NVIDIA_VISIBLE_DEVICES, but a container sees the GPUs that it asks for and no others; remove the variable and ask with nvidia.com/gpu-share, nvidia.com/gpu or the annotation tranche.dev/gpu-fraction",
				"container empty sets NVIDIA_VISIBLE_DEVICES, but a container sees the GPUs that it asks for and no others; remove the variable and ask with nvidia.com/gpu-share, nvidia.com/gpu or the annotation tranche.dev/gpu-fraction",
			}},
		},
		"GPUs taken by mount": {
			pod: `
spec:
  containers:
  - name: main
    volumeMounts: [{name: null-device, mountPath: /var/run/nvidia-container-devices/all}, {name: data, mountPath: /data}]`,
			want: refusals{mutate.ReasonEnvironment: {
				"container main mounts /var/run/nvidia-container-devices/all, but a container sees the GPUs that it asks for and no others; remove the mount and ask with nvidia.com/gpu-share, nvidia.com/gpu or the annotation tranche.dev/gpu-fraction",
			}},
		},
		"limits loosened from inside": {
			pod: `
spec:
  containers:
  - {name: main, resources: {limits: {nvidia.com/gpu-share: "50"}}, env: [{name: NVIDIA_GPU_MEMORY_LIMIT, value: "1"}, {name: CUDA_MPS_PINNED_DEVICE_MEM_LIMIT, value: 0=2G}]}
  - {name: beside, env: [{name: CUDA_MPS_PIPE_DIRECTORY, value: /tmp}]}`,
			want: refusals{mutate.ReasonEnvironment: {
				"container main sets NVIDIA_GPU_MEMORY_LIMIT, but on a container with a GPU the node sets the variables NVIDIA_GPU_MEMORY_*; remove it and ask for the memory with nvidia.com/gpu-share or the annotation tranche.dev/gpu-memory",
				"container main sets CUDA_MPS_PINNED_DEVICE_MEM_LIMIT, but on a container with a GPU the node sets the variables CUDA_MPS_*; remove it and ask for the memory with nvidia.com/gpu-share or the annotation tranche.dev/gpu-memory",
			}},
		},
		"memory that no GPU has": {
			pod: `
metadata: {annotations: {tranche.dev/gpu-memory: 81Gi}}
spec: {containers: [{name: main}]}`,
			want: refusals{mutate.ReasonMemory: {
				"container main asks for 81Gi of memory on one GPU, but the largest GPU of this cluster, NVIDIA-A100-SXM4-80GB, has 80Gi; write at most that, or spread it over several GPUs with the annotation tranche.dev/gpu-count",
			}},
		},
		"a default of the namespace that cannot be read": {
			namespace: mutate.Namespace{Name: "team", DefaultFraction: "half"},
			pod: `
spec:
  containers:
  - {name: main, resources: {limits: {nvidia.com/gpu: "1"}}}`,
			want: refusals{mutate.ReasonNamespace: {
				`the pod asks for nvidia.com/gpu: 1, in whose place namespace team puts the fraction in its annotation tranche.dev/default-gpu-fraction, but that is not a GPU fraction: "half"; write a decimal above 0 and at most 1, such as "0.5"; correct the annotation of the namespace, or ask for nvidia.com/gpu-share in the pod`,
			}},
		},
		"a default of the namespace that would change what another annotation means": {
			namespace: mutate.Namespace{Name: "team", DefaultFraction: "0.5"},
			pod: `
metadata: {annotations: {tranche.dev/gpu-count: "2"}}
spec:
  containers:
  - {name: main, resources: {limits: {nvidia.com/gpu: "1"}}}
  - {name: part, resources: {limits: {nvidia.com/gpu-share: "20"}}}`,
			want: refusals{mutate.ReasonNamespace: {
				"in namespace team nvidia.com/gpu: 1 stands for 0.5 of a GPU (its annotation tranche.dev/default-gpu-fraction), which leaves open what the pod's annotations mean; name the container with the annotation tranche.dev/container, or ask for nvidia.com/gpu-share instead of nvidia.com/gpu",
			}},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			in := mutate.Input{Pod: parse(t, tc.pod), Namespace: tc.namespace, Fleet: mixed, Defaults: defaults}
			out := mutate.Pod(in)
			got := refusals{}
			for _, r := range out.Refusals {
				got[r.Reason] = append(got[r.Reason], r.Message)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("refusals (-want +got):\n%s", diff)
			}
			if out.Pod != in.Pod {
				t.Errorf("a refused pod was changed")
			}
		})
	}
}

// What issue 2 lists as refused at creation, in the words of a limit.
func TestPodRefusesImpossibleAmounts(t *testing.T) {
	for _, amount := range []string{"0", "101", "-1", "1500m", "1000000"} {
		t.Run(amount, func(t *testing.T) {
			pod := parse(t, `
spec:
  containers:
  - {name: main, resources: {limits: {nvidia.com/gpu-share: "`+amount+`"}, requests: {nvidia.com/gpu-share: "`+amount+`"}}}`)
			out := mutate.Pod(mutate.Input{Pod: pod, Fleet: mixed, Defaults: defaults})
			if len(out.Refusals) != 1 || !strings.Contains(out.Refusals[0].Message, "; write ") {
				t.Errorf("refusals %v; want one that says what to write", out.Refusals)
			}
		})
	}
}

func TestTextIsOneLine(t *testing.T) {
	one := []mutate.Refusal{mutate.Refuse(mutate.ReasonRequest, "a; write b")}
	if got := mutate.Text(one); got != "a; write b" {
		t.Errorf("one refusal: %q", got)
	}
	two := append(one, mutate.Refuse(mutate.ReasonForged, "c"))
	if got := mutate.Text(two); got != "2 problems: (1) a; write b; (2) c" {
		t.Errorf("two refusals: %q", got)
	}
}

func TestPodWarnsOfWhatIsProbablyNotMeant(t *testing.T) {
	shares := `
spec:
  containers: [{name: main, resources: {limits: {nvidia.com/gpu-share: "50"}}}]`
	cases := map[string]struct {
		pod  string
		want []string
	}{
		"misspelt and misplaced keys": {
			pod: `
metadata:
  annotations:
    tranche.dev/gpu-fracton: "0.5"
    tranche.dev/fraction: "0.5"
    tranche.dev/gpu-memroy.main: 1Gi
    tranche.dev/gpu-count.main: "2"
    tranche.dev/queue: team
    tranche.dev/default-gpu-fraction: "0.5"
    tranche.dev/xyzzyx: "1"
    example.com/gpu-fracton: "0.5"
    tranche.dev/gpu-fraction.main: "0.5"
  labels:
    tranche.dev/gpu-fraction: "0.5"
    tranche.dev/queu: team
    tranche.dev/inject: enabled
spec: {containers: [{name: main}]}`,
			want: []string{
				"annotation tranche.dev/default-gpu-fraction has no effect on a pod: it is an annotation of the namespace",
				"annotation tranche.dev/fraction is unknown and has no effect; did you mean tranche.dev/gpu-fraction?",
				"annotation tranche.dev/gpu-count.main is unknown and has no effect; did you mean tranche.dev/gpu-count?",
				"annotation tranche.dev/gpu-fracton is unknown and has no effect; did you mean tranche.dev/gpu-fraction?",
				"annotation tranche.dev/gpu-memroy.main is unknown and has no effect; did you mean tranche.dev/gpu-memory.main?",
				"annotation tranche.dev/queue has no effect: write it as a label",
				"annotation tranche.dev/xyzzyx is unknown and has no effect",
				"label tranche.dev/gpu-fraction has no effect: write it as an annotation",
				"label tranche.dev/inject has no effect on a pod: it is a label of the namespace",
				"label tranche.dev/queu is unknown and has no effect; did you mean tranche.dev/queue?",
			},
		},
		"a description of a GPU that nobody asks for": {
			pod: `
metadata: {annotations: {tranche.dev/gpu-model: NVIDIA-L4}}
spec: {containers: [{name: main}]}`,
			want: []string{"annotation tranche.dev/gpu-model has no effect: no container asks for a GPU; ask with nvidia.com/gpu-share or the annotation tranche.dev/gpu-fraction"},
		},
		"a model that no node has": {
			pod:  `metadata: {annotations: {tranche.dev/gpu-model: "NVIDIA-H100-PCIe,NVIDIA-B200"}}` + shares,
			want: []string{"no node has a GPU of the model NVIDIA-B200 or NVIDIA-H100-PCIe now, so the pod will wait; there are: NVIDIA-A100-SXM4-80GB, NVIDIA-A30, NVIDIA-L4"},
		},
		"one model of two that a node has": {
			pod: `metadata: {annotations: {tranche.dev/gpu-model: "NVIDIA-H100-PCIe,NVIDIA-A30"}}` + shares,
		},
		"memory that the allowed models lack": {
			pod: `
metadata: {annotations: {tranche.dev/gpu-model: "NVIDIA-L4,NVIDIA-A30", tranche.dev/gpu-memory: 40Gi}}
spec: {containers: [{name: main}]}`,
			want: []string{"container main asks for 40Gi on one GPU, but no GPU of the allowed models has more than 24Gi now, so the pod will wait"},
		},
		"neighbours that could be seen": {
			pod: `
spec:
  hostPID: true
  containers:
  - {name: main, resources: {limits: {nvidia.com/gpu-share: "50"}}, securityContext: {privileged: false}}
  - {name: debug, securityContext: {privileged: true}}`,
			want: []string{
				"the pod shares GPUs and uses hostPID: it sees the processes of the pods beside it",
				"container debug is privileged in a pod that shares GPUs: it sees every GPU of its node, whatever it asks for",
			},
		},
		"a container named for annotations that name theirs": {
			pod: `
metadata: {annotations: {tranche.dev/container: main, tranche.dev/gpu-fraction.side: "0.5"}}
spec: {containers: [{name: main}, {name: side}]}`,
			want: []string{"annotation tranche.dev/container has no effect: it says which container tranche.dev/gpu-fraction, tranche.dev/gpu-memory and tranche.dev/gpu-count mean, without a container's name behind them, and the pod has none of these"},
		},
		"a container named for the number of GPUs": {
			pod: `
metadata: {annotations: {tranche.dev/container: side, tranche.dev/gpu-fraction.side: "0.5", tranche.dev/gpu-count: "2"}}
spec: {containers: [{name: main}, {name: side}]}`,
		},
		"a GPU in an init container, which kubelets forget when it has ended": {
			pod: `
spec:
  initContainers:
  - {name: ` + strings.Repeat("x", 63) + `, resources: {limits: {nvidia.com/gpu-share: "50"}}}
  - {name: another, resources: {limits: {nvidia.com/gpu-share: "50"}}}
  containers: [{name: main, resources: {limits: {nvidia.com/gpu-share: "50"}}}]`,
			want: []string{"init container " + strings.Repeat("x", 63) + " has a GPU: a kubelet that restarts while that GPU or the node plugin is out of order ends the running pod, maybe as Succeeded; do its work in the app container"},
		},
		"a GPU in a sidecar": {
			pod: `
spec:
  initContainers: [{name: proxy, restartPolicy: Always, resources: {limits: {nvidia.com/gpu-share: "50"}}}]
  containers: [{name: main}]`,
		},
		"a privileged pod with a GPU of its own": {
			pod: `
spec:
  hostPID: true
  containers: [{name: main, resources: {limits: {nvidia.com/gpu: "1"}}, securityContext: {privileged: true}}]`,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			out := mutate.Pod(mutate.Input{Pod: parse(t, tc.pod), Fleet: mixed, Defaults: defaults})
			if len(out.Refusals) > 0 {
				t.Fatalf("refused: %s", mutate.Text(out.Refusals))
			}
			if diff := cmp.Diff(tc.want, out.Warnings); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
			for _, w := range out.Warnings {
				if len(w) > 256 {
					t.Errorf("the API server would cut this off: %s", w)
				}
			}
		})
	}
}

func TestEphemeralContainersNeverSeeGPUs(t *testing.T) {
	old := parse(t, `
spec:
  containers: [{name: main, resources: {limits: {nvidia.com/gpu-share: "50"}}}]
  ephemeralContainers: [{name: earlier, env: [{name: NVIDIA_VISIBLE_DEVICES, value: all}]}]`)
	added := func(env ...corev1.EnvVar) *corev1.Pod {
		pod := old.DeepCopy()
		pod.Spec.EphemeralContainers = append(pod.Spec.EphemeralContainers, corev1.EphemeralContainer{
			EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", Env: env},
		})
		return pod
	}
	void := corev1.EnvVar{Name: "NVIDIA_VISIBLE_DEVICES", Value: "void"}

	out := mutate.EphemeralContainers(old, mutate.Input{Pod: added(), Defaults: defaults})
	if diff := cmp.Diff(added(void), out.Pod); diff != "" || len(out.Refusals) > 0 {
		t.Errorf("refusals %v, pod (-want +got):\n%s", out.Refusals, diff)
	}
	if again := mutate.EphemeralContainers(old, mutate.Input{Pod: out.Pod, Defaults: defaults}); again.Pod != out.Pod {
		t.Errorf("changed again: %s", cmp.Diff(out.Pod, again.Pod))
	}
	out = mutate.EphemeralContainers(old, mutate.Input{Pod: added(corev1.EnvVar{Name: "NVIDIA_VISIBLE_DEVICES", Value: "all"}), Defaults: defaults})
	if len(out.Refusals) != 1 || !strings.HasPrefix(out.Refusals[0].Message, "container debug sets NVIDIA_VISIBLE_DEVICES") {
		t.Errorf("refusals %v; want the new container's environment", out.Refusals)
	}
	plain := &corev1.Pod{}
	if out := mutate.EphemeralContainers(plain, mutate.Input{Pod: plain, Defaults: defaults}); out.Pod != plain {
		t.Errorf("a pod without GPUs was changed")
	}
}
