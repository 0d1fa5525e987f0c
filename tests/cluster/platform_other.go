//go:build !linux

package cluster

import (
	"context"
	"errors"
	"os/exec"
	"syscall"
)

// errNotLinux is what every step says elsewhere: processes are identified by
// /proc and the real node lives in Linux' namespaces. The package builds on all
// systems, so that the rest of the module can be worked on there.
var errNotLinux = errors.New("the local cluster runs on Linux only; use a Linux machine or a virtual one")

type identity struct {
	started uint64
	boot    string
}

func platformObstacle() error { return errNotLinux }
func realNodeObstacle() error { return errNotLinux }

func identify(int) (identity, error) { return identity{}, errNotLinux }

func (record) alive() bool                 { return false }
func (record) signal(syscall.Signal) error { return errNotLinux }

func (supervisor) startIn(namespace, *exec.Cmd) error { return errNotLinux }
func (supervisor) sweep(context.Context) error        { return errNotLinux }

func (paths) cgroup() string                               { return "" }
func snapshotter(string) string                            { return "" }
func lock(context.Context, string, func()) (func(), error) { return nil, errNotLinux }
func unmountBelow(string) error                            { return errNotLinux }

func (*Cluster) prepareRealNode(context.Context) error { return errNotLinux }
func (*Cluster) startRuntime(context.Context) error    { return errNotLinux }
func (*Cluster) startKubelet(context.Context) error    { return errNotLinux }
func (*Cluster) endRealNode(context.Context) error     { return errNotLinux }
func (*Cluster) removeTraces(context.Context) error    { return errNotLinux }
