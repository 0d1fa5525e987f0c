// Package nvidia turns go-nvml into nvml.Library. New is the real library;
// Wrap takes anything that has go-nvml's interface, which is how the simulated
// backend uses the same code.
package nvidia

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/tranche-dev/tranche/nodeplugin/nvml"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

const mib = 1 << 20

// New returns NVIDIA's library. path is the file to load, for drivers that are
// not where the loader looks; empty is libnvidia-ml.so.1. Nothing is loaded
// before Init.
func New(path string) nvml.Library {
	if path == "" {
		return Wrap(gonvml.New())
	}
	return Wrap(gonvml.New(gonvml.WithLibraryPath(path)))
}

// Wrap returns the nvml.Library over api.
func Wrap(api gonvml.Interface) nvml.Library { return &library{api} }

type library struct{ api gonvml.Interface }

var _ nvml.Library = (*library)(nil)

// check turns a return code into an error.
func check(call string, ret gonvml.Return) error {
	var sentinel error
	switch ret {
	case gonvml.SUCCESS:
		return nil
	case gonvml.ERROR_LIBRARY_NOT_FOUND:
		return nvml.ErrLibraryNotFound
	case gonvml.ERROR_NOT_SUPPORTED, gonvml.ERROR_FUNCTION_NOT_FOUND:
		sentinel = nvml.ErrNotSupported
	case gonvml.ERROR_GPU_IS_LOST:
		sentinel = nvml.ErrLost
	case gonvml.ERROR_NOT_FOUND, gonvml.ERROR_GPU_NOT_FOUND:
		sentinel = nvml.ErrNotFound
	case gonvml.ERROR_TIMEOUT:
		sentinel = nvml.ErrTimeout
	default:
		return &nvml.CallError{Call: call, Code: ret.Error()}
	}
	return fmt.Errorf("NVML: %s: %w", call, sentinel)
}

// has says whether the loaded library has a function. Calling one that it has
// not would end the process: the dynamic linker resolves it on first use.
func (l *library) has(symbol string) bool {
	return l.api.Extensions().LookupSymbol(symbol) == nil
}

func (l *library) Init() error     { return check("init", l.api.Init()) }
func (l *library) Shutdown() error { return check("shutdown", l.api.Shutdown()) }

func (l *library) Machine() (nvml.Machine, error) {
	driver, ret := l.api.SystemGetDriverVersion()
	if err := check("driver version", ret); err != nil {
		return nvml.Machine{}, err
	}
	count, ret := l.api.DeviceGetCount()
	if err := check("count of GPUs", ret); err != nil {
		return nvml.Machine{}, err
	}
	m := nvml.Machine{Driver: driver}
	for i := range count {
		g, err := l.describe(i)
		if err != nil {
			m.Unreadable = append(m.Unreadable, fmt.Errorf("GPU %d: %w", i, err))
			continue
		}
		m.GPUs = append(m.GPUs, g)
	}
	return m, nil
}

func (l *library) describe(index int) (nvml.GPU, error) {
	dev, ret := l.api.DeviceGetHandleByIndex(index)
	if err := check("handle", ret); err != nil {
		return nvml.GPU{}, err
	}
	uuid, ret := dev.GetUUID()
	if err := check("UUID", ret); err != nil {
		return nvml.GPU{}, err
	}
	name, ret := dev.GetName()
	if err := check("name", ret); err != nil {
		return nvml.GPU{}, err
	}
	mem, ret := dev.GetMemoryInfo()
	if err := check("memory", ret); err != nil {
		return nvml.GPU{}, err
	}
	g := nvml.GPU{UUID: contract.GPUUUID(uuid), Index: index, Product: name, Memory: toMiB(mem.Total), NUMA: -1}
	if l.has("nvmlDeviceGetMemoryAffinity") {
		if nodes, ret := dev.GetMemoryAffinity(maxNUMANodes, gonvml.AFFINITY_SCOPE_NODE); ret == gonvml.SUCCESS {
			g.NUMA = lowestBit(nodes)
		}
	}
	// GPUs that know no multi-instance mode answer "not supported".
	if mode, _, ret := dev.GetMigMode(); ret == gonvml.SUCCESS {
		g.MIG = mode == gonvml.DEVICE_MIG_ENABLE
	}
	return g, nil
}

const maxNUMANodes = 1024

// lowestBit returns the number of the lowest bit set in a bit mask, -1 if none.
func lowestBit(mask []uint) int {
	for i, word := range mask {
		if word != 0 {
			return i*bits.UintSize + bits.TrailingZeros(word)
		}
	}
	return -1
}

func toMiB(b uint64) units.MiB {
	return units.MiB(min(b/mib, uint64(units.MaxMemory)))
}

func (l *library) device(gpu contract.GPUUUID) (gonvml.Device, error) {
	dev, ret := l.api.DeviceGetHandleByUUID(string(gpu))
	if ret == gonvml.ERROR_INVALID_ARGUMENT { // what go-nvml's mock answers
		ret = gonvml.ERROR_NOT_FOUND
	}
	return dev, check("handle", ret)
}

