// Command cluster brings the local cluster up and down: see package cluster.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/tranche-dev/tranche/tests/cluster"
)

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cmd := newCommand(os.Stdout)
	cmd.SetArgs(args)
	if err := cmd.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		return 1
	}
	return 0
}

func newCommand(out io.Writer) *cobra.Command {
	var dir string
	root := &cobra.Command{
		Use:           "cluster",
		Short:         "A real Kubernetes cluster on this machine, without containers or registries",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.PersistentFlags().StringVar(&dir, "dir", "", "the cluster's directory (default: .cluster of the checkout)")
	root.AddCommand(
		upCommand(out, &dir),
		&cobra.Command{
			Use: "down", Short: "Remove the cluster and every trace of it", Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error { return cluster.Down(cmd.Context(), dir, out) },
		},
		&cobra.Command{
			Use: "build", Short: "Build all programs that a cluster runs, and start nothing", Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				o, err := cluster.OptionsFromEnv(os.LookupEnv)
				if err != nil {
					return err
				}
				o.Dir, o.Out = dir, out
				return cluster.Build(cmd.Context(), o)
			},
		},
		existing(&dir, "status", "Show the cluster's programs", cobra.NoArgs, func(ctx context.Context, c *cluster.Cluster, _ []string) error {
			return c.Status(ctx, out)
		}),
		program(&dir, "kill", "Kill a program with SIGKILL", (*cluster.Cluster).Kill),
		program(&dir, "start", "Start a program that has ended", (*cluster.Cluster).Start),
		program(&dir, "restart", "Kill a program and start it again", (*cluster.Cluster).Restart),
		program(&dir, "logs", "Print a program's log", func(c *cluster.Cluster, _ context.Context, name string) error {
			f, err := os.Open(c.LogFile(name))
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = io.Copy(out, f)
			return err
		}),
	)
	return root
}

func upCommand(out io.Writer, dir *string) *cobra.Command {
	o, err := cluster.OptionsFromEnv(os.LookupEnv)
	cmd := &cobra.Command{
		Use: "up", Short: "Bring the cluster up, or bring it to what the flags say", Args: cobra.NoArgs,
		Long: "Bring the cluster up, or bring it to what the flags say. Each flag's default can be given by a variable of that name: SIM_NODES for --sim-nodes.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err != nil {
				return err
			}
			o.Dir, o.Out = *dir, out
			_, err := cluster.Up(cmd.Context(), o)
			return err
		},
	}
	f := cmd.Flags()
	f.IntVar(&o.SimNodes, "sim-nodes", o.SimNodes, "number of simulated nodes")
	f.IntVar(&o.SimGPUs, "sim-gpus", o.SimGPUs, "GPUs of each simulated node")
	f.StringSliceVar(&o.SimModels, "sim-models", o.SimModels, "their models, dealt out to the nodes in turn")
	f.BoolVar(&o.RealNode, "real-node", o.RealNode, "a node with a real kubelet and containerd; takes root on Linux")
	f.StringSliceVar(&o.RealGPUs, "real-gpus", o.RealGPUs, "the models of its simulated GPUs, one each")
	return cmd
}

// existing is a command on a cluster that has been brought up before.
func existing(dir *string, use, short string, args cobra.PositionalArgs, do func(context.Context, *cluster.Cluster, []string) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: args,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := cluster.Open(*dir)
			if err != nil {
				return err
			}
			return do(cmd.Context(), c, args)
		},
	}
}

// program is a command on one program of such a cluster. It takes any number of
// arguments, since whoever gives another than one wants to know the names.
func program(dir *string, use, short string, do func(*cluster.Cluster, context.Context, string) error) *cobra.Command {
	return existing(dir, use+" NAME", short, cobra.ArbitraryArgs, func(ctx context.Context, c *cluster.Cluster, args []string) error {
		programs := c.Programs()
		if len(args) != 1 || !slices.Contains(programs, args[0]) {
			return fmt.Errorf("%s takes the name of one program of this cluster: %s", use, strings.Join(programs, ", "))
		}
		return do(c, ctx, args[0])
	})
}
