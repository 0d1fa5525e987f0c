package manifests

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

// Every sample is a request that the parser understands as its comment says.
func TestSamplesAskForWhatTheySay(t *testing.T) {
	app := func(name string, d contract.Demand) contract.Demand {
		d.ContainerRole = contract.ContainerRole{Name: name, Role: contract.RoleApp}
		if d.Count == 0 {
			d.Count = 1
		}
		return d
	}
	want := map[string]contract.Request{
		"pod-half-gpu.yaml": {Demands: []contract.Demand{app("main", contract.Demand{Shares: 50})}},
		"pod-memory.yaml":   {Demands: []contract.Demand{app("main", contract.Demand{Memory: 20 << 10})}},
		"deployment.yaml": {
			Demands:   []contract.Demand{app("server", contract.Demand{Shares: 25})},
			Placement: contract.PlacementBinpack,
		},
		"job.yaml": {
			Demands: []contract.Demand{app("main", contract.Demand{Shares: 34})},
			Models:  []string{"NVIDIA-A100-SXM4-80GB", "NVIDIA-H100-80GB-HBM3"},
		},
		"job-in-queue.yaml":  {Demands: []contract.Demand{app("main", contract.Demand{Shares: 25})}},
		"job-gang.yaml":      {Demands: []contract.Demand{app("main", contract.Demand{Shares: 50})}},
		"gang-topology.yaml": {Demands: []contract.Demand{app("server", contract.Demand{Memory: 20 << 10})}},
		"pod-two-containers.yaml": {Demands: []contract.Demand{
			app("model", contract.Demand{Shares: 50}), app("encoder", contract.Demand{Memory: 4 << 10}),
		}},
		"pod-two-halves.yaml": {Demands: []contract.Demand{app("main", contract.Demand{Shares: 50, Count: 2})}},
		"pod-whole-gpu.yaml":  {Demands: []contract.Demand{app("main", contract.Demand{Shares: 100, Count: 2, Whole: true})}},
	}
	got := map[string]contract.Request{}
	for file, all := range samples(t) {
		for _, o := range all {
			pod, ok := podOf(o)
			if !ok {
				continue
			}
			request, err := contract.ParsePod(pod, contract.DefaultResources())
			if err != nil {
				t.Errorf("%s: %v", file, err)
			}
			got[file] = request
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("requests by sample (-want +got):\n%s", diff)
	}
}

// Samples of gangs are whole once all of their pods are there.
func TestSamplesOfGangsCanStart(t *testing.T) {
	all := samples(t)
	job := of[*batchv1.Job](all["job-gang.yaml"])[0]
	name, minCount, err := contract.ParseGang(job)
	if err != nil || name == "" || minCount != *job.Spec.Parallelism {
		t.Errorf("gang %q of %d, %d pods at once, error %v", name, minCount, *job.Spec.Parallelism, err)
	}
	gang := of[*v1alpha1.Gang](all["gang-topology.yaml"])[0]
	set := of[*appsv1.StatefulSet](all["gang-topology.yaml"])[0]
	name, _, err = contract.ParseGang(&set.Spec.Template)
	if err != nil || name != gang.Name || set.Namespace != gang.Namespace || gang.Spec.MinCount > *set.Spec.Replicas {
		t.Errorf("gang %s of %d, the pods' label %q, %d pods, error %v", gang.Name, gang.Spec.MinCount, name, *set.Spec.Replicas, err)
	}
	// One after the other would wait for the first to be ready, and it for the gang.
	if set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement {
		t.Errorf("podManagementPolicy %s", set.Spec.PodManagementPolicy)
	}
}

// The sample's queues are a tree without a fault, whose leaves deserve no more
// than there is, and the Job is in a leaf.
func TestSampleQueuesAreATree(t *testing.T) {
	all := samples(t)
	queues := map[string]*view.Queue{}
	for _, o := range of[*v1alpha1.Queue](all["queues-company.yaml"]) {
		text, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		if _, problems := admitted(t, "tranche.dev_queues.yaml", string(text)); len(problems) > 0 {
			t.Errorf("queue %s is refused: %v", o.Name, problems)
		}
		q := view.QueueOf(o, contract.DefaultResources().PerGPU)
		if q.Problem != "" {
			t.Errorf("queue %s: %s", q.Name, q.Problem)
		}
		queues[q.Name] = q
	}
	sums := map[string]units.Shares{}
	for _, q := range queues {
		if q.Parent == "" {
			continue
		}
		if queues[q.Parent] == nil {
			t.Errorf("queue %s: there is no parent %s", q.Name, q.Parent)
		}
		sums[q.Parent] += *q.Deserved.GPU
	}
	for parent, sum := range sums {
		if have := *queues[parent].Deserved.GPU; sum > have {
			t.Errorf("the children of %s deserve %d shares, it has %d", parent, sum, have)
		}
	}
	job := of[*batchv1.Job](all["job-in-queue.yaml"])[0].Labels[contract.QueueLabel]
	if queues[job] == nil || sums[job] > 0 {
		t.Errorf("the Job is in queue %q, which is no leaf", job)
	}
}

func TestSamplesLiveInTheSampleNamespace(t *testing.T) {
	all := samples(t)
	ns := of[*corev1.Namespace](all["00-namespace.yaml"])[0]
	if ns.Labels[contract.InjectLabel] != contract.InjectEnabled || ns.Labels[contract.QueueLabel] == "" {
		t.Errorf("labels of namespace %s: %v", ns.Name, ns.Labels)
	}
	for file, list := range all {
		for _, o := range list {
			if _, ok := podOf(o); ok && o.GetNamespace() != ns.Name {
				t.Errorf("%s is in namespace %q, want %s", file, o.GetNamespace(), ns.Name)
			}
		}
	}
}

// samples are the objects of manifests/samples by file name.
func samples(t *testing.T) map[string]objects {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "manifests", "samples", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("samples %v: %v", files, err)
	}
	all := map[string]objects{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all[filepath.Base(f)] = decode(t, string(text))
	}
	return all
}

// podOf is the pod that o is, or makes.
func podOf(o any) (*corev1.Pod, bool) {
	var tmpl corev1.PodTemplateSpec
	switch o := o.(type) {
	case *corev1.Pod:
		return o, true
	case *appsv1.Deployment:
		tmpl = o.Spec.Template
	case *appsv1.StatefulSet:
		tmpl = o.Spec.Template
	case *batchv1.Job:
		tmpl = o.Spec.Template
	default:
		return nil, false
	}
	return &corev1.Pod{ObjectMeta: tmpl.ObjectMeta, Spec: tmpl.Spec}, true
}
