// Command tranche-nodeplugin offers the shares of a node's GPUs to the kubelet
// and gives each container the GPU that was planned for it.
package main

import (
	"context"
	"os"

	"github.com/tranche-dev/tranche/nodeplugin"
	"github.com/tranche-dev/tranche/pkg/program"
)

func main() {
	opts := nodeplugin.NewOptions()
	os.Exit(program.Main(program.Program{
		Name:  "tranche-nodeplugin",
		Short: "Offers shares of a node's GPUs to the kubelet",
		Long: "tranche-nodeplugin finds the GPUs of a node, writes them on the Node object, offers them to the kubelet as shares and as " +
			"whole GPUs, and makes the kubelet give each container exactly the GPU that Tranche's extender planned.\n\n" +
			"It runs as root on every GPU node, once. --nvml=simulated needs no GPU.",
		Options: opts,
		Run:     func(ctx context.Context) error { return nodeplugin.Run(ctx, *opts) },
	}, os.Args[1:], os.Stderr))
}
