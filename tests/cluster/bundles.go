package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// kubernetesPrograms are the names that the one binary of the module
// tests/cluster/kubernetes answers to.
func kubernetesPrograms() []string {
	return []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl", "kwok"}
}

var requireKubernetes = regexp.MustCompile(`(?m)^\s*k8s\.io/kubernetes (v(\d+)\.(\d+)\.\d+)$`)

// kubernetesBundle builds the control plane, the kubelet, kubectl, etcd and
// kwok at the versions of that module's go.mod.
func (p paths) kubernetesBundle() (bundle, error) {
	dir := p.source("kubernetes")
	mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return bundle{}, fmt.Errorf("version of Kubernetes: %w", err)
	}
	v := requireKubernetes.FindSubmatch(mod)
	if v == nil {
		return bundle{}, fmt.Errorf("%s does not require k8s.io/kubernetes", filepath.Join(dir, "go.mod"))
	}
	// What the release's own build script sets; components compare versions.
	ldflags := []string{"-s", "-w"}
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		ldflags = append(ldflags,
			fmt.Sprintf("-X %s.gitVersion=%s", pkg, v[1]), fmt.Sprintf("-X %s.gitMajor=%s", pkg, v[2]),
			fmt.Sprintf("-X %s.gitMinor=%s", pkg, v[3]), fmt.Sprintf("-X %s.gitTreeState=clean", pkg))
	}
	return bundle{
		name: "kubernetes " + strings.TrimPrefix(string(v[1]), "v"), key: "kubernetes-" + string(v[1]),
		estimate: "about 15 minutes on 2 cores",
		dir:      dir, sources: []string{"go.mod", "go.sum", "main.go"},
		steps: []buildStep{{output: "kubernetes", packages: []string{"."}, flags: []string{"-ldflags", strings.Join(ldflags, " ")}}},
	}, nil
}

// nodeBundle builds the container runtime and its network plugins.
func (p paths) nodeBundle() bundle {
	const (
		containerd = "github.com/containerd/containerd/v2/cmd/"
		plugins    = "github.com/containernetworking/plugins/plugins/"
	)
	small := []string{"-ldflags", "-s -w"}
	return bundle{
		name: "containerd, runc and network plugins", key: "node",
		estimate: "about 2 minutes on 2 cores",
		dir:      p.source("node"), sources: []string{"go.mod", "go.sum"},
		steps: []buildStep{
			{
				output: "containerd/", packages: []string{containerd + "containerd", containerd + "containerd-shim-runc-v2", containerd + "ctr"},
				// Snapshotters that need headers of their own and that nobody uses here.
				flags: append([]string{"-tags", "no_btrfs,no_devmapper,no_zfs"}, small...),
			},
			{output: "cni/", packages: []string{plugins + "main/bridge", plugins + "main/loopback", plugins + "ipam/host-local"}, flags: small},
			// runc needs C for its first process, and without seccomp it refuses
			// the profile that the kubelet asks for.
			{output: "containerd/", packages: []string{"github.com/opencontainers/runc"}, flags: append([]string{"-tags", "seccomp"}, small...), cgo: true},
		},
	}
}

// imageBundle builds the programs that are the test images.
func (p paths) imageBundle() bundle {
	return bundle{
		name: "the programs of the test images", key: "images", estimate: "a few seconds",
		dir: p.source(), sources: []string{"pause/main.go", "probe/main.go"},
		steps: []buildStep{{output: "/", packages: []string{"./pause", "./probe"}, flags: []string{"-ldflags", "-s -w"}}},
	}
}

// buildKubernetes puts the control plane's programs in the cluster's bin.
func (c *Cluster) buildKubernetes(ctx context.Context) error {
	b, err := c.paths.kubernetesBundle()
	if err != nil {
		return err
	}
	dir, err := b.build(ctx, c.say, func(context.Context) error { return nil })
	if err != nil {
		return err
	}
	links := map[string]string{}
	for _, name := range kubernetesPrograms() {
		links[name] = filepath.Join(dir, "kubernetes")
	}
	return link(c.paths.in("bin"), links)
}

// buildImages puts the programs of the test images in the cluster's bin.
func (c *Cluster) buildImages(ctx context.Context) error {
	dir, err := c.paths.imageBundle().build(ctx, c.say, func(context.Context) error { return nil })
	if err != nil {
		return err
	}
	return link(c.paths.in("bin"), map[string]string{
		"pause": filepath.Join(dir, "pause"), "probe": filepath.Join(dir, "probe"),
	})
}

// buildNode puts the container runtime's programs in the cluster's bin.
func (c *Cluster) buildNode(ctx context.Context) error {
	dir, err := c.paths.nodeBundle().build(ctx, c.say, func(ctx context.Context) error { return installBuildTools(ctx, c.say) })
	if err != nil {
		return err
	}
	links := map[string]string{"cni": filepath.Join(dir, "cni")}
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "ctr", "runc"} {
		links[name] = filepath.Join(dir, "containerd", name)
	}
	return link(c.paths.in("bin"), links)
}
