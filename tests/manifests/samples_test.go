package manifests

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/tranche-dev/tranche/pkg/contract"
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
	case *batchv1.Job:
		tmpl = o.Spec.Template
	default:
		return nil, false
	}
	return &corev1.Pod{ObjectMeta: tmpl.ObjectMeta, Spec: tmpl.Spec}, true
}
