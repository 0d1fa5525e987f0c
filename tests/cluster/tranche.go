package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/tranche-dev/tranche/nodeplugin/nvml/simulation"
)

// part is a program of Tranche's in the checkout's bin.
func (p paths) part(name string) string { return filepath.Join(p.root, "bin", name) }

// buildTranche brings Tranche's programs up to date, by the one recipe for them.
// It does so at every Up: a test of yesterday's binary would say nothing.
func (c *Cluster) buildTranche(ctx context.Context) error {
	return c.say.during(ctx, "building Tranche", func(ctx context.Context) error {
		cmd := exec.CommandContext(ctx, "make", "--no-print-directory", "--silent", "build")
		cmd.Dir = c.paths.root
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("make build: %w\n%s", err, out)
		}
		return nil
	})
}

// extender answers the scheduler.
func (c *Cluster) extender() process {
	return process{
		Name: Extender,
		Args: append([]string{
			c.paths.part(Extender),
			"--kubeconfig=" + c.paths.kubeconfig(Extender), "--namespace=" + systemNamespace,
			"--bind-address=" + c.ports.address(portExtender), "--metrics-bind-address=" + c.ports.address(portExtenderMetrics),
			"--tls-cert-file=" + c.paths.crt(certServer), "--tls-private-key-file=" + c.paths.key(certServer),
			"--client-ca-file=" + c.paths.crt(authorityName),
			// One replica: after a kill -9 it need not wait for its own lease.
			"--leader-elect=false",
		}, c.options.ExtenderArgs...),
		Files: []string{c.paths.crt(certServer), c.paths.crt(authorityName)},
	}
}

// webhook is called by the API server.
func (c *Cluster) webhook() process {
	return process{
		Name: Webhook,
		Args: []string{
			c.paths.part(Webhook),
			"--kubeconfig=" + c.paths.kubeconfig(Webhook), "--namespace=" + systemNamespace,
			"--bind-address=" + c.ports.address(portWebhook), "--dns-names=localhost", "--cert-dir=" + c.paths.data("webhook-certs"),
			"--metrics-bind-address=" + c.ports.address(portWebhookMetrics), "--health-bind-address=" + c.ports.address(portWebhookHealth),
			fmt.Sprintf("--rate-cpu-only-pods=%t", c.options.RateCPUOnlyPods),
		},
	}
}

// nodePlugin runs on the real node, over a simulated NVML.
func (c *Cluster) nodePlugin() process {
	return process{
		Name: NodePlugin,
		Args: []string{
			c.paths.part(NodePlugin),
			"--kubeconfig=" + c.paths.kubeconfig(NodePlugin), "--node-name=" + RealNodeName,
			"--nvml=simulated", "--simulation-file=" + c.SimulationFile(),
			"--kubelet-root-dir=" + kubeletRoot, "--device-plugin-dir=" + kubeletRoot + "/device-plugins",
			"--cdi-dir=" + cdiDir, "--state-dir=" + statePath,
			"--metrics-bind-address=" + c.ports.address(portNodePluginMetrics),
		},
		Namespace: nodeNamespace,
	}
}

// startController starts the webhook and the extender.
func (c *Cluster) startController(ctx context.Context) error {
	for _, s := range []struct {
		process process
		ports   []port
	}{
		{c.webhook(), []port{portWebhook, portWebhookMetrics, portWebhookHealth}},
		{c.extender(), []port{portExtender, portExtenderMetrics}},
	} {
		if err := c.writeToken(ctx, s.process.Name, ""); err != nil {
			return err
		}
		if err := c.ensureReady(ctx, s.process, s.ports...); err != nil {
			return err
		}
	}
	return nil
}

// startNodePlugin needs the Node object, to which its token is bound.
func (c *Cluster) startNodePlugin(ctx context.Context) error {
	if err := c.writeSimulation(); err != nil {
		return err
	}
	if err := c.writeToken(ctx, NodePlugin, RealNodeName); err != nil {
		return err
	}
	return c.ensureReady(ctx, c.nodePlugin(), portNodePluginMetrics)
}

// SimulationFile scripts the real node's GPUs while the node plugin runs: see
// package simulation.
func (c *Cluster) SimulationFile() string { return c.paths.in("simulation.yaml") }

// writeSimulation gives the real node the GPUs that the options name. What
// tests have done to them stays, as long as these are the same.
func (c *Cluster) writeSimulation() error {
	have, err := c.Simulation()
	if err == nil && sameModels(have, c.options.RealGPUs) {
		return nil
	}
	return c.SetSimulation(simulation.Machine(c.options.RealGPUs...))
}

func sameModels(f simulation.File, names []string) bool {
	if len(f.GPUs) != len(names) {
		return false
	}
	for i, g := range f.GPUs {
		if g.Model != names[i] {
			return false
		}
	}
	return true
}

// Simulation is the state of the real node's GPUs.
func (c *Cluster) Simulation() (simulation.File, error) {
	text, err := os.ReadFile(c.SimulationFile())
	if err != nil {
		return simulation.File{}, fmt.Errorf("simulation: %w", err)
	}
	return simulation.Parse(text, RealNodeName)
}

// SetSimulation changes the real node's GPUs; the node plugin notices at once.
func (c *Cluster) SetSimulation(f simulation.File) error {
	text, err := f.Format()
	if err != nil {
		return err
	}
	return writeFile(c.SimulationFile(), text, 0o644)
}
