package server

import "github.com/prometheus/client_golang/prometheus"

// operation is a label's value: what was asked.
type operation string

const (
	operationMutate         operation = "mutate"
	operationValidateCreate operation = "validate_create"
	operationValidateUpdate operation = "validate_update"
)

// Values of the label result.
const (
	resultAllowed = "allowed"
	resultChanged = "changed"
	resultRefused = "refused"
	resultError   = "error"
)

// Metrics of the webhook, beside those of controller-runtime.
type Metrics struct {
	requests *prometheus.CounterVec
	refusals *prometheus.CounterVec
	duration *prometheus.HistogramVec
	owners   *prometheus.CounterVec
	// notAfter is when the serving certificate ends.
	notAfter prometheus.Gauge
}

// NewMetrics registers the webhook's metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tranche_webhook_requests_total",
			Help: "Admission requests by operation (mutate, validate_create, validate_update) and result (allowed, changed, refused, error).",
		}, []string{"operation", "result"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tranche_webhook_refusals_total",
			Help: "Problems for which pods were refused, by operation and class; one refused pod may have several.",
		}, []string{"operation", "reason"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "tranche_webhook_request_duration_seconds",
			Help:    "Time to answer an admission request, without TLS and JSON of the review.",
			Buckets: []float64{0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.5, 1.5},
		}, []string{"operation"}),
		owners: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tranche_webhook_owners_total",
			Help: "Owners of new pods that were looked at for a gang or a queue, by result (read, cached, unread: gone or not permitted, failed: the pod was refused).",
		}, []string{"result"}),
		notAfter: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tranche_webhook_certificate_expiry_timestamp_seconds",
			Help: "When the certificate that is being served ends, in seconds since 1970; 0 without a certificate.",
		}),
	}
	reg.MustRegister(m.requests, m.refusals, m.duration, m.owners, m.notAfter)
	return m
}
