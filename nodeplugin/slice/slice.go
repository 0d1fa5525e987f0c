// Package slice turns GPUs into the devices that the kubelet counts, and plans
// into choices among them. It is pure.
//
// Of the share resource every GPU has as many devices as shares, numbered from
// 0; of the whole-GPU resource it has one, number 0. The number means nothing;
// the GPU in a device's ID is the decision. Devices carry no NUMA topology:
// with it the kubelet would take devices by memory node before it asks us.
package slice

import (
	"cmp"
	"slices"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

// GPU is what a device list needs to know of a GPU.
type GPU struct {
	UUID    contract.GPUUUID
	Healthy bool
}

// Device is one device as the kubelet sees it.
type Device struct {
	ID      string
	Healthy bool
}

// Shares lists the devices of the share resource: perGPU for every GPU, all as
// healthy as their GPU.
func Shares(gpus []GPU, perGPU units.Shares) []Device {
	devices := make([]Device, 0, len(gpus)*int(perGPU))
	for _, g := range gpus {
		for n := range int(perGPU) {
			devices = append(devices, Device{contract.DeviceID{GPU: g.UUID, Slice: n}.String(), g.Healthy})
		}
	}
	return devices
}

// Whole lists the devices of the whole-GPU resource, one for every GPU.
func Whole(gpus []GPU) []Device {
	devices := make([]Device, 0, len(gpus))
	for _, g := range gpus {
		devices = append(devices, Device{contract.DeviceID{GPU: g.UUID}.String(), g.Healthy})
	}
	return devices
}

// Parse reads device IDs and sorts them by GPU and number. The error is that
// of the first ID that is none, or says which one is there twice.
func Parse(ids []string) ([]contract.DeviceID, error) {
	parsed := make([]contract.DeviceID, 0, len(ids))
	for _, s := range ids {
		id, err := contract.ParseDeviceID(s)
		if err != nil {
			return nil, err
		}
		parsed = append(parsed, id)
	}
	slices.SortFunc(parsed, Compare)
	for i := 1; i < len(parsed); i++ {
		if parsed[i] == parsed[i-1] {
			return nil, &TwiceError{parsed[i]}
		}
	}
	return parsed, nil
}

// TwiceError says that an ID appears twice in one list.
type TwiceError struct{ ID contract.DeviceID }

func (e *TwiceError) Error() string { return "device ID " + e.ID.String() + " is there twice" }

// Compare orders device IDs by GPU and number.
func Compare(a, b contract.DeviceID) int {
	return cmp.Or(cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.Slice, b.Slice))
}

// CountByGPU says how many of ids each GPU has.
func CountByGPU(ids []contract.DeviceID) map[contract.GPUUUID]int {
	n := map[contract.GPUUUID]int{}
	for _, id := range ids {
		n[id.GPU]++
	}
	return n
}

// Shortage says that a GPU has too few free devices for a plan.
type Shortage struct {
	GPU        contract.GPUUUID
	Need, Free int
}

// Choose picks size IDs from available, the same number on each GPU of gpus,
// all of must among them. The lowest numbers come first, so that equal input
// gives equal output. size must be a multiple of len(gpus). It returns a
// Shortage if a GPU has too few, or if must lies outside gpus or takes more of
// one GPU than its part.
func Choose(gpus []contract.GPUUUID, available, must []contract.DeviceID, size int) ([]contract.DeviceID, *Shortage) {
	if len(gpus) == 0 || size%len(gpus) != 0 {
		return nil, &Shortage{Need: size}
	}
	each := size / len(gpus)
	chosen := make(map[contract.GPUUUID][]contract.DeviceID, len(gpus))
	for _, g := range gpus {
		chosen[g] = nil
	}
	for _, id := range sorted(must) {
		if _, planned := chosen[id.GPU]; !planned || len(chosen[id.GPU]) == each {
			return nil, &Shortage{GPU: id.GPU, Need: each}
		}
		chosen[id.GPU] = append(chosen[id.GPU], id)
	}
	free := map[contract.GPUUUID]int{}
	for _, id := range sorted(available) {
		if _, planned := chosen[id.GPU]; !planned || slices.Contains(must, id) {
			continue
		}
		free[id.GPU]++
		if len(chosen[id.GPU]) < each {
			chosen[id.GPU] = append(chosen[id.GPU], id)
		}
	}
	ids := make([]contract.DeviceID, 0, size)
	for _, g := range gpus {
		if len(chosen[g]) < each {
			return nil, &Shortage{GPU: g, Need: each, Free: free[g]}
		}
		ids = append(ids, chosen[g]...)
	}
	slices.SortFunc(ids, Compare)
	return ids, nil
}

func sorted(ids []contract.DeviceID) []contract.DeviceID {
	s := slices.Clone(ids)
	slices.SortFunc(s, Compare)
	return slices.Compact(s)
}

// Strings formats IDs, in the same order.
func Strings(ids []contract.DeviceID) []string {
	s := make([]string, 0, len(ids))
	for _, id := range ids {
		s = append(s, id.String())
	}
	return s
}
