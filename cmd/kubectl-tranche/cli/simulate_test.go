package cli_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/tranche-dev/tranche/cmd/kubectl-tranche/cli"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

const (
	nodesCSV = "sn,cpu_milli,memory_mib,gpu,model\na,32000,65536,2,T4\nb,32000,65536,2,T4\nplain,64000,65536,0,\n"
	podsCSV  = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\np1,1000,1024,1,500,\np2,1000,1024,2,1000,T4\np3,1000,1024,1,1000,T4|A10\n"
)

func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func run(t *testing.T, stdin string, args ...string) (code int, out, stderr string) {
	t.Helper()
	var o, e bytes.Buffer
	code = cli.Run(append([]string{"simulate"}, args...), strings.NewReader(stdin), &o, &e)
	return code, o.String(), e.String()
}

// outcome is the part of the JSON that outside checks rely on, and the counts.
type outcome struct {
	Policy       string             `json:"policy"`
	Seed         int64              `json:"seed"`
	AllocationAt map[string]float64 `json:"allocationAt"`
	Allocated    float64            `json:"allocated"`
	Unusable     float64            `json:"unusable"`
	PlacedPods   int                `json:"placedPods"`
	WaitingPods  int                `json:"waitingPods"`
	WaitingGangs int                `json:"waitingGangs"`
}

func parse[T any](t *testing.T, out string) (o T) {
	t.Helper()
	if err := json.Unmarshal([]byte(out), &o); err != nil {
		t.Fatalf("%v in %q", err, out)
	}
	return o
}

func TestSimulatePlacesEachPodOfTheListOnce(t *testing.T) {
	args := []string{"--nodes", file(t, "n", nodesCSV), "--pods", file(t, "p", podsCSV), "--policy", "binpack", "-o", "json"}
	code, out, stderr := run(t, "", args...)
	if code != 0 {
		t.Fatal(stderr)
	}
	want := outcome{Policy: "binpack", Seed: 42, AllocationAt: map[string]float64{}, Allocated: 87.5, Unusable: 0, PlacedPods: 3}
	if diff := cmp.Diff(want, parse[outcome](t, out)); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
}

func TestSimulateTellsAllocationAtFullLoadAndInTheEnd(t *testing.T) {
	nodes, pods := nodesCSV, podsCSV
	for _, n := range []string{"c", "d", "e", "f", "g", "h", "i", "j"} {
		nodes += n + ",32000,65536,8,T4\n"
	}
	args := []string{"--nodes", file(t, "n", nodes), "--pods", file(t, "p", pods), "--load", "1.3", "--seed", "47", "-o", "json"}
	code, out, stderr := run(t, "", append(args, "--policy", "least-waste", "--policy=spread")...)
	if code != 0 {
		t.Fatal(stderr)
	}
	all := parse[[]outcome](t, out)
	if len(all) != 2 || all[0].Policy != "least-waste" || all[1].Policy != "spread" {
		t.Fatalf("policies of %s, want least-waste and spread", out)
	}
	for _, o := range all {
		if a, b := o.AllocationAt["100"], o.AllocationAt["130"]; o.Seed != 47 || a <= 50 || b < a || b > 100 || len(o.AllocationAt) != 2 {
			t.Errorf("%s: seed %d, allocated %v", o.Policy, o.Seed, o.AllocationAt)
		}
	}
	_, again, _ := run(t, "", append(args, "--policy", "least-waste,spread")...)
	if diff := cmp.Diff(out, again); diff != "" {
		t.Errorf("the same seed ends otherwise:\n%s", diff)
	}
}

func TestSimulateComparesAllPoliciesInATable(t *testing.T) {
	code, out, stderr := run(t, "", "--nodes", file(t, "n", nodesCSV), "--pods", file(t, "p", podsCSV))
	if code != 0 {
		t.Fatal(stderr)
	}
	for _, want := range []string{"2 nodes, 4 GPUs, 3 pods arrive (each once)", "POLICY", "UNUSABLE", "WAITING GANGS", "least-waste", "binpack", "spread"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
}

// objects is what kubectl would print.
func objects(t *testing.T, items ...any) string {
	t.Helper()
	text, err := yaml.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": items})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func gpuNode(t *testing.T, name string, gpus int) *corev1.Node {
	t.Helper()
	inv := contract.Inventory{SharesPerGPU: 100}
	for i := range gpus {
		inv.GPUs = append(inv.GPUs, contract.GPU{
			UUID: contract.GPUUUID("GPU-" + name + "-" + string(rune('0'+i))), Index: i, Model: "T4", MemoryMiB: 16 << 10, Healthy: true,
			Isolation: contract.IsolationNone,
		})
	}
	text, err := inv.Format()
	if err != nil {
		t.Fatal(err)
	}
	n := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Annotations = map[string]string{contract.InventoryAnnotation: text}
	n.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("8"), "memory": resource.MustParse("32Gi"), "pods": resource.MustParse("110")}
	return n
}

func pod(name, node string, limits corev1.ResourceList) *corev1.Pod {
	p := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: name}}
	p.Spec.NodeName = node
	p.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Limits: limits, Requests: limits}}}
	return p
}

