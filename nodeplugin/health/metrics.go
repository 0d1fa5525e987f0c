package health

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tranche-dev/tranche/nodeplugin/nvml"
	"github.com/tranche-dev/tranche/pkg/contract"
)

// Metrics of the GPUs' health and use.
type Metrics struct {
	xids     *prometheus.CounterVec
	failures prometheus.Counter
	memory   *prometheus.GaugeVec
	procs    *prometheus.GaugeVec
}

// NewMetrics registers the metrics with reg.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	const ns, sub = "tranche", "nodeplugin"
	m := &Metrics{
		xids: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: ns, Subsystem: sub, Name: "xids_total", Help: "Error reports of GPUs, by XID and whether they made the GPU unfit.",
		}, []string{"gpu", "xid", "fatal"}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: ns, Subsystem: sub, Name: "nvml_failures_total", Help: "Times that NVML as a whole failed or could not be started.",
		}),
		memory: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: ns, Subsystem: sub, Name: "gpu_memory_used_bytes", Help: "Memory in use on a GPU, the driver's own included.",
		}, []string{"gpu"}),
		procs: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: ns, Subsystem: sub, Name: "gpu_processes", Help: "Processes that use a GPU.",
		}, []string{"gpu"}),
	}
	reg.MustRegister(m.xids, m.failures, m.memory, m.procs)
	return m
}

func (m *Metrics) reported(e nvml.Event, fatal bool) {
	gpu := string(e.GPU)
	if gpu == "" {
		gpu = "unknown"
	}
	m.xids.WithLabelValues(gpu, strconv.FormatUint(e.XID, 10), strconv.FormatBool(fatal)).Inc()
}

func (m *Metrics) failed() { m.failures.Inc() }

func (m *Metrics) used(gpu contract.GPUUUID, u nvml.Usage) {
	m.memory.WithLabelValues(string(gpu)).Set(float64(u.Used) * (1 << 20))
	m.procs.WithLabelValues(string(gpu)).Set(float64(len(u.Processes)))
}

// only drops the series of all GPUs but these.
func (m *Metrics) only(gpus []nvml.GPU) {
	m.memory.Reset()
	m.procs.Reset()
	for _, g := range gpus {
		m.used(g.UUID, nvml.Usage{})
	}
}