func (l *library) Probe(gpu contract.GPUUUID) error {
	dev, err := l.device(gpu)
	if err != nil {
		return err
	}
	if _, ret := dev.GetMemoryInfo(); ret != gonvml.SUCCESS {
		return check("memory", ret)
	}
	action := []gonvml.FieldValue{{FieldId: gonvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
	// Older drivers and GPUs do not recommend anything.
	if check("recovery action", dev.GetFieldValues(action)) != nil || action[0].NvmlReturn != uint32(gonvml.SUCCESS) {
		return nil //nolint:nilerr // no advice is no fault
	}
	return recovery(gonvml.DeviceGpuRecoveryAction(binary.LittleEndian.Uint32(action[0].Value[:4])))
}

// recovery says what the driver wants done before the GPU is used again.
func recovery(action gonvml.DeviceGpuRecoveryAction) error {
	switch action {
	case gonvml.GPU_RECOVERY_ACTION_NONE:
		return nil
	case gonvml.GPU_RECOVERY_ACTION_GPU_RESET, gonvml.GPU_RECOVERY_ACTION_BUS_RESET:
		return errors.New("the driver asks for a reset of the GPU")
	case gonvml.GPU_RECOVERY_ACTION_NODE_REBOOT, gonvml.GPU_RECOVERY_ACTION_SYSTEM_REBOOT:
		return errors.New("the driver asks for a reboot of the node")
	case gonvml.GPU_RECOVERY_ACTION_DRAIN_P2P, gonvml.GPU_RECOVERY_ACTION_DRAIN_AND_RESET:
		return errors.New("the driver asks to drain and reset the GPU")
	case gonvml.GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN:
		return errors.New("the driver asks to recover the IMEX domain")
	default:
		return fmt.Errorf("the driver asks for recovery action %d", action)
	}
}

func (l *library) Usage(gpu contract.GPUUUID) (nvml.Usage, error) {
	dev, err := l.device(gpu)
	if err != nil {
		return nvml.Usage{}, err
	}
	mem, ret := dev.GetMemoryInfo()
	if err := check("memory", ret); err != nil {
		return nvml.Usage{}, err
	}
	u := nvml.Usage{Used: toMiB(mem.Used)}
	lists := []func() ([]gonvml.ProcessInfo, gonvml.Return){dev.GetComputeRunningProcesses, dev.GetGraphicsRunningProcesses}
	if l.has("nvmlDeviceGetMPSComputeRunningProcesses") {
		lists = append(lists, dev.GetMPSComputeRunningProcesses)
	}
	seen := map[uint32]bool{} // a process may be in several lists
	for _, list := range lists {
		infos, ret := list()
		if ret != gonvml.SUCCESS {
			continue // not all GPUs know all kinds of processes
		}
		for _, p := range infos {
			if !seen[p.Pid] {
				seen[p.Pid] = true
				u.Processes = append(u.Processes, nvml.Process{PID: p.Pid, Memory: processMemory(p.UsedGpuMemory)})
			}
		}
	}
	return u, nil
}

// processMemory is 0 where NVML says "not available" (all bits set).
func processMemory(b uint64) units.MiB {
	if b == ^uint64(0) {
		return 0
	}
	return toMiB(b)
}

func (l *library) limits(gpu contract.GPUUUID) (gonvml.Device, error) {
	for _, symbol := range []string{"nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1"} {
		if !l.has(symbol) {
			return nil, fmt.Errorf("NVML: memory limits: %w", nvml.ErrNotSupported)
		}
	}
	return l.device(gpu)
}

func (l *library) SetMemoryLimit(gpu contract.GPUUUID, cgroup string, limit units.MiB) error {
	dev, err := l.limits(gpu)
	if err != nil {
		return err
	}
	hard := uint64(gonvml.DEVICE_MEMORY_LIMIT_MAX)
	if limit < nvml.NoLimit {
		hard = uint64(max(limit, 0)) * mib
	}
	// A soft limit would be added to the guaranteed memory of every cgroup
	// above, and stay there after this one is gone; so there is none.
	return check("set memory limit", dev.SetMemoryLimits_v1(cgroup, 0, hard))
}

func (l *library) MemoryLimit(gpu contract.GPUUUID, cgroup string) (units.MiB, error) {
	dev, err := l.limits(gpu)
	if err != nil {
		return 0, err
	}
	limits, ret := dev.GetMemoryLimits_v1(cgroup)
	if err := check("memory limit", ret); err != nil {
		return 0, err
	}
	return toMiB(limits.HardLimit), nil
}

func (l *library) Watch(gpus []contract.GPUUUID) (nvml.Events, []contract.GPUUUID, error) {
	set, ret := l.api.EventSetCreate()
	if err := check("create event set", ret); err != nil {
		return nil, nil, err
	}
	var unwatched []contract.GPUUUID
	for _, gpu := range gpus {
		dev, err := l.device(gpu)
		if err != nil {
			// Its probe reports it.
			unwatched = append(unwatched, gpu)
			continue
		}
		if ret := dev.RegisterEvents(gonvml.EventTypeXidCriticalError, set); ret != gonvml.SUCCESS {
			unwatched = append(unwatched, gpu)
		}
	}
	return &events{set}, unwatched, nil
}

type events struct{ set gonvml.EventSet }

func (e *events) Wait(timeout time.Duration) (nvml.Event, error) {
	data, ret := e.set.Wait(uint32(min(timeout, time.Hour).Milliseconds()))
	if err := check("wait for events", ret); err != nil {
		return nvml.Event{}, err
	}
	if data.EventType != gonvml.EventTypeXidCriticalError {
		return nvml.Event{}, nvml.ErrTimeout
	}
	ev := nvml.Event{XID: data.EventData}
	if data.Device != nil {
		if uuid, ret := data.Device.GetUUID(); ret == gonvml.SUCCESS {
			ev.GPU = contract.GPUUUID(uuid)
		}
	}
	return ev, nil
}

func (e *events) Close() error { return check("free event set", e.set.Free()) }

// busID returns a PCI address as text.
func busID(p gonvml.PciInfo) string {
	b := make([]byte, 0, len(p.BusId))
	for _, c := range p.BusId {
		b = append(b, byte(c))
	}
	b, _, _ = bytes.Cut(b, []byte{0})
	return string(b)
}
