package mutate_test

import (
	stdcmp "cmp"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/webhook/mutate"
)

// queueDefaults are what the webhook starts with.
var queueDefaults = mutate.Defaults{Resources: contract.DefaultResources(), Queue: "default", GangGate: true, QueueGate: true, RateCPUOnly: true}

// company is a tree of queues of all kinds, and some that hang in the air.
var company = mutate.Queues{
	"root":  {},
	"open":  {Parent: "root", Open: true},
	"busy":  {Parent: "root"},
	"words": {Parent: "root", Admission: v1alpha1.AdmissionAuto, Open: true},

	"gated":  {Parent: "root", Admission: v1alpha1.AdmissionGated, Open: true},
	"direct": {Parent: "stopped", Admission: v1alpha1.AdmissionDirect, Compute: true},

	"stopped":       {Open: true, Stopped: true},
	"below-stopped": {Parent: "below", Open: true},
	"below":         {Parent: "stopped", Open: true},

	"cores":       {Open: true, Compute: true},
	"below-cores": {Parent: "between", Open: true},
	"between":     {Parent: "cores", Admission: v1alpha1.AdmissionDirect, Open: true},

	"orphan":   {Parent: "nobody", Open: true},
	"circle":   {Parent: "circular", Open: true},
	"circular": {Parent: "circle", Open: true},
	"deep-0":   {Open: true, Compute: true},
}

func init() {
	for i := 1; i <= 17; i++ {
		company[fmt.Sprintf("deep-%d", i)] = mutate.Queue{Parent: fmt.Sprintf("deep-%d", i-1), Open: true}
	}
}

func TestSinglePodsAreHeldAsTheirQueueWants(t *testing.T) {
	const (
		gpu = "{containers: [{name: main, resources: {limits: {nvidia.com/gpu: '1'}, requests: {nvidia.com/gpu: '1'}}}]"
		cpu = "{containers: [{name: main, resources: {requests: {cpu: '1'}}}]"
	)
	cases := map[string]struct {
		queue            string
		wantGPU, wantCPU bool
	}{
		"open": {"open", false, false},
		"with a backlog, and nobody counts cores":  {"busy", true, false},
		"open, and admission says what is default": {"words", false, false},
		"gated": {"gated", true, true},
		"direct, though it is stopped and counts cores":      {"direct", false, false},
		"stopped, though it is open":                         {"stopped", true, true},
		"stopped two levels above":                           {"below-stopped", true, true},
		"counts cores":                                       {"cores", false, true},
		"counts cores two levels above, behind a direct one": {"below-cores", false, true},
		"without its parent":                                 {"orphan", false, false},
		"above itself":                                       {"circle", false, false},
		"counts cores 16 levels above":                       {"deep-16", false, true},
		"counts cores further above than anybody looks":      {"deep-17", false, false},
		"of which there is no object":                        {"unknown", true, true},
		"the default, of which there is no object":           {"default", false, false},
	}
	for name, tc := range cases {
		for spec, want := range map[string]bool{gpu: tc.wantGPU, cpu: tc.wantCPU} {
			t.Run(name+" "+spec, func(t *testing.T) {
				in := mutate.Input{
					Pod:   parse(t, "metadata: {labels: {tranche.dev/queue: "+tc.queue+"}}\nspec: "+spec+", schedulingGates: [{name: other}]}"),
					Fleet: mixed, Queues: company, Defaults: queueDefaults,
				}
				wantGates := []string{"other"}
				if want {
					wantGates = append(wantGates, contract.AdmissionGate)
				}
				out := mutate.Pod(in)
				if diff := cmp.Diff(wantGates, gates(out.Pod)); diff != "" || len(out.Refusals) > 0 || len(out.Warnings) > 0 {
					t.Errorf("refusals %v, warnings %v, gates (-want +got):\n%s", out.Refusals, out.Warnings, diff)
				}

				// Nobody is held without the flag, or where there is no such kind.
				for name, change := range map[string]func(*mutate.Input){
					"without the flag": func(in *mutate.Input) { in.Defaults.QueueGate = false },
					"without queues":   func(in *mutate.Input) { in.Queues = nil },
				} {
					changed := in
					change(&changed)
					if got := mutate.Pod(changed); !slices.Equal(gates(got.Pod), []string{"other"}) || len(got.Refusals) > 0 {
						t.Errorf("%s: refusals %v, gates %v", name, got.Refusals, gates(got.Pod))
					}
				}

				// A queue that has changed meanwhile takes no gate away and adds none twice.
				in.Pod = out.Pod
				if !want {
					return
				}
				for _, admission := range []v1alpha1.AdmissionMode{v1alpha1.AdmissionDirect, v1alpha1.AdmissionGated} {
					in.Queues = mutate.Queues{tc.queue: {Admission: admission}}
					if again := mutate.Pod(in); again.Pod != out.Pod || len(again.Refusals) > 0 {
						t.Errorf("now %s: changed again: %v\n%s", admission, again.Refusals, cmp.Diff(out.Pod, again.Pod))
					}
				}
			})
		}
	}
}

