package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"

	"github.com/tranche-dev/tranche/extender"
	extendermetrics "github.com/tranche-dev/tranche/extender/metrics"
	"github.com/tranche-dev/tranche/nodeplugin"
	"github.com/tranche-dev/tranche/pkg/program"
	"github.com/tranche-dev/tranche/webhook"
	webhookserver "github.com/tranche-dev/tranche/webhook/server"
)

// documented is what a program has to tell.
type documented struct {
	name, purpose string
	options       program.Options
	// metrics registers the program's metrics.
	metrics func(*prometheus.Registry) error
}

func programs() []documented {
	return []documented{
		{
			name: "tranche-extender", purpose: "Scheduler extender: knows every GPU, answers kube-scheduler, binds pods.",
			options: extender.NewOptions(),
			metrics: func(r *prometheus.Registry) error {
				extendermetrics.New(r)
				r.MustRegister(extendermetrics.NewLedgerCollector(nil))
				r.MustRegister(extendermetrics.NewQueueCollector(nil))
				return nil
			},
		},
		{
			name: "tranche-webhook", purpose: "Admission webhook: translates and checks GPU requests, and holds members of gangs back.",
			options: webhook.DefaultOptions(),
			metrics: func(r *prometheus.Registry) error {
				webhookserver.NewMetrics(r)
				return nil
			},
		},
		{
			name: "tranche-nodeplugin", purpose: "Device plugin of the kubelet: offers shares of the node's GPUs, and gives each container the planned ones.",
			options: nodeplugin.NewOptions(),
			metrics: nodepluginMetrics,
		},
	}
}

// nodepluginMetrics builds a plugin, which registers them, and never runs it.
func nodepluginMetrics(r *prometheus.Registry) (err error) {
	state, err := os.MkdirTemp("", "nodeplugin-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(state)) }()
	o := nodeplugin.NewOptions()
	o.StateDir = state
	_, err = nodeplugin.New(context.Background(), *o, nodeplugin.Dependencies{
		Client: fake.NewClientset(), Registry: r, Clock: clock.RealClock{},
	})
	return err
}

func configuration() (string, error) {
	var b strings.Builder
	b.WriteString(generated + `# Configuration

Every program takes flags, and ` + "`--config FILE`" + `: a YAML file whose keys are the names of the flags. Flags on the
command line win. All of them also have ` + "`--help`, `--version`" + ` and ` + "`-v, --verbosity`" + ` (0: what an operator
acts on, 2: each decision, 4: per node, 6: dumps). Logs are JSON lines on stderr.

The chart's values, which set most of these, are described in [values.yaml](../../manifests/chart/values.yaml).
`)
	for _, p := range programs() {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n| flag | default | meaning |\n|---|---|---|\n", p.name, p.purpose)
		fs := pflag.NewFlagSet(p.name, pflag.ContinueOnError)
		p.options.AddFlags(fs)
		fs.VisitAll(func(f *pflag.Flag) {
			fmt.Fprintf(&b, "| `--%s` | %s | %s |\n", f.Name, code(strings.Trim(f.DefValue, "[]")), cell(f.Usage))
		})
	}
	return b.String(), nil
}
