// Command tranche-extender is Tranche's scheduler extender.
package main

import (
	"context"
	"os"

	"github.com/tranche-dev/tranche/extender"
	"github.com/tranche-dev/tranche/pkg/program"
)

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	options := extender.NewOptions()
	return program.Main(program.Program{
		Name:  "tranche-extender",
		Short: "Places pods on GPUs for kube-scheduler",
		Long: "tranche-extender keeps the ledger of all GPUs in the cluster. kube-scheduler asks it which nodes\n" +
			"have room for a pod (filter, prioritize, preempt) and lets it bind the pod together with the plan\n" +
			"that says which GPU each container gets.",
		Options: options,
		Run:     func(ctx context.Context) error { return extender.Run(ctx, options) },
	}, args, os.Stderr)
}