// Which queue a pod is in, and whom no queue concerns.
func TestPodsFindTheirQueue(t *testing.T) {
	const (
		gpu    = "spec: {containers: [{name: main, resources: {limits: {nvidia.com/gpu: '1'}, requests: {nvidia.com/gpu: '1'}}}]"
		cpu    = "spec: {containers: [{name: main}]"
		daemon = "ownerReferences: [{apiVersion: apps/v1, kind: DaemonSet, name: d, uid: u, controller: true}]"
	)
	owners := job(keys{"tranche.dev/queue": "owners"}, nil)
	cases := map[string]struct {
		metadata, spec, namespace string
		owner                     *mutate.Owner
		// wantQueue is empty for a pod that is not touched.
		wantQueue string
		wantHeld  bool
	}{
		"its own":                         {metadata: "{labels: {tranche.dev/queue: mine}}", spec: cpu, owner: owners, namespace: "team", wantQueue: "mine", wantHeld: true},
		"an empty one counts as none":     {metadata: "{labels: {tranche.dev/queue: ''}}", spec: cpu, owner: owners, namespace: "team", wantQueue: "owners", wantHeld: true},
		"its owner's":                     {spec: cpu, owner: owners, namespace: "team", wantQueue: "owners", wantHeld: true},
		"its owner's, with GPUs":          {spec: gpu, owner: owners, namespace: "team", wantQueue: "owners", wantHeld: true},
		"its namespace's":                 {spec: cpu, owner: job(nil, nil), namespace: "team", wantQueue: "team", wantHeld: true},
		"the default":                     {spec: cpu, wantQueue: "default"},
		"of an unread owner, the default": {spec: cpu, owner: &mutate.Owner{Kind: "Job", Name: "gone", Unread: "does not exist any more"}, wantQueue: "default"},

		"a DaemonSet's":                  {metadata: "{" + daemon + "}", spec: cpu, owner: owners, namespace: "team"},
		"a DaemonSet's, of its own":      {metadata: "{labels: {tranche.dev/queue: mine}, " + daemon + "}", spec: cpu, wantQueue: "mine"},
		"a DaemonSet's, with GPUs":       {metadata: "{" + daemon + "}", spec: gpu, namespace: "team", wantQueue: "team", wantHeld: true},
		"of another kind of that name":   {metadata: "{ownerReferences: [{apiVersion: example.com/v1, kind: DaemonSet, name: d, controller: true}]}", spec: cpu, namespace: "team", wantQueue: "team", wantHeld: true},
		"of a DaemonSet that is no boss": {metadata: "{ownerReferences: [{apiVersion: apps/v1, kind: DaemonSet, name: d}]}", spec: cpu, namespace: "team", wantQueue: "team", wantHeld: true},
		"on a node of its choice":        {spec: cpu + ", nodeName: n", owner: owners, namespace: "team"},
		"from a file on its node":        {metadata: "{annotations: {kubernetes.io/config.mirror: x}}", spec: cpu, namespace: "team"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			in := mutate.Input{
				Pod:       parse(t, "metadata: "+stdcmp.Or(tc.metadata, "{}")+"\n"+tc.spec+"}"),
				Namespace: mutate.Namespace{Name: "n", Queue: tc.namespace, DefaultFraction: "x"},
				Owner:     tc.owner, Queues: mutate.Queues{}, Defaults: queueDefaults,
			}
			if tc.spec == gpu {
				in.Namespace.DefaultFraction = ""
			}
			out := mutate.Pod(in)
			if len(out.Refusals) > 0 {
				t.Fatal(out.Refusals)
			}
			if got := out.Pod.Labels[contract.QueueLabel]; got != tc.wantQueue || slices.Contains(gates(out.Pod), contract.AdmissionGate) != tc.wantHeld {
				t.Errorf("queue %q, gates %v; want %q, held %t", got, gates(out.Pod), tc.wantQueue, tc.wantHeld)
			}
			if tc.wantQueue == "" && out.Pod != in.Pod {
				t.Errorf("changed:\n%s", cmp.Diff(in.Pod, out.Pod))
			}
		})
	}
}

