// Package e2e tests Tranche from the outside: on a real API server, the stock
// kube-scheduler and a real kubelet with containerd, as users meet it. Only the
// GPUs are simulated, below the NVML interface.
//
// The tests bring up a cluster of their own beside the checkout's .cluster, so
// a demo that is running is left alone. Set TRANCHE_E2E_KEEP=1 to look at the
// cluster afterwards.
package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/tests/cluster"
)

const (
	realNode = "tranche-real-0"
	// settle bounds every wait for an outcome. Two busy cores need a few
	// seconds for most; the bound is for machines far slower than that.
	settle = 2 * time.Minute
)

// kube is the cluster under test, with an administrator's client.
var (
	kube   *cluster.Cluster
	client kubernetes.Interface
	// options are those of the cluster.
	options cluster.Options
	// gangs is for Tranche's own kinds.
	gangs ctrlclient.Client
)

func TestMain(m *testing.M) {
	ctrllog.SetLogger(klog.Background())
	os.Exit(run(m))
}

func run(m *testing.M) int {
	ctx := context.Background()
	_, file, _, _ := runtime.Caller(0)
	root := filepath.Join(filepath.Dir(file), "..", "..")
	options = cluster.DefaultOptions()
	options.Dir = filepath.Join(root, ".cluster-e2e")
	// Sixteen for gangs, in arenas, and one for the rest.
	options.SimNodes = 17
	options.RealNode = true // or an error that says why it cannot be had
	options.Out = os.Stderr
	var err error
	if kube, err = cluster.Up(ctx, options); err != nil {
		fmt.Fprintln(os.Stderr, "e2e: cannot bring up the cluster:", err)
		return 1
	}
	if client, err = kube.Client(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	if gangs, err = trancheClient(kube); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	code := m.Run()
	if os.Getenv("TRANCHE_E2E_KEEP") != "" {
		fmt.Fprintln(os.Stderr, "e2e: the cluster keeps running; KUBECONFIG="+kube.Kubeconfig())
		return code
	}
	if err := cluster.Down(ctx, options.Dir, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "e2e: cannot take the cluster down:", err)
		return max(code, 1)
	}
	return code
}

// trancheClient is an administrator's client for Tranche's own kinds.
func trancheClient(c *cluster.Cluster) (ctrlclient.Client, error) {
	config, err := c.RESTConfig()
	if err != nil {
		return nil, err
	}
	scheme := k8sruntime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	return ctrlclient.New(config, ctrlclient.Options{Scheme: scheme})
}
