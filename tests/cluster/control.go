package cluster

import (
	"context"
	"syscall"
)

// Kill ends a program with SIGKILL and returns when it has ended.
func (c *Cluster) Kill(ctx context.Context, name string) error {
	if _, err := c.super.recorded(name); err != nil {
		return err
	}
	return c.super.kill(ctx, name, syscall.SIGKILL)
}

// Stop ends a program with SIGTERM, as a rolling update does.
func (c *Cluster) Stop(ctx context.Context, name string) error {
	if _, err := c.super.recorded(name); err != nil {
		return err
	}
	return c.super.kill(ctx, name, syscall.SIGTERM)
}

// Start starts a program as it was last started and waits until it is ready.
// It does nothing but wait if it runs.
func (c *Cluster) Start(ctx context.Context, name string) error {
	r, err := c.super.recorded(name)
	if err != nil {
		return err
	}
	if !r.alive() {
		if err := c.super.launch(ctx, r.process, r.Stamp); err != nil {
			return err
		}
	}
	return c.WaitReady(ctx, name)
}

// Restart kills a program and starts it again.
func (c *Cluster) Restart(ctx context.Context, name string) error {
	if err := c.Kill(ctx, name); err != nil {
		return err
	}
	return c.Start(ctx, name)
}

// Running says whether a program runs.
func (c *Cluster) Running(name string) bool { return c.super.running(name) }