// kube-scheduler asks an extender about pods by the names of their resources.
func TestMembersWithoutGPUsComeToTheExtender(t *testing.T) {
	const (
		zero = "resources: {limits: {tranche.dev/member: '0'}, requests: {tranche.dev/member: '0'}}"
		gang = "labels: {tranche.dev/queue: q, tranche.dev/gang: g}"
		gate = "schedulingGates: [{name: tranche.dev/admission}]"
	)
	cases := map[string]struct {
		pod string
		// want is the whole pod; empty: unchanged.
		want string
	}{
		"its first container says so": {
			pod: "metadata: {" + gang + "}\nspec: {initContainers: [{name: fetch}], containers: [{name: main}, {name: beside}]}",
			want: "metadata: {" + gang + "}\nspec: {initContainers: [{name: fetch}], containers: [{name: main, " + zero + "}, {name: beside}], " +
				gate + "}",
		},
		"beside what else it asks for": {
			pod: "metadata: {" + gang + "}\nspec: {containers: [{name: main, resources: {limits: {cpu: '2'}, requests: {cpu: '1'}}}]}",
			want: "metadata: {" + gang + "}\nspec: {containers: [{name: main, resources: {limits: {cpu: '2', tranche.dev/member: '0'}, requests: {cpu: '1', tranche.dev/member: '0'}}}], " +
				gate + "}",
		},
		"a native group": {
			pod: "metadata: {labels: {tranche.dev/queue: q}}\nspec: {schedulingGroup: {podGroupName: native}, containers: [{name: main}]}",
			want: "metadata: {labels: {tranche.dev/queue: q}}\nspec: {schedulingGroup: {podGroupName: native}, containers: [{name: main, " + zero + "}], " +
				gate + "}",
		},
		"its user has said so": {
			pod: "metadata: {" + gang + "}\nspec: {containers: [{name: main}, {name: beside, " + zero + "}], " + gate + "}",
		},
		"an init container of its has said so": {
			pod: "metadata: {" + gang + "}\nspec: {initContainers: [{name: fetch, " + zero + "}], containers: [{name: main}], " + gate + "}",
		},
		"a single pod does not": {
			pod: "metadata: {labels: {tranche.dev/queue: open}}\nspec: {containers: [{name: main}]}",
		},
		"a single pod that asks for cpu has its nodes rated": {
			pod:  "metadata: {labels: {tranche.dev/queue: open}}\nspec: {containers: [{name: main}, {name: beside, resources: {requests: {cpu: 10m}}}]}",
			want: "metadata: {labels: {tranche.dev/queue: open}}\nspec: {containers: [{name: main, resources: {limits: {tranche.dev/cpu-only: '0'}, requests: {tranche.dev/cpu-only: '0'}}}, {name: beside, resources: {requests: {cpu: 10m}}}]}",
		},
		"unless it has its node": {
			pod: "spec: {nodeName: n, containers: [{name: main, resources: {requests: {cpu: 10m}}}]}",
		},
		"a member with GPUs need not": {
			pod: "metadata: {" + gang + "}\nspec: {tolerations: [{operator: Exists}], containers: [{name: gpu, resources: {limits: {nvidia.com/gpu: '1'}, requests: {nvidia.com/gpu: '1'}}}], " + gate + "}",
		},
		"a container of a member with GPUs has said so, and sees none": {
			pod: "metadata: {" + gang + "}\nspec: {tolerations: [{operator: Exists}], containers: [{name: main, " + zero + "}, {name: gpu, resources: {limits: {nvidia.com/gpu: '1'}, requests: {nvidia.com/gpu: '1'}}}], " + gate + "}",
			want: "metadata: {" + gang + "}\nspec: {tolerations: [{operator: Exists}], containers: [{name: main, env: [{name: NVIDIA_VISIBLE_DEVICES, value: void}], " + zero + "}, {name: gpu, resources: {limits: {nvidia.com/gpu: '1'}, requests: {nvidia.com/gpu: '1'}}}], " +
				gate + "}",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			in := mutate.Input{Pod: parse(t, tc.pod), Queues: company, Defaults: queueDefaults}
			out := mutate.Pod(in)
			if diff := cmp.Diff(parse(t, stdcmp.Or(tc.want, tc.pod)), out.Pod); diff != "" || len(out.Refusals)+len(out.Warnings) > 0 {
				t.Errorf("refusals %v, warnings %v, pod (-want +got):\n%s", out.Refusals, out.Warnings, diff)
			}
			request, err := contract.ParsePod(out.Pod, in.Defaults.Resources)
			member, _, _, _ := contract.GangOf(out.Pod)
			if err != nil || contract.InterestsExtender(&out.Pod.Spec, in.Defaults.Resources) != (member != "") ||
				contract.UsesGPU(&out.Pod.Spec, in.Defaults.Resources) != (len(request.Demands) > 0) {
				t.Errorf("gang %q, request %+v, error %v", member, request, err)
			}
			in.Pod = out.Pod
			if again := mutate.Pod(in); again.Pod != out.Pod || len(again.Refusals) > 0 {
				t.Errorf("changed again: %v\n%s", again.Refusals, cmp.Diff(out.Pod, again.Pod))
			}
		})
	}
}

