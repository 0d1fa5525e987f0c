package cdi_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	oci "github.com/opencontainers/runtime-spec/specs-go"
	upstream "tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/tranche-dev/tranche/nodeplugin/cdi"
	"github.com/tranche-dev/tranche/nodeplugin/nvml/models"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

var (
	a = models.UUID("n", 0)
	b = models.UUID("n", 1)
)

func grants(mem units.MiB, gpus ...contract.GPUUUID) []contract.Grant {
	var gs []contract.Grant
	for _, g := range gpus {
		gs = append(gs, contract.Grant{GPU: g, Shares: 1, MemoryMiB: mem})
	}
	return gs
}

// env returns what a container runtime gives a process whose pod asks for the
// variables in own, when devices are injected.
func env(t *testing.T, dir string, devices, own []string) []string {
	t.Helper()
	cache, err := upstream.NewCache(upstream.WithSpecDirs(dir))
	if err != nil {
		t.Fatal(err)
	}
	spec := &oci.Spec{Process: &oci.Process{Env: own}}
	if missing, err := cache.InjectDevices(spec, devices...); err != nil {
		t.Fatalf("%v: %v; errors in the files: %v", missing, err, cache.GetErrors())
	}
	slices.Sort(spec.Process.Env)
	return spec.Process.Env
}

func TestDevicesReplaceWhatThePodWrote(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cdi")
	w := cdi.New(cdi.Options{Dir: dir})
	two := grants(12288, b, a)
	var c cdi.Content
	c.Add(two)
	c.Add(grants(40960, a))
	if err := w.Write(c); err != nil {
		t.Fatal(err)
	}
	pod := []string{"NVIDIA_VISIBLE_DEVICES=all", "TRANCHE_GPU_MEMORY_MIB=1", "X=1"}
	gpus := []string{string(a), string(b)}
	slices.Sort(gpus)
	want := []string{"NVIDIA_VISIBLE_DEVICES=" + strings.Join(gpus, ","), "TRANCHE_GPU_MEMORY_MIB=12288", "X=1"}
	if diff := cmp.Diff(want, env(t, dir, w.Names(two), slices.Clone(pod))); diff != "" {
		t.Errorf("two GPUs (-want +got):\n%s", diff)
	}
	want = []string{"NVIDIA_VISIBLE_DEVICES=" + string(a), "TRANCHE_GPU_MEMORY_MIB=40960", "X=1"}
	if diff := cmp.Diff(want, env(t, dir, w.Names(grants(40960, a)), slices.Clone(pod))); diff != "" {
		t.Errorf("one GPU (-want +got):\n%s", diff)
	}
}

func TestLimitsAreGivenToTheToolkitWithoutARequest(t *testing.T) {
	dir := t.TempDir()
	w := cdi.New(cdi.Options{Dir: dir})
	w.Enforce(true)
	var c cdi.Content
	c.Add(grants(2048, a))
	if err := w.Write(c); err != nil {
		t.Fatal(err)
	}
	want := []string{"NVIDIA_GPU_MEMORY_LIMIT=2048", "NVIDIA_GPU_MEMORY_REQUEST=0", "NVIDIA_VISIBLE_DEVICES=" + string(a), "TRANCHE_GPU_MEMORY_MIB=2048"}
	if diff := cmp.Diff(want, env(t, dir, w.Names(grants(2048, a)), []string{"NVIDIA_GPU_MEMORY_LIMIT=99999"})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func nvidiaSpec(t *testing.T, dir, hook string) {
	t.Helper()
	text := `cdiVersion: "0.5.0"
kind: nvidia.com/gpu
containerEdits:
  env: [NVIDIA_VISIBLE_DEVICES=void]
devices:
- name: ` + string(a) + `
  containerEdits:
    hooks:
    - hookName: createRuntime
      path: /usr/bin/nvidia-cdi-hook
      args: [nvidia-cdi-hook, ` + hook + `, --gpu-id, ` + string(a) + `]
`
	if err := os.WriteFile(filepath.Join(dir, "nvidia.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestNVIDIAsDevicesComeFirstSoThatOursWin(t *testing.T) {
	dir := t.TempDir()
	nvidiaSpec(t, dir, "apply-cuda-memory-limits")
	w := cdi.New(cdi.Options{Dir: dir, NVIDIAKind: "nvidia.com/gpu"})
	var c cdi.Content
	c.Add(grants(7, a))
	if err := w.Write(c); err != nil {
		t.Fatal(err)
	}
	want := []string{"NVIDIA_VISIBLE_DEVICES=" + string(a), "TRANCHE_GPU_MEMORY_MIB=7"}
	if diff := cmp.Diff(want, env(t, dir, w.Names(grants(7, a)), nil)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestLimitsAreEnforcedOnlyWhereTheHookRuns(t *testing.T) {
	dir := t.TempDir()
	check := func(want string, gpus ...contract.GPUUUID) {
		t.Helper()
		err := cdi.EnforcesLimits("nvidia.com/gpu", gpus, dir)
		switch {
		case want == "" && err != nil, want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("EnforcesLimits = %v; want %q", err, want)
		}
	}
	check("nvidia-ctk cdi generate", a)
	nvidiaSpec(t, dir, "update-ldcache")
	check("has no hook apply-cuda-memory-limits", a)
	nvidiaSpec(t, dir, "apply-cuda-memory-limits")
	check("", a)
	check(string(b), a, b)
}

func TestWriteRepairsTheFileAndDropsWhatIsNotNeeded(t *testing.T) {
	dir := t.TempDir()
	w := cdi.New(cdi.Options{Dir: dir})
	content := cdi.Content{GPUs: []contract.GPUUUID{a}, Memory: []units.MiB{1, 2}}
	if err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(w.Path())
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(w.Path()); err != nil || !os.SameFile(before, after) {
		t.Errorf("an equal file was written again: %v", err)
	}
	if !w.Has(grants(1, a)) || w.Has(grants(3, a)) || w.Has(grants(1, b)) {
		t.Error("Has does not know what is in the file")
	}
	if err := os.Remove(w.Path()); err != nil {
		t.Fatal(err)
	}
	if w.Has(grants(1, a)) {
		t.Error("Has does not notice that the file is gone")
	}
	if err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	content.Memory = content.Memory[:1]
	if err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(w.Path())
	if err != nil || strings.Contains(string(text), "memory-2MiB") || !strings.Contains(string(text), "memory-1MiB") {
		t.Errorf("%s %v", text, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("left over: %v %v", entries, err)
	}
}

func TestAMachineWithoutGPUsNeedsNoFile(t *testing.T) {
	w := cdi.New(cdi.Options{Dir: t.TempDir()})
	if err := w.Write(cdi.Content{}); err != nil {
		t.Error(err)
	}
}
