package nodeplugin

import (
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tranche-dev/tranche/nodeplugin/nvml/models"
)

// collector reads the gauges at each scrape, so that none outlives its object.
type collector struct{ p *Plugin }

var _ prometheus.Collector = (*collector)(nil)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName("tranche", "nodeplugin", name), help, labels, nil)
}

var (
	gpuHealthy   = desc("gpu_healthy", "1 if the GPU takes new pods.", "gpu", "index", "model")
	gpuMemory    = desc("gpu_memory_bytes", "Memory of the GPU.", "gpu")
	gpuShares    = desc("gpu_shares", "Shares that the GPU is cut into.", "gpu")
	gpuAllocated = desc("gpu_allocated_shares", "Shares of the GPU that are charged to pods.", "gpu")
	podShares    = desc("container_allocated_shares", "Shares of a GPU that a container holds.", "namespace", "pod", "container", "gpu")
	ready        = desc("ready", "1 if the node takes GPU pods as it should.")
)

// Describe lists the gauges.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{gpuHealthy, gpuMemory, gpuShares, gpuAllocated, podShares, ready} {
		ch <- d
	}
}

// Collect reads them.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	state, _ := c.p.monitor.State()
	gpus := c.p.currentGPUs()
	st := c.p.store.State()
	charged := st.Charged("")
	for _, g := range state.GPUs {
		gauge(gpuHealthy, number(gpus[g.UUID].Healthy), string(g.UUID), itoa(g.Index), models.DashedName(g.Product))
		gauge(gpuMemory, float64(g.Memory)*(1<<20), string(g.UUID))
		gauge(gpuShares, float64(c.p.opts.SharesPerGPU), string(g.UUID))
		gauge(gpuAllocated, float64(charged[g.UUID]), string(g.UUID))
	}
	for _, p := range st.Pods() {
		for _, name := range slices.Sorted(maps.Keys(p.Containers)) {
			for _, grant := range p.Containers[name].Grants {
				gauge(podShares, float64(grant.Shares), p.Namespace, p.Name, name, string(grant.GPU))
			}
		}
	}
	gauge(ready, number(c.p.Ready() == nil))
}

func number(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
