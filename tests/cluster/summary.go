package cluster

import (
	"context"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// summary tells what there is now and what to do with it.
func (c *Cluster) summary(ctx context.Context, took time.Duration) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	version, err := client.Discovery().ServerVersion()
	if err != nil {
		return fmt.Errorf("version of the API server: %w", err)
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	c.say.say("Kubernetes %s with Tranche is up after %s: %d nodes.", version.GitVersion, took.Round(100*time.Millisecond), len(nodes.Items))
	if n := len(c.options.SimList); n > 0 {
		c.say.say("  %d of a list are simulated", n)
	} else if n := c.options.SimNodes; n > 0 {
		c.say.say("  %s0 to %s%d are simulated, with %d GPUs each (%s)", SimNodePrefix, SimNodePrefix, n-1, c.options.SimGPUs, strings.Join(c.options.SimModels, ", "))
	}
	if c.options.RealNode {
		c.say.say("  %s is a real kubelet with containerd and simulated GPUs (%s)", RealNodeName, strings.Join(c.options.RealGPUs, ", "))
	} else if obstacle := realNodeObstacle(); obstacle != nil {
		c.say.say("  simulated nodes only, no real one: %s", obstacle)
	} else {
		c.say.say("  simulated nodes only; REAL_NODE=1 adds a real kubelet")
	}
	c.say.say("\n  export KUBECONFIG=%s PATH=%s:$PATH\n  kubectl get nodes\n\nNamespace %s is opted in. make cluster-down removes everything.",
		c.Kubeconfig(), c.paths.in("bin"), DemoNamespace)
	return nil
}