// Neither 0 of what counts, nor more than 0 of what does not.
func TestPodRefusesAmountsOfNothing(t *testing.T) {
	const (
		remedy = "; write at least 1, or leave it out if the container needs no GPU"
		nobody = ", of which no node has any; write 0, or leave it out: Tranche adds it to members of gangs that use no GPU"
		only   = ", of which no node has any; write 0, or leave it out: Tranche adds it to pods that use no GPU"
	)
	cases := map[string]struct {
		containers string
		want       []string
	}{
		"no shares":              {"containers: [{name: main, resources: {limits: {nvidia.com/gpu-share: '0'}, requests: {nvidia.com/gpu-share: '0'}}}]", []string{"request: container main asks for nvidia.com/gpu-share: 0" + remedy}},
		"no GPUs":                {"initContainers: [{name: fetch, resources: {limits: {nvidia.com/gpu: '0'}}}], containers: [{name: main}]", []string{"request: container fetch asks for nvidia.com/gpu: 0" + remedy}},
		"no shares, and a GPU":   {"containers: [{name: main, resources: {limits: {nvidia.com/gpu-share: '0'}}}, {name: gpu, resources: {limits: {nvidia.com/gpu: '1'}}}]", []string{"request: container main asks for nvidia.com/gpu-share: 0" + remedy}},
		"members":                {"containers: [{name: main, resources: {limits: {tranche.dev/member: '1'}, requests: {tranche.dev/member: '1'}}}]", []string{"request: container main asks for tranche.dev/member: 1" + nobody}},
		"requested members":      {"containers: [{name: main, resources: {limits: {tranche.dev/member: '0'}, requests: {tranche.dev/member: '2'}}}]", []string{"request: container main asks for tranche.dev/member: 2" + nobody}},
		"less than no members":   {"initContainers: [{name: fetch, resources: {limits: {tranche.dev/member: '-1'}}}], containers: [{name: main}]", []string{"request: container fetch asks for tranche.dev/member: -1" + nobody}},
		"members, and a GPU":     {"containers: [{name: main, resources: {limits: {tranche.dev/member: 1m, nvidia.com/gpu: '1'}}}]", []string{"request: container main asks for tranche.dev/member: 1m" + nobody}},
		"members, and no shares": {"containers: [{name: main, resources: {limits: {tranche.dev/member: '1', nvidia.com/gpu-share: '0'}}}]", []string{"request: container main asks for nvidia.com/gpu-share: 0" + remedy, "request: container main asks for tranche.dev/member: 1" + nobody}},
		"cpu only":               {"containers: [{name: main, resources: {limits: {tranche.dev/cpu-only: '1'}, requests: {tranche.dev/cpu-only: '1'}}}]", []string{"request: container main asks for tranche.dev/cpu-only: 1" + only}},
		"members, on a node":     {"nodeName: n, containers: [{name: main, resources: {limits: {tranche.dev/member: '1'}}}]", []string{"request: container main asks for tranche.dev/member: 1" + nobody}},
	}
	for name, tc := range cases {
		for _, labels := range []string{"{}", "{tranche.dev/gang: g}"} {
			t.Run(name+" "+labels, func(t *testing.T) {
				in := mutate.Input{Pod: parse(t, "metadata: {labels: "+labels+"}\nspec: {"+tc.containers+"}"), Queues: company, Defaults: queueDefaults}
				out := mutate.Pod(in)
				var got []string
				for _, r := range out.Refusals {
					got = append(got, string(r.Reason)+": "+r.Message)
				}
				if diff := cmp.Diff(tc.want, got); diff != "" || out.Pod != in.Pod {
					t.Errorf("refusals (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// Pods without GPUs are none of the extender's business unless somebody says so.
func TestPodsWithoutGPUsStayAsTheyAreByDefault(t *testing.T) {
	off := queueDefaults
	off.RateCPUOnly = false
	pod := "metadata: {labels: {tranche.dev/queue: open}}\nspec: {containers: [{name: main, resources: {requests: {cpu: 10m}}}]}"
	out := mutate.Pod(mutate.Input{Pod: parse(t, pod), Queues: company, Defaults: off})
	if diff := cmp.Diff(parse(t, pod), out.Pod); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
