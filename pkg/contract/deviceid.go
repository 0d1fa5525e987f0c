package contract

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/tranche-dev/tranche/pkg/units"
)

// GPUUUID is NVML's identifier of a GPU, "GPU-" and a UUID. Unlike an index it
// survives reboots and reordering.
type GPUUUID string

// valid says whether u can stand where UUIDs do: in device IDs, in names of CDI
// devices and in lists separated by commas.
func (u GPUUUID) valid() bool {
	for _, c := range []byte(u) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_', c == '.':
		default:
			return false
		}
	}
	return u != ""
}

// deviceIDSeparator is what NVIDIA's device plugin puts between the UUID and
// the number of a replica; dcgm-exporter and others split at it.
const deviceIDSeparator = "::"

// DeviceID is one device of a resource as the kubelet sees it: share Slice of
// GPU, or, of the whole-GPU resource, the GPU itself with Slice 0.
type DeviceID struct {
	GPU   GPUUUID
	Slice int
}

// String formats d as "<GPU-UUID>::<n>".
func (d DeviceID) String() string {
	return string(d.GPU) + deviceIDSeparator + strconv.Itoa(d.Slice)
}

// ParseDeviceID is the inverse of DeviceID.String.
func ParseDeviceID(s string) (DeviceID, error) {
	gpu, n, ok := strings.Cut(s, deviceIDSeparator)
	slice, err := strconv.Atoi(n)
	if !ok || gpu == "" || err != nil || slice < 0 || slice >= int(units.MaxSharesPerGPU) || strconv.Itoa(slice) != n {
		return DeviceID{}, fmt.Errorf("device ID %q is not of the form <GPU-UUID>%s<number>", s, deviceIDSeparator)
	}
	return DeviceID{GPU: GPUUUID(gpu), Slice: slice}, nil
}