func limits(cpu string, name corev1.ResourceName, n int64) corev1.ResourceList {
	list := corev1.ResourceList{"cpu": resource.MustParse(cpu)}
	if n > 0 {
		list[name] = *resource.NewQuantity(n, resource.DecimalSI)
	}
	return list
}

func TestSimulateReadsWhatKubectlPrints(t *testing.T) {
	member := pod("member", "", limits("1", "nvidia.com/gpu", 2))
	member.Labels = map[string]string{contract.GangLabel: "g"}
	ended := pod("ended", "n", limits("1", "nvidia.com/gpu", 2))
	ended.Status.Phase = corev1.PodSucceeded
	text := objects(
		t, gpuNode(t, "n", 2), &corev1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "plain"}},
		pod("half", "n", limits("1", "nvidia.com/gpu-share", 50)), pod("whole", "", limits("1", "nvidia.com/gpu", 1)),
		member, ended,
		// It leaves 3 of 8 processors, of which the two above take 2: not enough for "thirsty".
		pod("agent", "n", limits("5", "", 0)), pod("z-thirsty", "", limits("2", "nvidia.com/gpu-share", 10)),
	)
	code, out, stderr := run(t, text, "-f", "-", "-o", "json", "--policy", "least-waste")
	if code != 0 {
		t.Fatal(stderr)
	}
	want := outcome{Policy: "least-waste", Seed: 42, AllocationAt: map[string]float64{}, Allocated: 75, Unusable: 0, PlacedPods: 2, WaitingPods: 2, WaitingGangs: 1}
	if diff := cmp.Diff(want, parse[outcome](t, out)); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
}

func TestSimulateCountsMemoryAsOnTheLargestGPU(t *testing.T) {
	p := pod("memory", "", limits("1", "nvidia.com/gpu-share", 25))
	p.Annotations = map[string]string{contract.MemoryAnnotation: "4Gi"}
	_, out, stderr := run(t, objects(t, gpuNode(t, "n", 1), p), "-f", "-", "-o", "json", "--policy", "binpack")
	if got := parse[outcome](t, out).Allocated; got != 25 {
		t.Errorf("allocated %g %%, want 25: %s", got, stderr)
	}
}

func TestSimulateSaysWhatToWriteInstead(t *testing.T) {
	n, p := file(t, "n", nodesCSV), file(t, "p", podsCSV)
	otherGrain := gpuNode(t, "m", 1)
	inv, err := contract.ParseInventory(otherGrain.Annotations[contract.InventoryAnnotation])
	if err != nil {
		t.Fatal(err)
	}
	inv.SharesPerGPU = units.Shares(10)
	if otherGrain.Annotations[contract.InventoryAnnotation], err = inv.Format(); err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		args  []string
		stdin string
		want  string
	}{
		"nothing":              {want: "nothing to simulate; write --nodes FILE.csv --pods FILE.csv, or -f"},
		"nodes alone":          {args: []string{"--nodes", n}, want: "add --pods FILE.csv"},
		"pods alone":           {args: []string{"--pods", p}, want: "add --nodes FILE.csv"},
		"both ways":            {args: []string{"--nodes", n, "--pods", p, "-f", "-"}, want: "remove it, or --nodes and --pods"},
		"no such file":         {args: []string{"--nodes", n, "--pods", "/does/not/exist"}, want: "--pods: open /does/not/exist"},
		"files interchanged":   {args: []string{"--nodes", p, "--pods", n}, want: "the first line has no column sn; write sn,cpu_milli"},
		"no GPUs":              {args: []string{"--nodes", file(t, "x", "sn,cpu_milli,memory_mib,gpu,model\na,1,1,0,\n"), "--pods", p}, want: "no node has a GPU"},
		"wrong load":           {args: []string{"--nodes", n, "--pods", p, "--load", "-1"}, want: "--load=-1: write a number above 0"},
		"wrong policy":         {args: []string{"--nodes", n, "--pods", p, "--policy", "best"}, want: "--policy=best: write least-waste, binpack, spread or all"},
		"wrong output":         {args: []string{"--nodes", n, "--pods", p, "-o", "yaml"}, want: "--output=yaml: write table or json"},
		"no YAML":              {args: []string{"-f", "-"}, stdin: "a: [", want: "neither YAML nor JSON; write the output of 'kubectl get nodes,pods -A -o yaml'"},
		"one object":           {args: []string{"-f", "-"}, stdin: "kind: Pod", want: `kind is "Pod", not List; write the output of`},
		"no inventory":         {args: []string{"-f", "-"}, stdin: "kind: List\nitems: [{kind: Node, metadata: {name: a}}]", want: "none of its 1 nodes has the annotation tranche.dev/gpus"},
		"an odd item":          {args: []string{"-f", "-"}, stdin: "kind: List\nitems: [{kind: Node, metadata: 7}]", want: "items[0] is no Node that can be read"},
		"different grains":     {args: []string{"-f", "-"}, stdin: objects(t, gpuNode(t, "n", 1), otherGrain), want: "leave one kind of nodes out"},
		"an argument too many": {args: []string{"file.csv"}, want: `unknown command "file.csv"`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			code, out, stderr := run(t, tc.stdin, tc.args...)
			if code != 2 || !strings.Contains(stderr, tc.want) || out != "" {
				t.Errorf("code %d, stdout %q, stderr %q; want 2, nothing, %q", code, out, stderr, tc.want)
			}
		})
	}
}
