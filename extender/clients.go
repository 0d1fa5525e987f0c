package extender

import (
	"fmt"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// clients are connections to the API server with rates of their own, so that a
// storm of one kind cannot hold up another; least of all the lease.
type clients struct {
	// main watches, binds and wakes.
	main, events, election kubernetes.Interface
}

func newClients(o *Options) (clients, error) {
	config, err := restConfig(o.Kubeconfig)
	if err != nil {
		return clients{}, fmt.Errorf("API server: %w", err)
	}
	config.UserAgent = leaseName
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = config.ContentType + ",application/json"

	main := rest.CopyConfig(config)
	main.QPS, main.Burst = o.KubeAPIQPS, o.KubeAPIBurst
	events := rest.CopyConfig(config)
	events.QPS, events.Burst = o.EventQPS, max(1, int(2*o.EventQPS))
	election := rest.CopyConfig(config)
	election.Timeout = o.RenewDeadline / 2 // so that a lost answer leaves time for another try

	var c clients
	for _, made := range []struct {
		client *kubernetes.Interface
		config *rest.Config
	}{{&c.main, main}, {&c.events, events}, {&c.election, election}} {
		client, err := kubernetes.NewForConfig(made.config)
		if err != nil {
			return clients{}, fmt.Errorf("API server: %w", err)
		}
		*made.client = client
	}
	return c, nil
}

func restConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		return rest.InClusterConfig()
	}
	return clientcmd.BuildConfigFromFlags("", kubeconfig)
}
