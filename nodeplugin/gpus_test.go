package nodeplugin_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tranche-dev/tranche/nodeplugin/nvml"
	"github.com/tranche-dev/tranche/nodeplugin/nvml/simulation"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/tests/testkit"
)

func TestFatalXIDsMakeAGPUUnfitUntilItHasBeenWellForAWhile(t *testing.T) {
	n := newNode(t, "A100-80GB", "A30-24GB").up()
	n.simulate(func(f *simulation.File) { f.GPUs[0].XIDs = []uint64{13, 31, 43, 45, 68, 109} })
	n.eventually(func() bool { return n.metric("tranche_nodeplugin_xids_total", "xid", "109", "fatal", "false") == 1 }, says("application errors are counted"))
	n.healthyAre(0, 1)
	n.simulate(func(f *simulation.File) { f.GPUs[0].XIDs = append(f.GPUs[0].XIDs, 79) })
	n.healthyAre(1)
	if got := n.reason(0); got != "XID 79: GPU has fallen off the bus" {
		t.Errorf("reason %q", got)
	}
	if err := n.plugin.Ready(); err != nil {
		t.Errorf("one GPU less is no reason not to be ready: %v", err)
	}
	n.refused(n.simple("p", 0, 10), "ns/p", string(gpu(0)))
	n.healthyAre(0, 1)
	n.admit(n.simple("q", 0, 10))
}

func TestALostAndAVanishedGPUAndANewOne(t *testing.T) {
	n := newNode(t, "A100-80GB", "A30-24GB").up()
	n.simulate(func(f *simulation.File) { f.GPUs[0].Lost = true })
	n.healthyAre(1)
	n.simulate(func(f *simulation.File) { f.GPUs[0].Lost = false })
	n.healthyAre(0, 1)
	n.simulate(func(f *simulation.File) { f.GPUs[0].Gone = true })
	n.healthyAre(1)
	if got := n.reason(0); !strings.Contains(got, "vanished") {
		t.Errorf("reason %q", got)
	}
	n.simulate(func(f *simulation.File) {
		f.GPUs[0].Gone = false
		f.GPUs = append(f.GPUs, simulation.GPU{Model: "T4-16GB"})
	})
	n.healthyAre(0, 1, 2)
}

// A GPU that comes back with another UUID is another GPU.
func TestAChangedUUIDIsAnotherGPU(t *testing.T) {
	const other = contract.GPUUUID("GPU-01234567-89ab-cdef-0123-456789abcdef")
	n := newNode(t, "A100-80GB").up()
	n.admit(n.simple("p", 0, 60))
	n.simulate(func(f *simulation.File) { f.GPUs[0].UUID = other })
	n.eventually(func() bool {
		healthy, all := n.kubelet.Healthy(share)
		return healthy == 100 && all == 200 && !strings.Contains(n.reason(0), "not in")
	}, says("the new one is fit, the old one is not"))
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	n.start() // must not take the devices of the earlier process for another plugin's
	n.ready()
	p := n.pod(testkit.MakePod("ns", "q").Container("main", testkit.Shares("100")), plan{"main": {{GPU: other, Shares: 100, MemoryMiB: 81920}}})
	n.admit(p)
}

func TestNVMLMayFailAtFirstAndLater(t *testing.T) {
	n := newNode(t, "A100-80GB", "A30-24GB")
	n.simulate(func(f *simulation.File) { f.Failure = "ERROR_DRIVER_NOT_LOADED" })
	n.startKubelet()
	n.start()
	n.eventually(func() bool {
		err := n.plugin.Ready()
		return err != nil && strings.Contains(err.Error(), "ERROR_DRIVER_NOT_LOADED")
	}, says("not ready because of NVML"))
	n.simulate(func(f *simulation.File) { f.Failure = "" })
	n.ready()
	n.healthyAre(0, 1)
	n.simulate(func(f *simulation.File) { f.Failure = "ERROR_UNKNOWN" })
	n.healthyAre()
	if err := n.plugin.Ready(); err == nil || !strings.Contains(err.Error(), "ERROR_UNKNOWN") {
		t.Errorf("Ready: %v", err)
	}
	n.simulate(func(f *simulation.File) { f.Failure = "" })
	n.healthyAre(0, 1)
}

// After a reboot the Node still has the inventory of before.
func TestWithoutNVMLTheEarlierInventoryIsDisowned(t *testing.T) {
	n := newNode(t, "A100-80GB").up()
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	n.simulate(func(f *simulation.File) { f.Failure = "ERROR_LIBRARY_NOT_FOUND" })
	n.start()
	n.eventually(func() bool { return strings.Contains(n.reason(0), "install the NVIDIA driver") }, says("the GPU is unfit on the Node"))
}

func TestFailOnInitErrorEndsTheProgram(t *testing.T) {
	n := newNode(t, "A100-80GB")
	n.simulate(func(f *simulation.File) { f.Failure = "ERROR_LIBRARY_NOT_FOUND" })
	n.opts.FailOnInitError = true
	n.startKubelet()
	n.start()
	if err := <-n.ended; !errors.Is(err, nvml.ErrLibraryNotFound) {
		t.Errorf("Run: %v", err)
	}
	n.cancel()
	n.cancel = nil
}

func TestANodeWithoutGPUsIsReadyAndSaysSo(t *testing.T) {
	n := newNode(t)
	n.startKubelet()
	n.start()
	n.eventually(func() bool { return n.plugin.Ready() == nil }, func() string { return fmt.Sprint(n.plugin.Ready()) })
	if inv := n.inventory(); inv.Version != 1 || len(inv.GPUs) != 0 {
		t.Errorf("inventory: %+v", inv)
	}
}

func TestAGPUInMIGModeIsNotShared(t *testing.T) {
	n := newNode(t, "A100-80GB", "A30-24GB")
	n.simulate(func(f *simulation.File) { f.GPUs[0].MIG = true })
	n.up()
	n.healthyAre(1)
	if got := n.reason(0); !strings.Contains(got, "nvidia-smi -mig 0") {
		t.Errorf("reason %q", got)
	}
}

func TestIsolationThatIsDemandedAndImpossibleIsSaid(t *testing.T) {
	n := newNode(t, "A100-80GB")
	n.opts.Isolation = "cgroup"
	n.startKubelet()
	n.start()
	n.eventually(func() bool {
		err := n.plugin.Ready()
		return err != nil && strings.Contains(err.Error(), "older than release 615")
	}, says("not ready"))
	n.eventually(func() bool { return strings.Contains(n.reason(0), "--isolation=cgroup") }, says("the Node says why"))
	if _, all := n.kubelet.Healthy(share); all != 0 {
		t.Errorf("%d devices are offered", all)
	}
}

func TestIsolationByCgroupIsInTheInventoryAndTheCDIFile(t *testing.T) {
	n := newNode(t, "A100-80GB")
	n.simulate(func(f *simulation.File) { f.Driver = "615.71.09" })
	n.opts.Isolation, n.opts.CgroupRoot = "cgroup", t.TempDir()
	if err := os.WriteFile(filepath.Join(n.opts.CgroupRoot, "cgroup.controllers"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n.up()
	if inv := n.inventory(); len(inv.GPUs) != 1 || inv.GPUs[0].Isolation != contract.IsolationCgroup {
		t.Errorf("inventory: %+v", inv)
	}
	text, err := os.ReadFile(filepath.Join(n.opts.CDIDir, "tranche.dev-gpu.yaml"))
	if err != nil || !strings.Contains(string(text), "NVIDIA_GPU_MEMORY_LIMIT=40960") {
		t.Errorf("CDI file: %v", err)
	}
}
