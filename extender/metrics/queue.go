package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Queue is what is shown of one queue. Amounts are in shares.
type Queue struct {
	Name                                         string
	Allocated, Held, Demand, Deserved, FairShare int64
	// Limit is -1 if there is none.
	Limit   int64
	Pending int32
}

// queueCollector asks for the queues when it is scraped, so that no series
// survives its queue.
type queueCollector struct {
	queues func() []Queue

	shares, pending *prometheus.Desc
}

// NewQueueCollector returns a collector of the gauges of queues.
func NewQueueCollector(queues func() []Queue) prometheus.Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(namespace, subsystem, name), help, labels, nil)
	}
	return &queueCollector{
		queues:  queues,
		shares:  desc("queue_gpu_shares", "Shares of GPUs by queue, all below it included, and kind: allocated, held, demand, deserved, fair_share, or limit, which is absent where there is none.", "queue", "kind"),
		pending: desc("queue_pending_gangs", "Gangs that wait, single pods included, by queue, all below it included.", "queue"),
	}
}

func (c *queueCollector) Describe(descs chan<- *prometheus.Desc) {
	descs <- c.shares
	descs <- c.pending
}

func (c *queueCollector) Collect(metrics chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for _, q := range c.queues() {
		for kind, shares := range map[string]int64{
			"allocated": q.Allocated, "held": q.Held, "demand": q.Demand, "deserved": q.Deserved, "fair_share": q.FairShare,
		} {
			gauge(c.shares, float64(shares), q.Name, kind)
		}
		if q.Limit >= 0 {
			gauge(c.shares, float64(q.Limit), q.Name, "limit")
		}
		gauge(c.pending, float64(q.Pending), q.Name)
	}
}
