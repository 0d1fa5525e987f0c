package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// Down removes the cluster in dir (the checkout's .cluster if empty) and every
// trace of it, in whatever state it is. It does nothing if there is none.
func Down(ctx context.Context, dir string, out io.Writer) error {
	p, err := findPaths(dir)
	if err != nil {
		return err
	}
	c := newCluster(p, Options{Out: out})
	unlock, err := c.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	_, missing := os.Stat(p.dir)
	// 1. The pods, and all of the real node.
	if err := c.endRealNode(ctx); err != nil {
		return err
	}
	// 2. Every other program. They lose their data: there is no need to ask
	// them politely.
	for _, name := range c.super.names() {
		if err := c.super.kill(ctx, name, syscall.SIGKILL); err != nil {
			return err
		}
	}
	if err := c.super.sweep(ctx); err != nil {
		return err
	}
	// 3. What is not in the directory. The node's mounts and network namespaces
	// went with the last process of its mount namespace.
	if err := c.removeTraces(ctx); err != nil {
		return err
	}
	// 4. The directory.
	if err := unmountBelow(p.dir); err != nil {
		return err
	}
	if err := os.RemoveAll(p.dir); err != nil {
		return fmt.Errorf("remove the cluster directory: %w", err)
	}
	if missing == nil {
		c.say.say("The cluster in %s is gone.", p.dir)
	} else {
		c.say.say("There is no cluster in %s.", p.dir)
	}
	return nil
}

// removeRealNode takes the real node out of a cluster that stays, when
// the options no longer ask for it.
func (c *Cluster) removeRealNode(ctx context.Context) error {
	if err := readJSON(c.paths.in("network.json"), &c.network); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
	c.say.say("removing %s", RealNodeName)
	if err := c.endRealNode(ctx); err != nil {
		return err
	}
	if err := c.super.kill(ctx, holder, syscall.SIGKILL); err != nil {
		return err
	}
	if err := c.removeTraces(ctx); err != nil {
		return err
	}
	for _, name := range []string{Kubelet, NodePlugin, Containerd, holder} {
		if err := os.RemoveAll(c.paths.record(name)); err != nil {
			return fmt.Errorf("forget %s: %w", name, err)
		}
	}
	for _, path := range []string{c.paths.in("node"), c.paths.in("network.json")} {
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("remove the real node: %w", err)
		}
	}
	c.network = network{}
	return nil
}
