package extender

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tranche-dev/tranche/extender/queueobject"
	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
)

// clients are connections to the API server with rates of their own, so that a
// storm of one kind cannot hold up another; least of all the lease.
type clients struct {
	// main watches, binds and wakes; admission hands members of gangs over.
	main, events, election, admission kubernetes.Interface
	// gangs reads Gang and Queue objects and writes Gangs; queues writes Queues.
	gangs, queues client.WithWatch
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

	// What limits admissions is the queue, which knows what they are.
	admission := rest.CopyConfig(config)
	admission.QPS = -1

	var c clients
	for _, made := range []struct {
		client *kubernetes.Interface
		config *rest.Config
	}{{&c.main, main}, {&c.events, events}, {&c.election, election}, {&c.admission, admission}} {
		client, err := kubernetes.NewForConfig(made.config)
		if err != nil {
			return clients{}, fmt.Errorf("API server: %w", err)
		}
		*made.client = client
	}
	// Custom resources have no other form than JSON.
	gangs := rest.CopyConfig(main)
	gangs.ContentType, gangs.AcceptContentTypes = runtime.ContentTypeJSON, ""
	if c.gangs, err = newObjectClient(gangs); err != nil {
		return clients{}, fmt.Errorf("API server: %w", err)
	}
	queues := rest.CopyConfig(gangs)
	queues.QPS, queues.Burst = queueobject.ClientQPS, queueobject.ClientBurst
	if c.queues, err = newObjectClient(queues); err != nil {
		return clients{}, fmt.Errorf("API server: %w", err)
	}
	return c, nil
}

// newObjectClient returns a client of Gangs and Queues alone. It knows where
// they are, so it can be made before the API server serves them, or is reached
// at all.
func newObjectClient(config *rest.Config) (client.WithWatch, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(v1alpha1.GroupVersion.WithKind("Gang"), meta.RESTScopeNamespace)
	mapper.Add(v1alpha1.GroupVersion.WithKind("Queue"), meta.RESTScopeRoot)
	return client.NewWithWatch(config, client.Options{Scheme: scheme, Mapper: mapper})
}

func restConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		return rest.InClusterConfig()
	}
	return clientcmd.BuildConfigFromFlags("", kubeconfig)
}
