package cluster

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/tranche-dev/tranche/pkg/contract"
)

// systemNamespace is where Tranche lives, DemoNamespace where people try it.
const (
	systemNamespace = "tranche-system"
	DemoNamespace   = "demo"
)

// Up makes a cluster as the options say, from nothing or from whatever is there,
// and returns when it is ready for pods.
func Up(ctx context.Context, o Options) (*Cluster, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	p, err := findPaths(o.Dir)
	if err != nil {
		return nil, err
	}
	c := newCluster(p, o)
	unlock, err := c.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	begin := time.Now()
	if err := c.up(ctx); err != nil {
		return nil, err
	}
	return c, c.summary(ctx, time.Since(begin))
}

// lock keeps a second Up or Down of the same checkout away. The lock is on the
// folder around the cluster's directory, as Down removes that one.
func (c *Cluster) lock(ctx context.Context) (unlock func(), err error) {
	return lock(ctx, filepath.Dir(c.paths.dir), func() {
		c.say.say("another program is working on this cluster; waiting for it")
	})
}

func (c *Cluster) up(ctx context.Context) error {
	// 1. Programs.
	if err := c.paths.create(); err != nil {
		return err
	}
	if err := c.build(ctx); err != nil {
		return err
	}
	// 2. Ports, certificates, configuration.
	if err := c.prepare(ctx); err != nil {
		return err
	}
	// 3. The control plane, and beside it as much of the real node as goes
	// without.
	steps := []func(context.Context) error{c.startControlPlane}
	if c.options.RealNode {
		steps = append(steps, c.startRuntime)
	}
	if err := together(ctx, steps...); err != nil {
		return err
	}
	if !c.options.RealNode {
		if err := c.forgetRealNode(ctx); err != nil {
			return err
		}
	}
	// 4. Tranche's objects before the nodes, so that its policies hold for them.
	if err := c.applyNamespaces(ctx); err != nil {
		return err
	}
	if err := c.applyManifests(ctx); err != nil {
		return err
	}
	// 5. Nodes, and Tranche's programs.
	steps = []func(context.Context) error{c.startSimNodes, c.startController}
	if c.options.RealNode {
		steps = append(steps, c.startRealNode)
	}
	if err := together(ctx, steps...); err != nil {
		return err
	}
	return c.waitNodesReady(ctx)
}

func (c *Cluster) build(ctx context.Context) error {
	steps := []func(context.Context) error{c.buildKubernetes, c.buildTranche}
	if c.options.RealNode {
		steps = append(steps, c.buildImages, c.buildNode)
	}
	// One after another: each uses all processors.
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) prepare(ctx context.Context) error {
	if err := writeJSON(c.paths.in("options.json"), c.options); err != nil {
		return err
	}
	running := false
	for _, name := range c.super.names() {
		running = running || c.super.running(name)
	}
	var err error
	if c.ports, err = c.paths.rememberedPorts(ctx, running); err != nil {
		return err
	}
	var node net.IP
	if c.options.RealNode {
		if err := c.prepareRealNode(ctx); err != nil {
			return err
		}
		node = c.network.node().AsSlice()
	} else if err := c.removeRealNode(ctx); err != nil {
		return err
	}
	if err := c.paths.ensurePKI(node); err != nil {
		return err
	}
	return c.writeKubeconfigs()
}

func (c *Cluster) startSimNodes(ctx context.Context) error {
	kwok, err := c.kwok()
	if err != nil {
		return err
	}
	if err := c.ensureReady(ctx, kwok, portKwok); err != nil {
		return err
	}
	return c.applySimNodes(ctx)
}

func (c *Cluster) startRealNode(ctx context.Context) error {
	if err := c.startKubelet(ctx); err != nil {
		return err
	}
	return c.startNodePlugin(ctx)
}

// applyNamespaces makes Tranche's namespace and the one to try it in.
func (c *Cluster) applyNamespaces(ctx context.Context) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	for name, labels := range map[string]map[string]string{
		systemNamespace: nil,
		DemoNamespace:   {contract.InjectLabel: contract.InjectEnabled},
	} {
		_, err := client.CoreV1().Namespaces().Apply(ctx, corev1ac.Namespace(name).WithLabels(labels),
			metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
		if err != nil {
			return fmt.Errorf("namespace %s: %w", name, err)
		}
	}
	return nil
}

// Build builds what a cluster with these options runs, and starts nothing.
func Build(ctx context.Context, o Options) error {
	p, err := findPaths(o.Dir)
	if err != nil {
		return err
	}
	c := newCluster(p, o)
	if err := p.create(); err != nil {
		return err
	}
	return c.build(ctx)
}
