// Command cluster brings the local cluster up and down: see package cluster.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
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
		existing(&dir, "kill NAME", "Kill a program with SIGKILL", cobra.ExactArgs(1), func(ctx context.Context, c *cluster.Cluster, args []string) error {
			return c.Kill(ctx, args[0])
		}),
		existing(&dir, "start NAME", "Start a program that has ended", cobra.ExactArgs(1), func(ctx context.Context, c *cluster.Cluster, args []string) error {
			return c.Start(ctx, args[0])
		}),
		existing(&dir, "restart NAME", "Kill a program and start it again", cobra.ExactArgs(1), func(ctx context.Context, c *cluster.Cluster, args []string) error {
			return c.Restart(ctx, args[0])
		}),
		existing(&dir, "logs NAME", "Print a program's log", cobra.ExactArgs(1), func(_ context.Context, c *cluster.Cluster, args []string) error {
			f, err := os.Open(c.LogFile(args[0]))
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
