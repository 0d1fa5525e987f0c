package nodeplugin

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"

	"github.com/tranche-dev/tranche/nodeplugin/nvml"
	"github.com/tranche-dev/tranche/nodeplugin/nvml/nvidia"
	"github.com/tranche-dev/tranche/nodeplugin/nvml/simulated"
)

func itoa(n int) string { return strconv.Itoa(n) }

// Run is the program: it builds what a Plugin needs, and runs it and its HTTP
// endpoint until ctx ends.
func Run(ctx context.Context, opts Options) error {
	config, err := restConfig(opts.Kubeconfig)
	if err != nil {
		return fmt.Errorf("API server: %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("API server: %w", err)
	}
	library, simulation, err := backend(opts)
	if err != nil {
		return err
	}
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	plugin, err := New(ctx, opts, Dependencies{Client: client, Library: library, Registry: reg, Clock: clock.RealClock{}, Simulation: simulation})
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", opts.MetricsBindAddress)
	if err != nil {
		return fmt.Errorf("--metrics-bind-address: %w", err)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return Serve(ctx, listener, reg, plugin.Ready) })
	g.Go(func() error { return plugin.Run(ctx) })
	return g.Wait()
}

func restConfig(kubeconfig string) (*rest.Config, error) {
	config, err := rest.InClusterConfig()
	if kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	}
	if err != nil {
		return nil, err
	}
	return rest.AddUserAgent(config, "tranche-nodeplugin"), nil
}

// backend returns NVML and, of a simulation, what follows its file.
func backend(opts Options) (nvml.Library, func(context.Context) error, error) {
	if opts.NVML == NVMLNvidia {
		return nvidia.New(opts.NVMLLibrary), nil, nil
	}
	s, err := simulated.Load(opts.SimulationFile, opts.NodeName)
	if err != nil {
		return nil, nil, err
	}
	return s.Library(), s.Follow, nil
}
