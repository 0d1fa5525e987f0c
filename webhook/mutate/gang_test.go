package mutate_test

import (
	stdcmp "cmp"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/webhook/mutate"
)

// gatedDefaults are defaults with the gate for gangs turned on.
var gatedDefaults = mutate.Defaults{Resources: contract.DefaultResources(), Queue: "default", GangGate: true}

// job is an owner with the given labels and annotations.
func job(labels, annotations map[string]string) *mutate.Owner {
	return &mutate.Owner{Kind: "Job", Name: "train", Labels: labels, Annotations: annotations}
}

type keys = map[string]string

func TestPodIsMadeAMemberOfItsGang(t *testing.T) {
	const asks = `spec: {containers: [{name: main, resources: {limits: {nvidia.com/gpu: "1"}, requests: {nvidia.com/gpu: "1"}}}]`
	cases := map[string]struct {
		metadata, spec  string
		owner           *mutate.Owner
		noGate          bool
		wantLabels      keys
		wantAnnotations keys
		wantGates       []string
		wantWarnings    []string
	}{
		"no gang": {wantLabels: keys{"tranche.dev/queue": "default"}},
		"its own label": {
			metadata:        `{labels: {tranche.dev/gang: g}, annotations: {tranche.dev/gang-min-count: "4"}}`,
			wantLabels:      keys{"tranche.dev/queue": "default", "tranche.dev/gang": "g"},
			wantAnnotations: keys{"tranche.dev/gang-min-count": "4"},
			wantGates:       []string{"tranche.dev/admission"},
		},
		"its own label, gate off": {
			metadata: `{labels: {tranche.dev/gang: g}}`, noGate: true,
			wantLabels: keys{"tranche.dev/queue": "default", "tranche.dev/gang": "g"},
		},
		"the gate is there": {
			metadata: `{labels: {tranche.dev/gang: g}}`, spec: `, schedulingGates: [{name: tranche.dev/admission}, {name: other}]`,
			wantLabels: keys{"tranche.dev/queue": "default", "tranche.dev/gang": "g"},
			wantGates:  []string{"tranche.dev/admission", "other"},
		},
		"the gate is there, gate off": {
			metadata: `{labels: {tranche.dev/gang: g}}`, spec: `, schedulingGates: [{name: tranche.dev/admission}]`, noGate: true,
			wantLabels: keys{"tranche.dev/queue": "default", "tranche.dev/gang": "g"},
			wantGates:  []string{"tranche.dev/admission"},
		},
		"gates of others stay": {
			metadata: `{labels: {tranche.dev/gang: g}}`, spec: `, schedulingGates: [{name: b}, {name: a}]`,
			wantLabels: keys{"tranche.dev/queue": "default", "tranche.dev/gang": "g"},
			wantGates:  []string{"b", "a", "tranche.dev/admission"},
		},
		"gates of others without a gang": {
			spec:       `, schedulingGates: [{name: b}]`,
			wantLabels: keys{"tranche.dev/queue": "default"},
			wantGates:  []string{"b"},
		},
		"a native group": {
			spec:       `, schedulingGroup: {podGroupName: native}`,
			wantLabels: keys{"tranche.dev/queue": "default"},
			wantGates:  []string{"tranche.dev/admission"},
		},
		"its owner's": {
			owner:           job(keys{"tranche.dev/gang": "g", "tranche.dev/queue": "q", "tranche.dev/other": "x"}, keys{"tranche.dev/gang-min-count": "8", "tranche.dev/gpu-fraction": "0.5"}),
			wantLabels:      keys{"tranche.dev/queue": "q", "tranche.dev/gang": "g"},
			wantAnnotations: keys{"tranche.dev/gang-min-count": "8"},
			wantGates:       []string{"tranche.dev/admission"},
		},
		"its owner's, but its own size and queue": {
			metadata:        `{labels: {tranche.dev/queue: mine}, annotations: {tranche.dev/gang-min-count: "4"}}`,
			owner:           job(keys{"tranche.dev/gang": "g", "tranche.dev/queue": "q"}, keys{"tranche.dev/gang-min-count": "8"}),
			wantLabels:      keys{"tranche.dev/queue": "mine", "tranche.dev/gang": "g"},
			wantAnnotations: keys{"tranche.dev/gang-min-count": "4"},
			wantGates:       []string{"tranche.dev/admission"},
		},
		"its own beats its owner's": {
			metadata:   `{labels: {tranche.dev/gang: mine}}`,
			owner:      job(keys{"tranche.dev/gang": "g"}, keys{"tranche.dev/gang-min-count": "8"}),
			wantLabels: keys{"tranche.dev/queue": "default", "tranche.dev/gang": "mine"},
			wantGates:  []string{"tranche.dev/admission"},
		},
		"its owner's beats a native group": {
			spec:       `, schedulingGroup: {podGroupName: native}`,
			owner:      job(keys{"tranche.dev/gang": "g"}, nil),
			wantLabels: keys{"tranche.dev/queue": "default", "tranche.dev/gang": "g"},
			wantGates:  []string{"tranche.dev/admission"},
		},
		"its own gang, but its owner's queue": {
			metadata:   `{labels: {tranche.dev/gang: mine}}`,
			owner:      job(keys{"tranche.dev/gang": "g", "tranche.dev/queue": "q"}, keys{"tranche.dev/gang-min-count": "8"}),
			wantLabels: keys{"tranche.dev/queue": "q", "tranche.dev/gang": "mine"},
			wantGates:  []string{"tranche.dev/admission"},
		},
		"its owner's queue alone": {
			owner:      job(keys{"tranche.dev/queue": "q"}, nil),
			wantLabels: keys{"tranche.dev/queue": "q"},
		},
		"an owner without a word": {owner: job(nil, nil), wantLabels: keys{"tranche.dev/queue": "default"}},
		"an owner that could not be read": {
			owner:        &mutate.Owner{Kind: "Job", Name: "train", Unread: "tranche-webhook has no right to read it"},
			wantLabels:   keys{"tranche.dev/queue": "default"},
			wantWarnings: []string{"Job train makes the pod but tranche-webhook has no right to read it: if it names a gang or a queue, the pod does not know; write that on the pod template"},
		},
		"the gate is there since the owner names a gang": {
			spec:       `, schedulingGates: [{name: tranche.dev/admission}]`,
			owner:      job(keys{"tranche.dev/gang": "g"}, nil),
			wantLabels: keys{"tranche.dev/queue": "default", "tranche.dev/gang": "g"},
			wantGates:  []string{"tranche.dev/admission"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			pod := parse(t, "metadata: "+stdcmp.Or(tc.metadata, "{}")+"\n"+asks+tc.spec+"}")
			in := mutate.Input{Pod: pod, Owner: tc.owner, Fleet: mixed, Defaults: gatedDefaults}
			in.Defaults.GangGate = !tc.noGate
			before := pod.DeepCopy()
			out := mutate.Pod(in)
			if len(out.Refusals) > 0 {
				t.Fatalf("refused: %v", out.Refusals)
			}
			if diff := cmp.Diff(before, pod); diff != "" {
				t.Errorf("the input was changed:\n%s", diff)
			}
			if diff := cmp.Diff(tc.wantLabels, out.Pod.Labels); diff != "" {
				t.Errorf("labels (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.wantAnnotations, out.Pod.Annotations); diff != "" {
				t.Errorf("annotations (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.wantGates, gates(out.Pod)); diff != "" {
				t.Errorf("gates (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.wantWarnings, out.Warnings); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
			for _, w := range out.Warnings {
				if len(w) > 256 {
					t.Errorf("the API server cuts %q off", w)
				}
			}
			// The second time, after which the owner is not read any more.
			in.Pod = out.Pod
			if mutate.WantsOwner(out.Pod, in.Defaults.Resources) == (out.Pod.Labels[contract.GangLabel] != "") {
				t.Errorf("WantsOwner %t afterwards", mutate.WantsOwner(out.Pod, in.Defaults.Resources))
			}
			if out.Pod.Labels[contract.GangLabel] != "" {
				in.Owner = nil
			}
			if again := mutate.Pod(in); again.Pod != out.Pod || len(again.Refusals) > 0 {
				t.Errorf("changed again: %v\n%s", again.Refusals, cmp.Diff(out.Pod, again.Pod))
			}
		})
	}
}

func gates(pod *corev1.Pod) []string {
	var names []string
	for _, g := range pod.Spec.SchedulingGates {
		names = append(names, g.Name)
	}
	return names
}

func TestPodRefusesGangsThatCannotBe(t *testing.T) {
	const (
		gpu     = "\nspec: {containers: [{name: main, resources: {limits: {nvidia.com/gpu: '1'}, requests: {nvidia.com/gpu: '1'}}}]"
		cpu     = "\nspec: {containers: [{name: main}]"
		gate    = ", schedulingGates: [{name: tranche.dev/admission}]"
		daemon  = "ownerReferences: [{apiVersion: apps/v1, kind: DaemonSet, name: d, uid: u, controller: true}]"
		idle    = " has no effect: the pod uses no GPU and is made by a DaemonSet, and such pods are in no gang"
		liftOff = ", so that it is in no queue and nobody would ever lift the gate; remove it, and to hold the pod back yourself use a gate of your own name"
	)
	cases := map[string]struct {
		pod   string
		owner *mutate.Owner
		// want and wantWarnings are all of them, as "reason: text".
		want, wantWarnings []string
	}{
		"a size without a gang": {
			pod:  `metadata: {annotations: {tranche.dev/gang-min-count: "4"}}` + gpu + "}",
			want: []string{"gang: annotation tranche.dev/gang-min-count says how large a gang is, but no label names the gang; add the label tranche.dev/gang with a name that all members have, or remove the annotation"},
		},
		"a bad size": {
			pod:  `metadata: {labels: {tranche.dev/gang: g}, annotations: {tranche.dev/gang-min-count: four}}` + gpu + gate + "}",
			want: []string{`gang: annotation tranche.dev/gang-min-count is "four"; write a whole number from 1 to 100000, such as "4"`},
		},
		"a bad size beside a bad request": {
			pod: `metadata: {labels: {tranche.dev/gang: g}, annotations: {tranche.dev/gang-min-count: four, tranche.dev/gpu-fraction: "0.5"}}` + gpu + "}",
			want: []string{
				"request: ",
				`gang: annotation tranche.dev/gang-min-count is "four"; write a whole number from 1 to 100000, such as "4"`,
			},
		},
		"an owner's bad size": {
			pod:   "metadata: {}" + gpu + gate + "}",
			owner: job(keys{"tranche.dev/gang": "g"}, keys{"tranche.dev/gang-min-count": "4.0"}),
			want:  []string{`gang: in Job train, which makes the pod, annotation tranche.dev/gang-min-count is "4.0"; write a whole number from 1 to 100000, such as "4"`},
		},
		"an owner's size without a gang": {
			pod:   "metadata: {}" + gpu + "}",
			owner: job(nil, keys{"tranche.dev/gang-min-count": "4"}),
			want:  []string{"gang: in Job train, which makes the pod, annotation tranche.dev/gang-min-count says how large a gang is, but no label names the gang; add the label tranche.dev/gang with a name that all members have, or remove the annotation"},
		},
		"the gate on a pod without GPU that a DaemonSet makes": {
			pod:          "metadata: {labels: {tranche.dev/gang: g}, " + daemon + "}" + cpu + gate + "}",
			want:         []string{"gate: the pod has the scheduling gate tranche.dev/admission but uses no GPU and is made by a DaemonSet" + liftOff},
			wantWarnings: []string{"label tranche.dev/gang" + idle},
		},
		"the gate on a pod without GPU that names its node": {
			pod:  "metadata: {}" + cpu + gate + ", nodeName: n}",
			want: []string{"gate: the pod has the scheduling gate tranche.dev/admission but uses no GPU and names its node" + liftOff},
		},
		"a gang of a pod without GPU that a DaemonSet makes": {
			pod:          `metadata: {labels: {tranche.dev/gang: Bad}, annotations: {tranche.dev/gang-min-count: "x"}, ` + daemon + "}" + cpu + "}",
			owner:        job(keys{"tranche.dev/gang": "g", "tranche.dev/queue": "q"}, nil),
			wantWarnings: []string{"label tranche.dev/gang" + idle},
		},
		"a size of a pod without GPU that a DaemonSet makes": {
			pod:          `metadata: {annotations: {tranche.dev/gang-min-count: "x"}, ` + daemon + "}" + cpu + "}",
			wantWarnings: []string{"annotation tranche.dev/gang-min-count" + idle},
		},
		"a bad size of a pod without GPU": {
			pod:  `metadata: {labels: {tranche.dev/gang: g}, annotations: {tranche.dev/gang-min-count: "x"}}` + cpu + "}",
			want: []string{`gang: annotation tranche.dev/gang-min-count is "x"; write a whole number from 1 to 100000, such as "4"`},
		},
		"a node of the pod's own": {
			pod:  "metadata: {labels: {tranche.dev/gang: g}}" + gpu + ", nodeName: n}",
			want: []string{"node_name: "},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			in := mutate.Input{Pod: parse(t, tc.pod), Owner: tc.owner, Fleet: mixed, Defaults: gatedDefaults}
			out := mutate.Pod(in)
			if out.Pod != in.Pod {
				t.Errorf("the pod was changed:\n%s", cmp.Diff(in.Pod, out.Pod))
			}
			var got []string
			for i, r := range out.Refusals {
				text := string(r.Reason) + ": " + r.Message
				if i < len(tc.want) && strings.HasSuffix(tc.want[i], ": ") { // the sentence is another test's
					text, _, _ = strings.Cut(text, " ")
					text += " "
				}
				got = append(got, text)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("refusals (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.wantWarnings, out.Warnings); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOwnersAreWantedOnlyWhereTheyMatter(t *testing.T) {
	cases := map[string]struct {
		pod  string
		want bool
	}{
		"a GPU":                 {`spec: {containers: [{name: main, resources: {limits: {nvidia.com/gpu: "1"}}}]}`, true},
		"a fraction":            {"metadata: {annotations: {tranche.dev/gpu-fraction: '0.5'}}\nspec: {containers: [{name: main}]}", true},
		"a queue of its own":    {"metadata: {labels: {tranche.dev/queue: q}, annotations: {tranche.dev/gpu-fraction: '0.5'}}\nspec: {containers: [{name: main}]}", true},
		"no GPU":                {"spec: {containers: [{name: main}]}", true},
		"no GPU, in its place":  {"spec: {nodeName: n, containers: [{name: main}]}", false},
		"no GPU, on every node": {"metadata: {ownerReferences: [{apiVersion: apps/v1, kind: DaemonSet, controller: true}]}\nspec: {containers: [{name: main}]}", false},
		"a gang of its own":     {"metadata: {labels: {tranche.dev/gang: g}, annotations: {tranche.dev/gpu-fraction: '0.5'}}\nspec: {containers: [{name: main}]}", true},
		"all of its own":        {"metadata: {labels: {tranche.dev/gang: g, tranche.dev/queue: q}, annotations: {tranche.dev/gpu-fraction: '0.5'}}\nspec: {containers: [{name: main}]}", false},
		"a pod that is refused": {"metadata: {annotations: {tranche.dev/gpu-fraction: x}}\nspec: {containers: [{name: main}]}", false},
	}
	for name, tc := range cases {
		if got := mutate.WantsOwner(parse(t, tc.pod), contract.DefaultResources()); got != tc.want {
			t.Errorf("%s: %t, want %t", name, got, tc.want)
		}
	}
}

func TestPatchOfAMemberIsMinimal(t *testing.T) {
	pod := parse(t, `
metadata: {annotations: {tranche.dev/gpu-fraction: "0.5"}, labels: {app: x}}
spec:
  schedulingGates: [{name: other}]
  tolerations: [{key: nvidia.com/gpu, operator: Exists}]
  containers: [{name: main, resources: {limits: {nvidia.com/gpu-share: "50"}, requests: {nvidia.com/gpu-share: "50"}}}]`)
	owner := job(keys{"tranche.dev/gang": "g", "tranche.dev/queue": "q"}, keys{"tranche.dev/gang-min-count": "2"})
	patch := func() []string {
		out := mutate.Pod(mutate.Input{Pod: pod, Owner: owner, Fleet: mixed, Defaults: gatedDefaults})
		var got []string
		for _, op := range mutate.Patch(pod, out.Pod) {
			text, err := json.Marshal(op)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, string(text))
		}
		slices.Sort(got)
		return got
	}
	want := []string{
		`{"op":"add","path":"/metadata/annotations/tranche.dev~1gang-min-count","value":"2"}`,
		`{"op":"add","path":"/metadata/labels/tranche.dev~1gang","value":"g"}`,
		`{"op":"add","path":"/metadata/labels/tranche.dev~1queue","value":"q"}`,
		`{"op":"add","path":"/spec/schedulingGates/-","value":{"name":"tranche.dev/admission"}}`,
	}
	if diff := cmp.Diff(want, patch()); diff != "" {
		t.Errorf("patch (-want +got):\n%s", diff)
	}
	pod.Spec.SchedulingGates = nil
	want[3] = `{"op":"add","path":"/spec/schedulingGates","value":[{"name":"tranche.dev/admission"}]}`
	if diff := cmp.Diff(want, patch()); diff != "" {
		t.Errorf("patch of a pod without gates (-want +got):\n%s", diff)
	}
}
