package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/tranche-dev/tranche/pkg/program"
)

// Run executes a command line and returns the exit code: 0 after success, 2 if
// something in the command line or its files has to be written otherwise.
func Run(args []string, in io.Reader, out, stderr io.Writer) int {
	root := command()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(stderr)
	if err := root.Execute(); err != nil {
		fmt.Fprintf(stderr, "error: %v\n", err)
		return 2
	}
	return 0
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use: "kubectl-tranche", Short: "Look at GPU sharing with Tranche",
		Long: `kubectl tranche looks at clusters that share GPUs with Tranche.

Put the program into a folder on your PATH, and kubectl finds it.`,
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl tranche"},
		Version:     program.Version(), SilenceUsage: true, SilenceErrors: true,
	}
	root.AddCommand(simulateCommand())
	return root
}
