package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/program"
	"github.com/tranche-dev/tranche/webhook"
	"github.com/tranche-dev/tranche/webhook/workload"
)

// Run serves until ctx ends; then it finishes the requests that it has. It can
// be called once per process, since controller-runtime's metrics are global.
func Run(ctx context.Context, o *webhook.Options) error {
	return run(ctx, o, metrics.Registry, "cert-rotator")
}

func run(ctx context.Context, o *webhook.Options, registry prometheus.Registerer, rotation string) error {
	config, err := clientConfig(o.Kubeconfig)
	if err != nil {
		return fmt.Errorf("api server access: %w", err)
	}
	config.UserAgent = "tranche-webhook/" + program.Version()

	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return fmt.Errorf("scheme: %w", err)
	}
	var certs certificates // set below, before the listener starts
	host, port := o.Listen()
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: scheme,
		Logger: klog.FromContext(ctx),
		// The parts stop in order, the listener last, so they must not see ctx end.
		BaseContext: func() context.Context { return context.WithoutCancel(ctx) },
		// Requests last milliseconds. cert-controller, told to stop before its
		// informers are ready, waits for them for ever.
		GracefulShutdownTimeout: ptr.To(10 * time.Second),
		Metrics:                 metricsserver.Options{BindAddress: o.MetricsBindAddress},
		HealthProbeBindAddress:  o.HealthBindAddress,
		Cache: cache.Options{
			// Not by object, since that asks the API server at once for a kind that
			// it may not serve yet.
			DefaultTransform: stripQueue,
			ByObject: map[client.Object]cache.ByObject{
				&corev1.Namespace{}: {Transform: strip},
				&corev1.Node{}:      {Transform: strip},
				&corev1.Secret{}: {Namespaces: map[string]cache.Config{
					o.Namespace: {FieldSelector: fields.OneTermEqualSelector("metadata.name", o.CertSecretName)},
				}},
			},
		},
		WebhookServer: ctrlwebhook.NewServer(ctrlwebhook.Options{
			Host: host, Port: port,
			TLSOpts: []func(*tls.Config){func(c *tls.Config) {
				c.MinVersion = o.TLSVersion()
				c.GetCertificate = func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) { return certs.Get(hello) }
			}},
		}),
	})
	if err != nil {
		return fmt.Errorf("manager: %w", err)
	}

	m := NewMetrics(registry)
	known, err := followCluster(ctx, mgr, o.QueueGate)
	if err != nil {
		return err
	}
	if o.SelfSigned {
		dir, remove, err := certificateDir(o)
		if err != nil {
			return err
		}
		defer remove()
		if certs, err = newSecretCertificates(ctx, mgr, o, m.notAfter, dir, rotation); err != nil {
			return err
		}
	} else if certs, err = newFileCertificates(mgr, o, m.notAfter); err != nil {
		return err
	}

	api, err := ownerClient(mgr)
	if err != nil {
		return err
	}
	reader := workload.New(api, clock.RealClock{}, func(r workload.Result) { m.owners.WithLabelValues(string(r)).Inc() })
	h := newHandler(known, reader, o, scheme, m)
	mgr.GetWebhookServer().Register(MutatePath, serve(h.Mutate))
	mgr.GetWebhookServer().Register(ValidatePath, serve(h.Validate))
	if err := addHealth(mgr, known, certs); err != nil {
		return err
	}
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("run: %w", err)
	}
	return nil
}

func clientConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		return rest.InClusterConfig()
	}
	return clientcmd.BuildConfigFromFlags("", kubeconfig)
}

// ownerClient reads owners of pods, of which no informer shows them all: that
// would take memory for every Job of the cluster.
func ownerClient(mgr ctrl.Manager) (client.Reader, error) {
	config := rest.CopyConfig(mgr.GetConfig())
	config.QPS = -1 // a wait for our own limiter would end in a refused pod
	c, err := client.New(config, client.Options{HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: workload.Mapper()})
	if err != nil {
		return nil, fmt.Errorf("client for owners: %w", err)
	}
	return c, nil
}

// serve makes an HTTP handler, which answers a panic as an error and counts it.
func serve(handle admission.HandlerFunc) *admission.Webhook {
	return &admission.Webhook{
		Handler: handle,
		// Our own lines name the pod, also one that has no name yet.
		LogConstructor: func(base logr.Logger, _ *admission.Request) logr.Logger { return base },
	}
}

// followCluster starts the informers with mgr. They keep little: labels of
// namespaces, the inventory annotation of nodes, and of Queues, if anybody wants
// to know of these, what gates depend on.
func followCluster(ctx context.Context, mgr ctrl.Manager, wantQueues bool) (*cluster, error) {
	known := newCluster(klog.FromContext(ctx))
	if !wantQueues {
		known.queues.without()
	} else if err := mgr.Add(queueFollower{informers: mgr.GetCache(), to: known.queues}); err != nil {
		return nil, fmt.Errorf("watch Queue: %w", err)
	}
	for kind, handle := range map[string]struct {
		set    func(*metav1.PartialObjectMetadata)
		remove func(string)
	}{
		"Namespace": {known.setNamespace, known.removeNamespace},
		"Node":      {known.setNode, known.removeNode},
	} {
		object := &metav1.PartialObjectMetadata{}
		object.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind))
		informer, err := mgr.GetCache().GetInformer(ctx, object, cache.BlockUntilSynced(false))
		if err != nil {
			return nil, fmt.Errorf("watch %s: %w", kind, err)
		}
		if err := known.follow(informer, handle.set, handle.remove); err != nil {
			return nil, err
		}
	}
	return known, nil
}

// addHealth answers /healthz as soon as the process runs, and /readyz when the
// API server can call us and gets a true answer.
func addHealth(mgr ctrl.Manager, known *cluster, certs certificates) error {
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return fmt.Errorf("health check: %w", err)
	}
	listening := mgr.GetWebhookServer().StartedChecker()
	for name, check := range map[string]healthz.Checker{
		"informers": func(*http.Request) error { return errors.Join(known.Ready(), known.queues.Ready()) },
		"certificate": func(req *http.Request) error {
			if err := certs.Ready(); err != nil {
				return err
			}
			// It shakes hands, which without a certificate would be logged as
			// an error at each probe.
			return listening(req)
		},
	} {
		if err := mgr.AddReadyzCheck(name, check); err != nil {
			return fmt.Errorf("readiness check: %w", err)
		}
	}
	return nil
}

// certificateDir returns a directory for the certificate and how to clean up.
func certificateDir(o *webhook.Options) (dir string, remove func(), err error) {
	if o.CertDir != "" {
		if err := os.MkdirAll(o.CertDir, 0o700); err != nil {
			return "", nil, fmt.Errorf("--cert-dir: %w", err)
		}
		return o.CertDir, func() {}, nil
	}
	dir, err = os.MkdirTemp("", "tranche-webhook-")
	if err != nil {
		return "", nil, fmt.Errorf("temporary directory for the certificate; name one with --cert-dir: %w", err)
	}
	return dir, func() { _ = os.RemoveAll(dir) }, nil
}
