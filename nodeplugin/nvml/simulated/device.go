package simulated

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"

	"github.com/tranche-dev/tranche/pkg/contract"
)

// device is a handle on a scripted GPU: a mock device whose answers follow the
// script. Handles stay valid while the script changes.
type device struct {
	*server.Device
	s    *Simulation
	uuid contract.GPUUUID
}

func (d *device) GetUUID() (string, gonvml.Return) {
	_, ret := d.s.gpu(d.uuid)
	return string(d.uuid), ret
}

func (d *device) GetName() (string, gonvml.Return) {
	_, ret := d.s.gpu(d.uuid)
	return d.Config.Name, ret
}

func (d *device) GetMemoryInfo() (gonvml.Memory, gonvml.Return) {
	g, ret := d.s.gpu(d.uuid)
	used := g.UsedMiB
	for _, p := range g.Processes {
		used += p.MemoryMiB
	}
	mem := d.MemoryInfo
	mem.Used = uint64(used) << 20
	mem.Free = mem.Total - mem.Used
	return mem, ret
}

func (d *device) GetMigMode() (int, int, gonvml.Return) {
	g, ret := d.s.gpu(d.uuid)
	if g.MIG {
		return gonvml.DEVICE_MIG_ENABLE, gonvml.DEVICE_MIG_ENABLE, ret
	}
	return gonvml.DEVICE_MIG_DISABLE, gonvml.DEVICE_MIG_DISABLE, ret
}

func (d *device) GetMemoryAffinity(numNodes int, _ gonvml.AffinityScope) ([]uint, gonvml.Return) {
	g, ret := d.s.gpu(d.uuid)
	if ret != gonvml.SUCCESS {
		return nil, ret
	}
	if g.NUMA == nil || *g.NUMA < 0 || *g.NUMA >= numNodes {
		return nil, gonvml.ERROR_NOT_SUPPORTED
	}
	mask := make([]uint, numNodes/bits.UintSize+1)
	mask[*g.NUMA/bits.UintSize] = 1 << (*g.NUMA % bits.UintSize)
	return mask, gonvml.SUCCESS
}

func (d *device) GetFieldValues(values []gonvml.FieldValue) gonvml.Return {
	g, ret := d.s.gpu(d.uuid)
	for i := range values {
		if values[i].FieldId != gonvml.FI_DEV_GET_GPU_RECOVERY_ACTION {
			values[i].NvmlReturn = uint32(gonvml.ERROR_NOT_SUPPORTED)
			continue
		}
		values[i].NvmlReturn = uint32(gonvml.SUCCESS)
		values[i].ValueType = uint32(gonvml.VALUE_TYPE_UNSIGNED_INT)
		binary.LittleEndian.PutUint32(values[i].Value[:], uint32(g.RecoveryAction))
	}
	return ret
}

func (d *device) GetComputeRunningProcesses() ([]gonvml.ProcessInfo, gonvml.Return) {
	g, ret := d.s.gpu(d.uuid)
	infos := make([]gonvml.ProcessInfo, 0, len(g.Processes))
	for _, p := range g.Processes {
		infos = append(infos, gonvml.ProcessInfo{Pid: p.PID, UsedGpuMemory: uint64(p.MemoryMiB) << 20})
	}
	return infos, ret
}

func (d *device) GetGraphicsRunningProcesses() ([]gonvml.ProcessInfo, gonvml.Return) {
	_, ret := d.s.gpu(d.uuid)
	return nil, ret
}

func (d *device) GetMPSComputeRunningProcesses() ([]gonvml.ProcessInfo, gonvml.Return) {
	_, ret := d.s.gpu(d.uuid)
	return nil, ret
}

func (d *device) SetMemoryLimits_v1(cgroup string, _, hard uint64) gonvml.Return { //nolint:revive // go-nvml's name
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	if _, ret := d.s.gpuLocked(d.uuid); ret != gonvml.SUCCESS {
		return ret
	}
	if d.s.limits[d.uuid] == nil {
		d.s.limits[d.uuid] = map[string]uint64{}
	}
	d.s.limits[d.uuid][cgroup] = hard
	return gonvml.SUCCESS
}

func (d *device) GetMemoryLimits_v1(cgroup string) (gonvml.MemoryLimits_v1, gonvml.Return) { //nolint:revive // go-nvml's name
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	if _, ret := d.s.gpuLocked(d.uuid); ret != gonvml.SUCCESS {
		return gonvml.MemoryLimits_v1{}, ret
	}
	hard, ok := d.s.limits[d.uuid][cgroup]
	if !ok {
		hard = gonvml.DEVICE_MEMORY_LIMIT_MAX
	}
	return gonvml.MemoryLimits_v1{NameSpace: cgroup, HardLimit: hard}, gonvml.SUCCESS
}

func (d *device) RegisterEvents(types uint64, set gonvml.EventSet) gonvml.Return {
	e, ok := set.(*eventSet)
	if !ok || types&gonvml.EventTypeXidCriticalError == 0 {
		return gonvml.ERROR_INVALID_ARGUMENT
	}
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	if _, ret := d.s.gpuLocked(d.uuid); ret != gonvml.SUCCESS {
		return ret
	}
	e.gpus[d.uuid] = true
	return gonvml.SUCCESS
}

func (d *device) GetPciInfo() (gonvml.PciInfo, gonvml.Return) {
	_, ret := d.s.gpu(d.uuid)
	p := gonvml.PciInfo{Bus: uint32(d.Index), PciDeviceId: d.Config.PciDeviceId}
	for i, c := range []byte(fmt.Sprintf("%08X:%02X:00.0", 0, d.Index)) {
		p.BusId[i] = int8(c)
	}
	return p, ret
}

func (d *device) GetNvLinkState(link int) (gonvml.EnableState, gonvml.Return) {
	g, ret := d.s.gpu(d.uuid)
	if link < g.NVLinks {
		return gonvml.FEATURE_ENABLED, ret
	}
	return gonvml.FEATURE_DISABLED, ret
}

func (d *device) GetNvLinkRemoteDeviceType(int) (gonvml.IntNvLinkDeviceType, gonvml.Return) {
	_, ret := d.s.gpu(d.uuid)
	return gonvml.NVLINK_DEVICE_TYPE_SWITCH, ret
}

func (d *device) GetTopologyCommonAncestor(other gonvml.Device) (gonvml.GpuTopologyLevel, gonvml.Return) {
	mine, ret := d.s.gpu(d.uuid)
	o, ok := other.(*device)
	if !ok || ret != gonvml.SUCCESS {
		return 0, gonvml.ERROR_INVALID_ARGUMENT
	}
	theirs, ret := d.s.gpu(o.uuid)
	if mine.NUMA != nil && theirs.NUMA != nil && *mine.NUMA == *theirs.NUMA {
		return gonvml.TOPOLOGY_NODE, ret
	}
	return gonvml.TOPOLOGY_SYSTEM, ret
}
