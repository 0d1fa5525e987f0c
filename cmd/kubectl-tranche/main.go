// Command kubectl-tranche is Tranche's plug-in for kubectl.
package main

import (
	"os"

	"github.com/tranche-dev/tranche/cmd/kubectl-tranche/cli"
)

func main() { os.Exit(cli.Run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
