package assign

import "github.com/prometheus/client_golang/prometheus"

// Metrics of assignment.
type Metrics struct {
	allocations, refusals, preferences, swaps, ambiguities *prometheus.CounterVec
	mismatches, relearnt, released                         prometheus.Counter
	overcommitted                                          prometheus.Gauge
}

// NewMetrics registers the metrics with reg.
func NewMetrics(reg prometheus.Registerer, resources ...string) *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "tranche", Subsystem: "nodeplugin", Name: name, Help: help}, labels)
	}
	plain := func(name, help string) prometheus.Counter { return counter(name, help).WithLabelValues() }
	m := &Metrics{
		allocations: counter("allocations_total", "Containers that were given devices.", "resource"),
		refusals:    counter("refusals_total", "Allocations that were refused, which fails the pod, by reason.", "resource", "reason"),
		preferences: counter("preferred_allocations_total", "Answers to the kubelet's question which devices it should take, by outcome.", "resource", "outcome"),
		swaps:       counter("swaps_total", "Containers that got the devices planned for another of the same size.", "resource"),
		ambiguities: counter("ambiguous_identifications_total", "Questions of the kubelet that several containers may have caused.", "resource"),
		mismatches:  plain("plan_mismatch_total", "Containers that the kubelet recorded on other GPUs than planned."),
		relearnt:    plain("relearnt_total", "Containers that hold devices by the kubelet's records and were not, or otherwise, in the ledger."),
		released:    plain("released_pods_total", "Pods whose devices were released."),
		overcommitted: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "tranche", Subsystem: "nodeplugin", Name: "overcommitted_shares",
			Help: "Shares charged beyond what the GPUs have; must be 0.",
		}),
	}
	reg.MustRegister(m.allocations, m.refusals, m.preferences, m.swaps, m.ambiguities, m.mismatches, m.relearnt, m.released, m.overcommitted)
	for _, r := range resources { // so that a rate over them exists from the start
		m.allocations.WithLabelValues(r)
		m.swaps.WithLabelValues(r)
		m.ambiguities.WithLabelValues(r)
		for _, reason := range Reasons {
			m.refusals.WithLabelValues(r, string(reason))
		}
		for _, o := range Outcomes {
			m.preferences.WithLabelValues(r, string(o))
		}
	}
	return m
}

func (m *Metrics) allocated(resource string) { m.allocations.WithLabelValues(resource).Inc() }
func (m *Metrics) swapped(resource string)   { m.swaps.WithLabelValues(resource).Inc() }
func (m *Metrics) ambiguous(resource string) { m.ambiguities.WithLabelValues(resource).Inc() }

func (m *Metrics) refused(resource string, r Reason) {
	m.refusals.WithLabelValues(resource, string(r)).Inc()
}

func (m *Metrics) preferred(resource string, o Outcome) {
	m.preferences.WithLabelValues(resource, string(o)).Inc()
}
