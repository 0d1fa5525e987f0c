package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/retry"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tranche-dev/tranche/webhook"
)

// certificates is where the TLS listener gets its certificate from.
type certificates interface {
	// Get is a tls.Config's GetCertificate.
	Get(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// Ready says why the API server cannot call us yet.
	Ready() error
}

var (
	_ certificates = fileCertificates{}
	_ certificates = (*secretCertificates)(nil)
)

// fileCertificates serves files that somebody else writes and renews.
type fileCertificates struct{ *certwatcher.CertWatcher }

func newFileCertificates(mgr ctrl.Manager, o *webhook.Options, notAfter prometheus.Gauge) (fileCertificates, error) {
	w, err := certwatcher.New(filepath.Join(o.CertDir, corev1.TLSCertKey), filepath.Join(o.CertDir, corev1.TLSPrivateKeyKey))
	if err != nil {
		return fileCertificates{}, fmt.Errorf("certificate in --cert-dir: %w", err)
	}
	w.RegisterCallback(func(c tls.Certificate) { notAfter.Set(float64(c.Leaf.NotAfter.Unix())) })
	return fileCertificates{w}, mgr.Add(w)
}

func (f fileCertificates) Get(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	return f.GetCertificate(hello)
}

// Ready is always nil: without files there is no fileCertificates.
func (f fileCertificates) Ready() error { return nil }

// secretCertificates serves what cert-controller keeps in a Secret. The key goes
// from the Secret into memory, never to disk, and a renewed certificate is
// served as soon as the watch shows it: replicas need neither a mounted Secret,
// which the kubelet updates a minute late, nor a restart.
type secretCertificates struct {
	notAfter prometheus.Gauge
	// dir gets the current certificate as tls.crt: cert-controller waits for
	// that file, which it expects to be the mounted Secret.
	dir string
	// injected is closed when both webhook configurations have the CA.
	injected chan struct{}
	current  atomic.Pointer[tls.Certificate]
}

var errNoCertificate = errors.New("no serving certificate yet")

// newSecretCertificates has certificates made, kept and rotated, and their CA
// put into the webhook configurations. What it adds to mgr starts with it;
// controller names that in metrics, once per process.
func newSecretCertificates(ctx context.Context, mgr ctrl.Manager, o *webhook.Options, notAfter prometheus.Gauge, dir, controller string) (*secretCertificates, error) {
	if err := prepareSecret(ctx, mgr.GetAPIReader(), mgr.GetClient(), o); err != nil {
		return nil, err
	}
	s := &secretCertificates{notAfter: notAfter, dir: dir, injected: make(chan struct{})}
	informer, err := mgr.GetCache().GetInformer(ctx, &corev1.Secret{}, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("watch certificate secret: %w", err)
	}
	log := klog.FromContext(ctx)
	load := func(obj any) {
		if secret, ok := obj.(*corev1.Secret); ok {
			if err := s.load(secret); err != nil {
				log.Error(err, "Kept the certificate, the one in the secret cannot be used", "secret", klog.KObj(secret))
			}
		}
	}
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    load,
		UpdateFunc: func(_, obj any) { load(obj) },
	}); err != nil {
		return nil, fmt.Errorf("watch certificate secret: %w", err)
	}

	names := o.CertificateNames()
	err = rotator.AddRotator(narrowManager(mgr, o), &rotator.CertRotator{
		SecretKey:      types.NamespacedName{Namespace: o.Namespace, Name: o.CertSecretName},
		CertDir:        s.dir,
		CAName:         o.ServiceName + "-ca",
		CAOrganization: "tranche.dev",
		DNSName:        names[0],
		ExtraDNSNames:  names[1:],
		IsReady:        s.injected,
		Webhooks: []rotator.WebhookInfo{
			{Name: o.WebhookConfiguration, Type: rotator.Mutating},
			{Name: o.WebhookConfiguration, Type: rotator.Validating},
		},
		FieldOwner: "tranche-webhook",
		// Every replica works on the Secret and the configurations: there is
		// no leader, and a conflict only means that another was faster.
		RequireLeaderElection:  false,
		RestartOnSecretRefresh: false,
		ControllerName:         controller,
	})
	if err != nil {
		return nil, fmt.Errorf("certificate rotation: %w", err)
	}
	return s, nil
}

