package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// metric is one row of the page.
type metric struct{ name, kind, labels, help string }

// description is how prometheus.Desc prints itself; it has no other getters.
var description = regexp.MustCompile(`^Desc\{fqName: "([^"]*)", help: "((?:[^"\\]|\\.)*)"(?:, unit: "[^"]*")?, constLabels: \{[^}]*\}, variableLabels: \{([^}]*)\}\}$`)

// registered lists what is registered, with samples or not.
func registered(r *prometheus.Registry) ([]metric, error) {
	var found []metric
	descs := make(chan *prometheus.Desc, 1000)
	r.Describe(descs)
	close(descs)
	for d := range descs {
		m := description.FindStringSubmatch(d.String())
		if m == nil {
			return nil, fmt.Errorf("cannot read %s", d)
		}
		found = append(found, metric{name: m[1], kind: kindOf(m[1]), labels: m[3], help: strings.ReplaceAll(m[2], `\"`, `"`)})
	}
	slices.SortFunc(found, func(a, b metric) int { return strings.Compare(a.name, b.name) })
	return found, nil
}

// kindOf goes by the naming rules, which the linter enforces: descriptions do
// not tell.
func kindOf(name string) string {
	switch {
	case strings.HasSuffix(name, "_total"):
		return "counter"
	case strings.HasSuffix(name, "_duration_seconds"):
		return "histogram"
	default:
		return "gauge"
	}
}

func metricsPage() (string, error) {
	var b strings.Builder
	b.WriteString(generated + `# Metrics

Each program serves them as plain HTTP at ` + "`/metrics`" + `, on the port that [its flag](configuration.md) says. The
metrics of the Go runtime and of the process come with them, and for the webhook those of controller-runtime.
`)
	for _, p := range programs() {
		r := prometheus.NewRegistry()
		if err := p.metrics(r); err != nil {
			return "", fmt.Errorf("%s: %w", p.name, err)
		}
		found, err := registered(r)
		if err != nil {
			return "", fmt.Errorf("%s: %w", p.name, err)
		}
		fmt.Fprintf(&b, "\n## %s\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n", p.name)
		for _, m := range found {
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.name, m.kind, strings.ReplaceAll(m.labels, ",", ", "), cell(m.help))
		}
	}
	return b.String(), nil
}
