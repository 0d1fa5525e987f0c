// Command tranche-webhook is Tranche's admission webhook.
package main

import (
	"context"
	"io"
	"os"

	"github.com/tranche-dev/tranche/pkg/program"
	"github.com/tranche-dev/tranche/webhook"
	"github.com/tranche-dev/tranche/webhook/server"
)

func main() { os.Exit(run(os.Args[1:], os.Stderr)) }

func run(args []string, stderr io.Writer) int {
	o := webhook.DefaultOptions()
	return program.Main(program.Program{
		Name:  "tranche-webhook",
		Short: "Admission webhook of Tranche",
		Long: `tranche-webhook is called by the API server for pods in namespaces labelled
tranche.dev/inject=enabled. It turns GPU fractions and amounts of GPU memory into
shares that the scheduler and the kubelet count, puts pods into queues, holds
members of gangs back until all of them have a place and single pods until their
queue admits them, and refuses what cannot work with a sentence that says what to
write instead.`,
		Options: o,
		Run:     func(ctx context.Context) error { return server.Run(ctx, o) },
	}, args, stderr)
}