// load starts serving a Secret's certificate. A Secret that has none yet is no
// error: cert-controller is about to fill it.
func (s *secretCertificates) load(secret *corev1.Secret) error {
	if len(secret.Data[corev1.TLSCertKey]) == 0 {
		return nil
	}
	pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return fmt.Errorf("load certificate: %w", err)
	}
	s.current.Store(&pair)
	s.notAfter.Set(float64(pair.Leaf.NotAfter.Unix()))
	// Readers of the file look for it only, so it needs no atomic replacement.
	if err := os.WriteFile(filepath.Join(s.dir, corev1.TLSCertKey), secret.Data[corev1.TLSCertKey], 0o600); err != nil {
		return fmt.Errorf("write certificate: %w", err)
	}
	return nil
}

// Get is a tls.Config's GetCertificate.
func (s *secretCertificates) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c := s.current.Load(); c != nil {
		return c, nil
	}
	return nil, errNoCertificate
}

// Ready says why the API server cannot call us yet.
func (s *secretCertificates) Ready() error {
	select {
	case <-s.injected:
	default:
		return errors.New("the webhook configurations do not have the CA yet")
	}
	_, err := s.Get(nil)
	return err
}

// prepareSecret checks, before anything starts, that there is a Secret, and has
// its certificate made anew if that is not for all names that our flags give:
// cert-controller looks at the first name only. Once per start is enough, since
// names change with flags, and it keeps replicas with old and new flags from
// undoing each other's work during a roll-out.
func prepareSecret(ctx context.Context, reader client.Reader, writer client.Writer, o *webhook.Options) error {
	key := types.NamespacedName{Namespace: o.Namespace, Name: o.CertSecretName}
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		secret := &corev1.Secret{}
		if err := reader.Get(ctx, key, secret); err != nil {
			return err
		}
		missing := missingName(secret.Data[corev1.TLSCertKey], o.CertificateNames())
		if missing == "" {
			return nil
		}
		klog.FromContext(ctx).Info("Renewing the certificate, which lacks a name", "name", missing)
		// Emptied rather than removed: a Secret of type kubernetes.io/tls must
		// have the key.
		secret.Data[corev1.TLSCertKey] = []byte{}
		return writer.Update(ctx, secret)
	})
	if apierrors.IsNotFound(err) {
		// To create it would take a right that cannot be limited to one name,
		// and that gives more than it seems: a created Secret may ask for a
		// token of any service account of the namespace.
		return fmt.Errorf("secret %s does not exist; create it empty, or serve certificates of your own with --self-signed=false and --cert-dir", key)
	}
	if err != nil {
		return fmt.Errorf("certificate secret %s: %w", key, err)
	}
	return nil
}

// missingName returns a name that the certificate is not for, or "": also if
// there is none that can be read, since cert-controller replaces such.
func missingName(chain []byte, names []string) string {
	block, _ := pem.Decode(chain)
	if block == nil {
		return ""
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return ""
	}
	for _, n := range names {
		if leaf.VerifyHostname(n) != nil {
			return n
		}
	}
	return ""
}

// narrowManager is mgr as cert-controller shall see it: its informers, which
// would list all Secrets of the namespace and all webhook configurations, list
// the objects that it works on, so that our service account needs no right to
// read others.
func narrowManager(mgr ctrl.Manager, o *webhook.Options) ctrl.Manager {
	config := rest.CopyConfig(mgr.GetConfig())
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return narrowLists{next: next, names: map[string]string{
			"/api/v1/namespaces/" + o.Namespace + "/secrets":                        o.CertSecretName,
			"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations":   o.WebhookConfiguration,
			"/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations": o.WebhookConfiguration,
		}}
	})
	return managerWithConfig{mgr, config}
}

type managerWithConfig struct {
	ctrl.Manager
	config *rest.Config
}

func (m managerWithConfig) GetConfig() *rest.Config { return m.config }

// narrowLists adds a field selector to lists and watches. names holds, by path
// of the resource, the only object to list.
type narrowLists struct {
	next  http.RoundTripper
	names map[string]string
}

func (n narrowLists) RoundTrip(req *http.Request) (*http.Response, error) {
	for path, name := range n.names {
		// The server's address may have a path of its own in front.
		if req.Method == http.MethodGet && strings.HasSuffix(req.URL.Path, path) {
			req = req.Clone(req.Context())
			query := req.URL.Query()
			query.Set("fieldSelector", "metadata.name="+name)
			req.URL.RawQuery = query.Encode()
		}
	}
	return n.next.RoundTrip(req)
}
