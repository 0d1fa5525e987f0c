package simulated_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"k8s.io/klog/v2/ktesting"

	"github.com/tranche-dev/tranche/nodeplugin/nvml"
	"github.com/tranche-dev/tranche/nodeplugin/nvml/models"
	"github.com/tranche-dev/tranche/nodeplugin/nvml/nvidia"
	"github.com/tranche-dev/tranche/nodeplugin/nvml/simulated"
	"github.com/tranche-dev/tranche/nodeplugin/nvml/simulation"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const node = "n"

// start returns a simulation of f, followed until the test ends, and a
// function that replaces its file.
func start(t *testing.T, f simulation.File) (nvml.Library, func(simulation.File)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "gpus.yaml")
	write := func(f simulation.File) {
		t.Helper()
		text, err := f.Format()
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path+".new", text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	write(f)
	s, err := simulated.Load(path, node)
	if err != nil {
		t.Fatal(err)
	}
	_, ctx := ktesting.NewTestContext(t)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- s.Follow(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Follow: %v", err)
		}
	})
	return s.Library(), write
}

func mustInit(t *testing.T, lib nvml.Library) {
	t.Helper()
	if err := lib.Init(); err != nil {
		t.Fatal(err)
	}
}

// eventually polls until f returns true.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for !f() {
		select {
		case <-deadline:
			t.Fatalf("not within 10 s: %s", what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func TestMachineIsAsScripted(t *testing.T) {
	f := simulation.Machine("A100-80GB", "A30-24GB", "H100-80GB")
	f.GPUs[0].NUMA = new(1)
	f.GPUs[2].MIG = true
	lib, _ := start(t, f)
	mustInit(t, lib)
	got, err := lib.Machine()
	if err != nil {
		t.Fatal(err)
	}
	want := nvml.Machine{Driver: simulation.DefaultDriver, GPUs: []nvml.GPU{
		{UUID: models.UUID(node, 0), Index: 0, Product: "NVIDIA A100-SXM4-80GB", Memory: 81920, NUMA: 1},
		{UUID: models.UUID(node, 1), Index: 1, Product: "NVIDIA A30", Memory: 24576, NUMA: -1},
		{UUID: models.UUID(node, 2), Index: 2, Product: "NVIDIA H100 80GB HBM3", Memory: 81559, NUMA: -1, MIG: true},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Machine (-want +got):\n%s", diff)
	}
}

func TestEveryModelCanBeSimulated(t *testing.T) {
	var names []string
	for _, m := range models.All() {
		names = append(names, m.Short)
	}
	lib, _ := start(t, simulation.Machine(names...))
	mustInit(t, lib)
	got, err := lib.Machine()
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range models.All() {
		if g := got.GPUs[i]; g.Product != m.Product || g.Memory != m.Memory {
			t.Errorf("%s: %+v", m.Short, g)
		}
	}
}

func TestNothingWorksBeforeInitAndAfterShutdown(t *testing.T) {
	lib, _ := start(t, simulation.Machine("T4-16GB"))
	if _, err := lib.Machine(); err == nil {
		t.Error("Machine works before Init")
	}
	mustInit(t, lib)
	if err := lib.Shutdown(); err != nil {
		t.Fatal(err)
	}
	if err := lib.Probe(models.UUID(node, 0)); err == nil {
		t.Error("Probe works after Shutdown")
	}
}

func TestXIDsAreDeliveredOnceEach(t *testing.T) {
	f := simulation.Machine("A100-80GB", "A30-24GB")
	lib, write := start(t, f)
	mustInit(t, lib)
	gpus := []contract.GPUUUID{models.UUID(node, 0), models.UUID(node, 1)}
	events, unwatched, err := lib.Watch(gpus)
	if err != nil || len(unwatched) > 0 {
		t.Fatal(unwatched, err)
	}
	defer func() { _ = events.Close() }()
	if _, err := events.Wait(time.Millisecond); !errors.Is(err, nvml.ErrTimeout) {
		t.Errorf("Wait without an event: %v", err)
	}
	f.GPUs[1].XIDs = []uint64{13, 79}
	write(f)
	for _, want := range []uint64{13, 79} {
		got, err := events.Wait(10 * time.Second)
		if diff := cmp.Diff(nvml.Event{GPU: gpus[1], XID: want}, got); diff != "" || err != nil {
			t.Errorf("%v %s", err, diff)
		}
	}
	f.GPUs[1].XIDs = append(f.GPUs[1].XIDs, 79)
	f.GPUs[1].UsedMiB = 1
	write(f)
	if got, err := events.Wait(10 * time.Second); err != nil || got.XID != 79 {
		t.Errorf("the same XID once more: %+v %v", got, err)
	}
	if got, err := events.Wait(50 * time.Millisecond); !errors.Is(err, nvml.ErrTimeout) {
		t.Errorf("an XID twice: %+v %v", got, err)
	}
}

func TestXIDsOfTheFirstFileAreHistory(t *testing.T) {
	f := simulation.Machine("A100-80GB")
	f.GPUs[0].XIDs = []uint64{48}
	lib, write := start(t, f)
	mustInit(t, lib)
	f.GPUs[0].XIDs = append(f.GPUs[0].XIDs, 79)
	write(f)
	// Without a watcher events wait for one.
	events, _, err := lib.Watch([]contract.GPUUUID{models.UUID(node, 0)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = events.Close() }()
	if got, err := events.Wait(10 * time.Second); err != nil || got.XID != 79 {
		t.Errorf("%+v %v", got, err)
	}
	if got, err := events.Wait(20 * time.Millisecond); !errors.Is(err, nvml.ErrTimeout) {
		t.Errorf("an old one: %+v %v", got, err)
	}
}

func TestLostGPUAnswersNothingUntilItRecovers(t *testing.T) {
	f := simulation.Machine("A100-80GB", "A30-24GB")
	lib, write := start(t, f)
	mustInit(t, lib)
	gpu := models.UUID(node, 0)
	events, _, err := lib.Watch([]contract.GPUUUID{gpu})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = events.Close() }()
	f.GPUs[0].Lost = true
	write(f)
	if _, err := events.Wait(10 * time.Second); !errors.Is(err, nvml.ErrLost) {
		t.Errorf("Wait: %v", err)
	}
	if err := lib.Probe(gpu); !errors.Is(err, nvml.ErrLost) {
		t.Errorf("Probe: %v", err)
	}
	m, err := lib.Machine()
	if err != nil || len(m.GPUs) != 1 || m.GPUs[0].Index != 1 || len(m.Unreadable) != 1 || !errors.Is(m.Unreadable[0], nvml.ErrLost) {
		t.Errorf("Machine: %+v %v", m, err)
	}
	f.GPUs[0].Lost = false
	write(f)
	eventually(t, "the GPU answers again", func() bool { return lib.Probe(gpu) == nil })
}

func TestAGoneGPUMovesTheIndicesButNotTheUUIDs(t *testing.T) {
	f := simulation.Machine("A100-80GB", "A30-24GB")
	f.GPUs[0].Gone = true
	lib, _ := start(t, f)
	mustInit(t, lib)
	m, err := lib.Machine()
	if err != nil || len(m.GPUs) != 1 || m.GPUs[0].Index != 0 || m.GPUs[0].UUID != models.UUID(node, 1) {
		t.Errorf("Machine: %+v %v", m, err)
	}
	if err := lib.Probe(models.UUID(node, 0)); !errors.Is(err, nvml.ErrNotFound) {
		t.Errorf("Probe: %v", err)
	}
}

func TestFailureOfTheWholeLibrary(t *testing.T) {
	f := simulation.Machine("A100-80GB")
	f.Failure = "ERROR_LIBRARY_NOT_FOUND"
	lib, write := start(t, f)
	if err := lib.Init(); !errors.Is(err, nvml.ErrLibraryNotFound) {
		t.Errorf("Init: %v", err)
	}
	f.Failure = ""
	write(f)
	eventually(t, "Init works", func() bool { return lib.Init() == nil })
	f.Failure = "ERROR_DRIVER_NOT_LOADED"
	write(f)
	eventually(t, "Machine fails", func() bool {
		_, err := lib.Machine()
		var call *nvml.CallError
		return errors.As(err, &call) && call.Code == "ERROR_DRIVER_NOT_LOADED"
	})
	if err := lib.Probe(models.UUID(node, 0)); err == nil {
		t.Error("Probe works")
	}
}

func TestAWrongFileChangesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "gpus.yaml")
	if _, err := simulated.Load(path, node); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Load without a file: %v", err)
	}
	if err := os.WriteFile(path, []byte("gpus: [{model: T4-16GB}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := simulated.Load(path, node)
	if err != nil {
		t.Fatal(err)
	}
	lib := s.Library()
	mustInit(t, lib)
	if err := s.Set(simulation.Machine("no such model")); err == nil {
		t.Error("Set takes an unknown model")
	}
	if m, err := lib.Machine(); err != nil || len(m.GPUs) != 1 {
		t.Errorf("Machine: %+v %v", m, err)
	}
}

func TestUsageAddsUpProcessesAndTheRest(t *testing.T) {
	f := simulation.Machine("A30-24GB")
	f.GPUs[0].UsedMiB = 100
	f.GPUs[0].Processes = []simulation.Process{{PID: 7, MemoryMiB: 1000}, {PID: 8, MemoryMiB: 24}}
	lib, _ := start(t, f)
	mustInit(t, lib)
	got, err := lib.Usage(models.UUID(node, 0))
	want := nvml.Usage{Used: 1124, Processes: []nvml.Process{{PID: 7, Memory: 1000}, {PID: 8, Memory: 24}}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}
}

func TestMemoryLimitsNeedARecentDriver(t *testing.T) {
	f := simulation.Machine("A30-24GB")
	lib, write := start(t, f)
	mustInit(t, lib)
	gpu := models.UUID(node, 0)
	if err := lib.SetMemoryLimit(gpu, "/c", 100); !errors.Is(err, nvml.ErrNotSupported) {
		t.Errorf("SetMemoryLimit on an old driver: %v", err)
	}
	f.Driver = "615.71.09"
	write(f)
	eventually(t, "limits work", func() bool { return lib.SetMemoryLimit(gpu, "/c", 100) == nil })
	for cgroup, want := range map[string]units.MiB{"/c": 100, "/other": nvml.NoLimit} {
		if got, err := lib.MemoryLimit(gpu, cgroup); err != nil || got != want {
			t.Errorf("MemoryLimit(%s) = %d, %v; want %d", cgroup, got, err, want)
		}
	}
}

func TestRecoveryActionFailsTheProbe(t *testing.T) {
	f := simulation.Machine("A30-24GB")
	f.GPUs[0].RecoveryAction = 1
	lib, _ := start(t, f)
	mustInit(t, lib)
	if err := lib.Probe(models.UUID(node, 0)); err == nil || err.Error() != "the driver asks for a reset of the GPU" {
		t.Errorf("Probe: %v", err)
	}
}

func TestLinks(t *testing.T) {
	f := simulation.Machine("A100-80GB", "A100-80GB", "A30-24GB", "A30-24GB")
	for i := range f.GPUs {
		f.GPUs[i].NUMA = new(i / 3)
	}
	f.GPUs[0].NVLinks, f.GPUs[1].NVLinks = 12, 12
	lib, _ := start(t, f)
	mustInit(t, lib)
	m, err := lib.Machine()
	if err != nil {
		t.Fatal(err)
	}
	got := lib.Links(m.GPUs)
	want := []contract.Link{{To: 1, Type: "nvlink", Count: 12}, {To: 2, Type: "numa"}, {To: 3, Type: "system"}}
	if !slices.Equal(got[models.UUID(node, 0)], want) {
		t.Errorf("links of GPU 0: %+v; want %+v", got[models.UUID(node, 0)], want)
	}
}

func TestTheRealLibraryIsReportedMissingInPlainWords(t *testing.T) {
	lib := nvidia.New("/no/such/libnvidia-ml.so.1")
	if err := lib.Init(); !errors.Is(err, nvml.ErrLibraryNotFound) {
		t.Errorf("Init: %v", err)
	}
}
