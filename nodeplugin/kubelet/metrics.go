package kubelet

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
)

// Metrics of the conversation with the kubelet.
type Metrics struct {
	questions     *prometheus.HistogramVec
	answers       *prometheus.HistogramVec
	registrations *prometheus.CounterVec
	connected     *prometheus.GaugeVec
	fallbacks     prometheus.Counter
	panics        prometheus.Counter
}

// NewMetrics registers the metrics with reg.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	const ns, sub = "tranche", "nodeplugin"
	m := &Metrics{
		questions: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: ns, Subsystem: sub, Name: "kubelet_request_duration_seconds",
			Help:    "Time that the kubelet's pods and pod-resources APIs took, by method and gRPC code.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 13),
		}, []string{"method", "code"}),
		answers: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: ns, Subsystem: sub, Name: "rpc_duration_seconds",
			Help:    "Time that we took to answer the kubelet, which admits no pod meanwhile, by resource, method and gRPC code.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 13),
		}, []string{"resource", "method", "code"}),
		registrations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: ns, Subsystem: sub, Name: "registrations_total",
			Help: "Registrations with the kubelet, by resource and result (ok, error).",
		}, []string{"resource", "result"}),
		connected: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: ns, Subsystem: sub, Name: "kubelet_connected",
			Help: "1 while the kubelet receives our list of devices.",
		}, []string{"resource"}),
		fallbacks: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: ns, Subsystem: sub, Name: "pod_source_fallbacks_total",
			Help: "Lists of pods taken from the API server's cache because the kubelet did not answer.",
		}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: ns, Subsystem: sub, Name: "panics_total", Help: "Answers to the kubelet that panicked; must be 0.",
		}),
	}
	reg.MustRegister(m.questions, m.answers, m.registrations, m.connected, m.fallbacks, m.panics)
	return m
}

func (m *Metrics) asked(method string, code codes.Code, took time.Duration) {
	m.questions.WithLabelValues(method, code.String()).Observe(max(took, 0).Seconds())
}

func (m *Metrics) answered(resource, method string, code codes.Code, took time.Duration) {
	m.answers.WithLabelValues(resource, method, code.String()).Observe(max(took, 0).Seconds())
}

func (m *Metrics) registered(resource string, err error) {
	result := "ok"
	if err != nil {
		result = "error"
	}
	m.registrations.WithLabelValues(resource, result).Inc()
}

func (m *Metrics) isConnected(resource string, yes bool) {
	v := 0.0
	if yes {
		v = 1
	}
	m.connected.WithLabelValues(resource).Set(v)
}

func (m *Metrics) fellBack() { m.fallbacks.Inc() }
func (m *Metrics) panicked() { m.panics.Inc() }
