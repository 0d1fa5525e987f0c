package simulated

import (
	"errors"
	"strconv"
	"strings"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/gpus"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"

	"github.com/tranche-dev/tranche/nodeplugin/nvml/models"
	"github.com/tranche-dev/tranche/nodeplugin/nvml/simulation"
	"github.com/tranche-dev/tranche/pkg/contract"
)

// api is go-nvml's interface to a Simulation. Its methods hide those of the
// mock server that have no script, or that would keep a record of every call
// and so grow for ever in a process that runs for months.
type api struct {
	*server.Server
	s *Simulation
}

var (
	_ gonvml.Interface         = (*api)(nil)
	_ gonvml.ExtendedInterface = (*api)(nil)
)

func (a *api) Extensions() gonvml.ExtendedInterface { return a }

// firstDriverWithLimits can bound what a cgroup uses.
const firstDriverWithLimits = 615

func (a *api) LookupSymbol(symbol string) error {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	major, _, _ := strings.Cut(a.s.file.Driver, ".")
	release, _ := strconv.Atoi(major)
	if strings.Contains(symbol, "MemoryLimits") && release < firstDriverWithLimits {
		return errors.New("undefined symbol: " + symbol)
	}
	return nil
}

func (a *api) Init() gonvml.Return {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	if a.s.file.Failure != "" {
		return returnCode(a.s.file.Failure)
	}
	a.s.inits++
	return gonvml.SUCCESS
}

func (a *api) Shutdown() gonvml.Return {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	if a.s.inits == 0 {
		return gonvml.ERROR_UNINITIALIZED
	}
	a.s.inits--
	return gonvml.SUCCESS
}

func (a *api) SystemGetDriverVersion() (string, gonvml.Return) {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	return a.s.file.Driver, a.s.ready()
}

// present returns the positions in the file of the GPUs that are there; the
// caller holds a.s.mu. A GPU's index counts only those.
func (a *api) present() []int {
	var at []int
	for i, g := range a.s.file.GPUs {
		if !g.Gone {
			at = append(at, i)
		}
	}
	return at
}

func (a *api) DeviceGetCount() (int, gonvml.Return) {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	return len(a.present()), a.s.ready()
}

func (a *api) DeviceGetHandleByIndex(index int) (gonvml.Device, gonvml.Return) {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	if ret := a.s.ready(); ret != gonvml.SUCCESS {
		return nil, ret
	}
	at := a.present()
	if index < 0 || index >= len(at) {
		return nil, gonvml.ERROR_INVALID_ARGUMENT
	}
	return a.handle(a.s.file.GPUs[at[index]].UUID, at[index])
}

func (a *api) DeviceGetHandleByUUID(uuid string) (gonvml.Device, gonvml.Return) {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	for i, g := range a.s.file.GPUs {
		if string(g.UUID) == uuid {
			return a.handle(g.UUID, i)
		}
	}
	if ret := a.s.ready(); ret != gonvml.SUCCESS {
		return nil, ret
	}
	return nil, gonvml.ERROR_NOT_FOUND
}

func (a *api) handle(uuid contract.GPUUUID, position int) (gonvml.Device, gonvml.Return) {
	if _, ret := a.s.gpuLocked(uuid); ret != gonvml.SUCCESS {
		return nil, ret
	}
	return &device{Device: a.s.devices[position], s: a.s, uuid: uuid}, gonvml.SUCCESS
}

func (a *api) EventSetCreate() (gonvml.EventSet, gonvml.Return) {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	if ret := a.s.ready(); ret != gonvml.SUCCESS {
		return nil, ret
	}
	e := &eventSet{s: a.s, gpus: map[contract.GPUUUID]bool{}}
	a.s.sets[e] = struct{}{}
	return e, gonvml.SUCCESS
}

// newDevice makes the mock behind a scripted GPU. go-nvml's own description is
// the base where it has one; name and memory are ours.
func newDevice(g simulation.GPU, position int) (*server.Device, error) {
	m, err := models.Lookup(g.Model)
	if err != nil {
		return nil, err
	}
	config, ok := map[string]gpus.Config{
		"A100-40GB": gpus.A100_SXM4_40GB, "A100-80GB": gpus.A100_SXM4_80GB, "A30-24GB": gpus.A30_PCIE_24GB,
		"B200-180GB": gpus.B200_SXM5_180GB, "H100-80GB": gpus.H100_SXM5_80GB, "H200-141GB": gpus.H200_SXM5_141GB,
	}[m.Short]
	if !ok {
		config = gpus.Config{Architecture: gonvml.DEVICE_ARCH_UNKNOWN, Brand: gonvml.BRAND_NVIDIA}
	}
	config.Name, config.MemoryMB = m.Product, uint64(m.Memory)
	d := server.NewDeviceFromConfig(config, position)
	d.UUID = string(g.UUID)
	return d, nil
}
