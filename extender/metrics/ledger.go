package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tranche-dev/tranche/pkg/ledger"
)

// ledgerCollector reads the newest snapshot when it is scraped, so that the
// gauges can neither lag behind nor survive a node.
type ledgerCollector struct {
	snapshot func() *ledger.Snapshot

	nodes, holds, overcommitted, shares, gpus *prometheus.Desc
}

// NewLedgerCollector returns a collector of the gauges that are computed from
// the ledger.
func NewLedgerCollector(snapshot func() *ledger.Snapshot) prometheus.Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(namespace, subsystem, name), help, labels, nil)
	}
	return &ledgerCollector{
		snapshot:      snapshot,
		nodes:         desc("nodes", "Nodes with a GPU inventory."),
		holds:         desc("holds", "Pods that hold shares and are not bound yet."),
		overcommitted: desc("overcommitted_gpus", "GPUs that are charged beyond their shares; must be 0."),
		shares:        desc("gpu_shares", "Shares of all GPUs by model and state: allocated, held, free (of healthy GPUs) or unusable (what is left of unhealthy ones).", "model", "state"),
		gpus:          desc("gpus", "GPUs by model and health.", "model", "health"),
	}
}

func (c *ledgerCollector) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.nodes, c.holds, c.overcommitted, c.shares, c.gpus} {
		descs <- d
	}
}

// model sums up the GPUs of one model.
type model struct {
	healthy, unhealthy              int
	allocated, held, free, unusable int64
}

func (c *ledgerCollector) Collect(metrics chan<- prometheus.Metric) {
	s := c.snapshot()
	holds := 0
	models := map[string]*model{}
	for n := range s.Nodes() {
		for _, r := range n.Claims() {
			if r.State == ledger.Held {
				holds++
			}
		}
		gpus := n.GPUs()
		for i := range gpus {
			g := &gpus[i]
			m := models[g.Facts.Model]
			if m == nil {
				m = &model{}
				models[g.Facts.Model] = m
			}
			m.allocated += int64(g.Allocated)
			m.held += int64(g.Held)
			if g.Facts.Healthy {
				m.healthy++
				m.free += int64(g.Free)
			} else {
				m.unhealthy++
				m.unusable += int64(g.Free)
			}
		}
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(c.nodes, float64(s.Totals().Nodes))
	gauge(c.holds, float64(holds))
	gauge(c.overcommitted, float64(s.Totals().Overcommitted))
	for name, m := range models {
		gauge(c.gpus, float64(m.healthy), name, "healthy")
		gauge(c.gpus, float64(m.unhealthy), name, "unhealthy")
		gauge(c.shares, float64(m.allocated), name, "allocated")
		gauge(c.shares, float64(m.held), name, "held")
		gauge(c.shares, float64(m.free), name, "free")
		gauge(c.shares, float64(m.unusable), name, "unusable")
	}
}
