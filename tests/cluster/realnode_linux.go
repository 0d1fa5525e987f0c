package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/contract"
)

// platformObstacle says why there can be no cluster on this system.
func platformObstacle() error { return nil }

// realNodeObstacle says why this machine and user cannot have a real node.
func realNodeObstacle() error {
	if !isRoot() {
		return errors.New("it takes root, and this user is not")
	}
	if err := namespaceObstacle(); err != nil {
		return err
	}
	mounts, err := cgroupMounts()
	if err != nil {
		return err
	}
	return cgroupObstacle(mounts)
}

// prepareRealNode chooses the node's network and makes what is not a process.
func (c *Cluster) prepareRealNode(ctx context.Context) error {
	if err := install(ctx, c.say, runNeeds()); err != nil {
		return err
	}
	var err error
	c.network, err = c.paths.rememberedNetwork(func() ([]netip.Prefix, error) { return usedPrefixes(ctx) })
	if err != nil {
		return err
	}
	if err := c.network.createBridge(ctx); err != nil {
		return err
	}
	if !c.super.running(holder) {
		// What still runs in an old mount namespace, whose holder was killed,
		// cannot stay: it would see other files than the new programs. Cgroups of
		// its dead pods would hold up the kubelet, which asks containerd for each.
		if err := c.endRealNode(ctx); err != nil {
			return err
		}
		if err := c.paths.removeCgroup(ctx); err != nil {
			return err
		}
	}
	return c.paths.createCgroup()
}

// startRuntime starts containerd in the node's mount namespace and gives it the
// images. It needs no API server.
func (c *Cluster) startRuntime(ctx context.Context) error {
	// A holder that runs is never replaced: the node's programs are in its
	// namespace.
	if !c.super.running(holder) {
		mounts := process{Name: holder, Args: []string{c.paths.bin("pause")}, Namespace: newNamespace}
		if err := c.ensureReady(ctx, mounts); err != nil {
			return err
		}
	}
	containerd, err := c.containerd()
	if err != nil {
		return err
	}
	if err := c.ensureReady(ctx, containerd); err != nil {
		return err
	}
	return c.importImages(ctx)
}

// startKubelet needs the API server and containerd.
func (c *Cluster) startKubelet(ctx context.Context) error {
	kubelet, err := c.kubelet()
	if err != nil {
		return err
	}
	if err := c.ensureReady(ctx, kubelet, portKubelet, portKubeletHealth); err != nil {
		return err
	}
	// What an administrator does: the label selects where the node plugin runs.
	client, err := c.Client()
	if err != nil {
		return err
	}
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:"true"}}}`, contract.NodeLabel)
	err = eventually(ctx, readyPatience, eagerly, func(ctx context.Context) error {
		node, err := client.CoreV1().Nodes().Get(ctx, RealNodeName, metav1.GetOptions{})
		if err == nil && node.Labels[contract.NodeLabel] != "true" {
			_, err = client.CoreV1().Nodes().Patch(ctx, RealNodeName, types.StrategicMergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("the kubelet does not register node %s: %w; see %s", RealNodeName, err, c.LogFile(Kubelet))
	}
	return nil
}

// snapshotter for the file system of dir: overlayfs cannot have its own kind
// below, as in a container.
func snapshotter(dir string) string {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err == nil && s.Type == unix.OVERLAYFS_SUPER_MAGIC {
		return "native"
	}
	return "overlayfs"
}

// endRealNode ends everything of the real node: first who would start pods
// again, then the pods, then what kept them. It must not run while a program is
// being started: what has no pid file yet would be swept away.
func (c *Cluster) endRealNode(ctx context.Context) error {
	for _, name := range []string{Kubelet, NodePlugin, Containerd} {
		if err := c.super.kill(ctx, name, unix.SIGKILL); err != nil {
			return err
		}
	}
	if err := c.paths.emptyCgroup(ctx); err != nil {
		return err
	}
	return c.super.sweep(ctx)
}
