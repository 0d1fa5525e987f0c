// Command bench measures Tranche on a real control plane with simulated nodes,
// each figure beside its yardstick in the same run, and prints one table.
// Machines are noisy: look at the ratios.
package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
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

func bench(ctx context.Context) (err error) {
	options, err := cluster.OptionsFromEnv(os.LookupEnv)
	if err != nil {
		return err
	}
	rounds, err := strconv.Atoi(cmp.Or(os.Getenv("ROUNDS"), "3"))
	if err != nil || rounds < 1 {
		return fmt.Errorf("ROUNDS=%q; write how often everything is measured", os.Getenv("ROUNDS"))
	}
	_, file, _, _ := runtime.Caller(0)
	options.Dir = filepath.Join(filepath.Dir(file), "..", "..", ".cluster-bench")
	if os.Getenv("SIM_NODES") == "" {
		options.SimNodes = 500
	}
	options.RealNode = false
	options.Out = os.Stderr
	kube, err := cluster.Up(ctx, options)
	if err != nil {
		return err
	}
	defer func() {
		if down := cluster.Down(context.WithoutCancel(ctx), options.Dir, os.Stderr); err == nil {
			err = down
		}
	}()
	b, err := newGangBench(kube, options, rounds)
	if err != nil {
		return err
	}
	rows, err := b.run(ctx)
	if err != nil {
		return err
	}
	w := table.NewWriter()
	w.SetOutputMirror(os.Stdout)
	w.SetStyle(table.StyleLight)
	w.AppendHeader(table.Row{"what", "measured", "yardstick", "ratio", "bar"})
	for _, r := range rows {
		w.AppendRow(table.Row{r.what, r.measured, r.yardstick, r.ratio, r.bar})
	}
	w.Render()
	return nil
}
