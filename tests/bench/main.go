// Command bench measures Tranche on a real control plane with simulated nodes,
// each figure beside its yardstick in the same run, and prints one table.
// Machines are noisy: look at the ratios.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/jedib0t/go-pretty/v6/table"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/tranche-dev/tranche/tests/cluster"
)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	log.SetLogger(logr.Discard())
	if len(os.Args) > 1 && os.Args[1] == echoArgument {
		if err := serveEcho(); err != nil {
			fmt.Fprintln(os.Stderr, "echo:", err)
			return 1
		}
		return 0
	}
	if err := bench(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return 1
	}
	return 0
}

// row is one line of the table.
type row struct {
	what, measured, yardstick string
	ratio                     string
	bar                       string
}

// bench prints what it has even if a later part fails.
func bench(ctx context.Context) error {
	o, err := optionsFromEnv(os.LookupEnv)
	if err != nil {
		return err
	}
	w := table.NewWriter()
	w.SetOutputMirror(os.Stdout)
	w.SetStyle(table.StyleLight)
	w.AppendHeader(table.Row{"what", "measured", "yardstick", "ratio", "bar"})
	for _, part := range parts {
		if !o.parts[part.name] {
			continue
		}
		rows, failed := o.measure(ctx, part)
		for _, r := range rows {
			w.AppendRow(table.Row{r.what, r.measured, r.yardstick, r.ratio, r.bar})
		}
		if err = failed; err != nil {
			break
		}
	}
	w.Render()
	return err
}

// A part is measured on a cluster of its own, so that none meets what another
// has left, or on none at all.
type part struct {
	name  string
	run   func(ctx context.Context, k *kit, o *options) ([]row, error)
	alone func(ctx context.Context, o *options) ([]row, error)
}

var parts = []part{
	{name: "gangs", run: func(ctx context.Context, k *kit, o *options) ([]row, error) {
		return (&gangBench{kit: k, rounds: o.rounds}).run(ctx)
	}},
	{name: "throughput", run: func(ctx context.Context, k *kit, _ *options) ([]row, error) {
		return (&throughputBench{k}).run(ctx)
	}},
	{name: "queues", run: func(ctx context.Context, k *kit, o *options) ([]row, error) {
		return (&queueBench{kit: k, queues: o.queues, pending: o.pending, admit: o.admit}).run(ctx)
	}},
	{name: "reclaim", run: func(ctx context.Context, k *kit, _ *options) ([]row, error) {
		return (&reclaimBench{k}).run(ctx)
	}},
	{name: "packing", alone: func(ctx context.Context, o *options) ([]row, error) { return packing(ctx, o.openb) }},
	{name: "trace", run: func(ctx context.Context, k *kit, o *options) ([]row, error) {
		return (&traceBench{kit: k, trace: o.trace, admission: o.admission}).run(ctx)
	}},
	{name: "scale", run: func(ctx context.Context, k *kit, o *options) ([]row, error) {
		return (&scaleBench{kit: k, sizes: o.sizesOf(k.nodes)}).run(ctx)
	}},
}

// measure brings the part's clusters up and down.
func (o *options) measure(ctx context.Context, p part) ([]row, error) {
	if p.alone != nil {
		return p.alone(ctx, o)
	}
	var rows []row
	for _, want := range o.clustersFor(p.name) {
		more, err := o.measureOn(ctx, p, want)
		rows = append(rows, more...)
		if err != nil {
			return rows, err
		}
	}
	return rows, nil
}

func (o *options) measureOn(ctx context.Context, p part, want cluster.Options) (rows []row, err error) {
	// Also what has come up in part.
	defer func() {
		if down := cluster.Down(context.WithoutCancel(ctx), want.Dir, os.Stderr); err == nil {
			err = down
		}
	}()
	kube, err := cluster.Up(ctx, want)
	if err != nil {
		return nil, err
	}
	k, err := newKit(kube, want, o.profiles)
	if err != nil {
		return nil, err
	}
	return p.run(ctx, k, o)
}
