package nvidia

import (
	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/tranche-dev/tranche/nodeplugin/nvml"
	"github.com/tranche-dev/tranche/pkg/contract"
)

// wiring is one GPU's side of its connections.
type wiring struct {
	gpu nvml.GPU
	dev gonvml.Device
	// toSwitch counts NVLinks that end at a switch, to the NVLinks that end
	// at the GPU with that PCI address.
	toSwitch int
	to       map[string]int
	bus      string
}

func (l *library) Links(gpus []nvml.GPU) map[contract.GPUUUID][]contract.Link {
	wires := make([]wiring, 0, len(gpus))
	for _, g := range gpus {
		if dev, err := l.device(g.UUID); err == nil {
			wires = append(wires, l.wiring(g, dev))
		}
	}
	links := map[contract.GPUUUID][]contract.Link{}
	for i, a := range wires {
		for j, b := range wires {
			if i == j {
				continue
			}
			if link, ok := connection(a, b); ok {
				links[a.gpu.UUID] = append(links[a.gpu.UUID], link)
			}
		}
	}
	return links
}

func (l *library) wiring(g nvml.GPU, dev gonvml.Device) wiring {
	w := wiring{gpu: g, dev: dev, to: map[string]int{}}
	if pci, ret := dev.GetPciInfo(); ret == gonvml.SUCCESS {
		w.bus = busID(pci)
	}
	known := l.has("nvmlDeviceGetNvLinkRemoteDeviceType")
	for n := range gonvml.NVLINK_MAX_LINKS {
		if state, ret := dev.GetNvLinkState(n); ret != gonvml.SUCCESS || state != gonvml.FEATURE_ENABLED {
			continue
		}
		if known {
			if kind, ret := dev.GetNvLinkRemoteDeviceType(n); ret == gonvml.SUCCESS && kind == gonvml.NVLINK_DEVICE_TYPE_SWITCH {
				w.toSwitch++
				continue
			}
		}
		if pci, ret := dev.GetNvLinkRemotePciInfo(n); ret == gonvml.SUCCESS {
			w.to[busID(pci)]++
		}
	}
	return w
}

// connection says how a reaches b: by NVLink, directly or through a switch,
// else by the nearest common ancestor on PCIe.
func connection(a, b wiring) (contract.Link, bool) {
	nvlinks := min(a.toSwitch, b.toSwitch)
	if b.bus != "" {
		nvlinks += a.to[b.bus]
	}
	if nvlinks > 0 {
		return contract.Link{To: b.gpu.Index, Type: contract.LinkNVLink, Count: nvlinks}, true
	}
	level, ret := a.dev.GetTopologyCommonAncestor(b.dev)
	if ret != gonvml.SUCCESS {
		return contract.Link{}, false
	}
	kind, ok := map[gonvml.GpuTopologyLevel]string{
		gonvml.TOPOLOGY_INTERNAL: contract.LinkBoard, gonvml.TOPOLOGY_SINGLE: contract.LinkSwitch, gonvml.TOPOLOGY_MULTIPLE: contract.LinkBridge,
		gonvml.TOPOLOGY_HOSTBRIDGE: contract.LinkHost, gonvml.TOPOLOGY_NODE: contract.LinkNUMA, gonvml.TOPOLOGY_SYSTEM: contract.LinkSystem,
	}[level]
	return contract.Link{To: b.gpu.Index, Type: kind}, ok
}
