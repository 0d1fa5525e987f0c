// Package metrics holds the extender's Prometheus metrics. All labels are
// bounded: verbs, results, reasons and GPU models.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	namespace = "tranche"
	subsystem = "extender"
)

// Metrics are the extender's counters and histograms. What can be computed
// from the ledger is not counted here but collected when it is asked for: see
// NewLedgerCollector.
type Metrics struct {
	duration map[string]prometheus.Histogram

	// Requests counts answers by verb and result: "ok", "refused" (no node
	// left), "error", "malformed", "not_ready", "forbidden" or "panic".
	Requests *prometheus.CounterVec
	// Panics counts handlers that panicked.
	Panics prometheus.Counter
	// BindFailures counts failed binds by reason.
	BindFailures *prometheus.CounterVec
	// HoldReleases counts holds that ended without a Binding, by reason.
	HoldReleases *prometheus.CounterVec
	// PlanMismatches counts pods that the kubelet gave other GPUs than planned.
	PlanMismatches prometheus.Counter
	// UnplannedPods counts bound pods with GPUs and without a plan on our nodes.
	UnplannedPods prometheus.Counter
	// Retries counts pods that were made to be tried again, by result.
	Retries *prometheus.CounterVec
	// Waiting is the number of refused pods by reason.
	Waiting *prometheus.GaugeVec
	// Nominations counts patches of a pod's nominated node, by result: "ok",
	// "gone" or "failed", which is not tried again.
	Nominations *prometheus.CounterVec
	// Admissions counts pods handed to the scheduler, by result:
	// "ok", "gone", "withdrawn" before it was done, or "failed", which is tried
	// again and so counted for each try.
	Admissions *prometheus.CounterVec
	// AdmissionDuration is from being asked to a pod being with the scheduler.
	AdmissionDuration prometheus.Histogram
	// PlanDuration is how long rounds take in which gangs and waiting pods are
	// planned: meanwhile nobody else is answered who asks for a hold.
	PlanDuration prometheus.Histogram
	// Evictions counts evictions by reason and result: "ok", "gone", "failed",
	// which is counted for each try, or "given_up".
	Evictions *prometheus.CounterVec
	// Reclaims counts how often pods were evicted to make room, by the queue that
	// it was for.
	Reclaims *prometheus.CounterVec
	// Gangs is the number of gangs by phase.
	Gangs *prometheus.GaugeVec
	// GangWrites counts writes of Gang objects by verb and result: "ok",
	// "conflict" or "failed".
	GangWrites *prometheus.CounterVec
	// QueueWrites counts the same of Queue objects.
	QueueWrites *prometheus.CounterVec
	// Ready and Leader are 1 or 0.
	Ready, Leader prometheus.Gauge
}

// Verbs are the calls that kube-scheduler makes.
var Verbs = []string{"filter", "prioritize", "bind", "preempt"}

// New registers the metrics with reg.
func New(reg prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help})
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}, labels)
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help})
	}
	m := &Metrics{
		duration:       map[string]prometheus.Histogram{},
		Requests:       counters("requests_total", "Answered calls by verb and result.", "verb", "result"),
		Panics:         counter("panics_total", "Handlers that panicked; each was answered with an error."),
		BindFailures:   counters("bind_failures_total", "Failed binds by reason.", "reason"),
		HoldReleases:   counters("hold_releases_total", "Holds that ended without a Binding, by reason.", "reason"),
		PlanMismatches: counter("plan_mismatch_total", "Pods that the kubelet gave other GPUs than planned; the ledger follows the kubelet."),
		UnplannedPods:  counter("unplanned_pods_total", "Pods with GPUs that were bound to a node of ours without a plan."),
		Retries:        counters("retries_total", "Pods that the scheduler was made to try again, by result of the patch.", "result"),
		Waiting: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "waiting_pods", Help: "Refused pods by reason.",
		}, []string{"reason"}),
		Nominations: counters("nominations_total", "Patches of pods' nominated nodes, by result.", "result"),
		Admissions:  counters("admissions_total", "Pods handed to the scheduler, by result; failed tries are made again.", "result"),
		AdmissionDuration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "admission_duration_seconds",
			Help: "Time from the decision that a pod may start until the scheduler has it.",
			// 1 ms to 65 s: two patches take milliseconds, a gang of thousands
			// waits for the rate limit.
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 17),
		}),
		PlanDuration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "plan_duration_seconds",
			Help: "Time of a round in which gangs and waiting pods are planned.",
			// 0.1 ms to 1.6 s: most rounds look at one pod, and one is broken off
			// after a fifth of a second.
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 15),
		}),
		Evictions: counters("evictions_total", "Evictions, by reason and result; failed tries are made again for a while.", "reason", "result"),
		Reclaims:  counters("reclaims_total", "Times that pods were evicted to make room, by the queue of the pod or gang that it was made for.", "queue"),
		Gangs: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "gangs", Help: "Gangs that have members, by phase.",
		}, []string{"phase"}),
		GangWrites:  counters("gang_writes_total", "Writes of Gang objects by verb and result; failed ones are made again.", "verb", "result"),
		QueueWrites: counters("queue_writes_total", "Writes of Queue objects by verb and result; failed ones are made again.", "verb", "result"),
		Ready:       gauge("ready", "1 if this replica answers kube-scheduler."),
		Leader:      gauge("leader", "1 if this replica holds the lease."),
	}
	reg.MustRegister(m.Requests, m.Panics, m.BindFailures, m.HoldReleases, m.PlanMismatches, m.UnplannedPods,
		m.Retries, m.Waiting, m.Nominations, m.Admissions, m.AdmissionDuration, m.PlanDuration, m.Evictions, m.Reclaims, m.Gangs, m.GangWrites, m.QueueWrites, m.Ready, m.Leader)
	for _, verb := range Verbs {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem, Name: verb + "_duration_seconds",
			Help: "Time to answer a " + verb + " call, from the read request to the written answer.",
			// 0.25 ms to 16 s: a look-up takes a millisecond, a Binding may wait
			// for the API server.
			Buckets: prometheus.ExponentialBuckets(0.00025, 2, 17),
		})
		reg.MustRegister(h)
		m.duration[verb] = h
	}
	return m
}

// Answered records one answered call.
func (m *Metrics) Answered(verb, result string, took time.Duration) {
	m.Requests.WithLabelValues(verb, result).Inc()
	if h := m.duration[verb]; h != nil {
		h.Observe(max(took, 0).Seconds())
	}
}
