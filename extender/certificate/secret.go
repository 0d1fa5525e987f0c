package certificate

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// Keys of the Secret; ca.crt is what kube-scheduler is configured with.
const (
	caCertKey = "ca.crt"
	caKeyKey  = "ca.key"
	certKey   = corev1.TLSCertKey
	keyKey    = corev1.TLSPrivateKeyKey
)

const (
	caLife      = 10 * 365 * 24 * time.Hour
	certLife    = 365 * 24 * time.Hour
	renewBefore = 90 * 24 * time.Hour
	// backdate allows for clocks that are behind ours.
	backdate = time.Hour
	// checkEvery is how soon a certificate that another replica renewed, or a
	// Secret that somebody deleted, is noticed. Nothing depends on the moment.
	checkEvery = time.Minute
	// writeTries bounds how often replicas that start together and write the
	// same Secret try again.
	writeTries = 5
)

// SecretOptions say where the certificate is kept and what it is for.
type SecretOptions struct {
	Namespace, Name string
	// DNSNames are all names of the server, at least one.
	DNSNames []string
	Clock    clock.WithTicker
}

// Secret is a Source that makes and renews the certificate itself. Making and
// checking certificates is cert-controller's work; its rotation loop is not
// used: it needs the Secret mounted as files and to exist beforehand, and it
// ends the process by itself.
type Secret struct {
	client  kubernetes.Interface
	opts    SecretOptions
	maker   rotator.CertRotator
	current atomic.Pointer[pair]

	mu        sync.Mutex
	listeners []dynamiccertificates.Listener
}

type pair struct{ cert, key []byte }

var _ Source = (*Secret)(nil)

// FromSecret reads the certificate, or makes one, before it returns.
func FromSecret(ctx context.Context, client kubernetes.Interface, opts SecretOptions) (*Secret, error) {
	if len(opts.DNSNames) == 0 {
		return nil, errors.New("serving certificate: no DNS name")
	}
	s := &Secret{
		client: client, opts: opts,
		maker: rotator.CertRotator{
			CAName: opts.Name + "-ca", CAOrganization: "tranche.dev",
			DNSName: opts.DNSNames[0], ExtraDNSNames: opts.DNSNames[1:],
			ExtKeyUsages: &[]x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		},
	}
	return s, s.refresh(ctx)
}

// Name implements Source.
func (s *Secret) Name() string { return "secret/" + s.opts.Namespace + "/" + s.opts.Name }

// CurrentCertKeyContent implements Source.
func (s *Secret) CurrentCertKeyContent() (cert, key []byte) {
	p := s.current.Load()
	return p.cert, p.key
}

// AddListener implements Source.
func (s *Secret) AddListener(l dynamiccertificates.Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listeners = append(s.listeners, l)
}

// Run implements Source. Every replica runs it: they renew the same Secret, and
// whoever writes second reads what the first has written.
func (s *Secret) Run(ctx context.Context, _ int) {
	ticker := s.opts.Clock.NewTicker(checkEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
		if err := s.refresh(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Serving certificate could not be checked; the present one stays in use")
		}
	}
}

// refresh takes what the Secret has, after making what is missing in it.
func (s *Secret) refresh(ctx context.Context) error {
	for range writeTries {
		secret, err := s.ensure(ctx)
		switch {
		case err == nil:
			s.take(secret)
			return nil
		case apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err):
			continue // another replica was quicker
		case apierrors.IsForbidden(err):
			return fmt.Errorf("%s: %w; grant get and update on this Secret, and create in its namespace, or give --tls-cert-file", s.Name(), err)
		default:
			return fmt.Errorf("%s: %w", s.Name(), err)
		}
	}
	return fmt.Errorf("%s: changed by others %d times while it was written", s.Name(), writeTries)
}

// ensure returns the Secret with certificates that are good for a while.
func (s *Secret) ensure(ctx context.Context) (*corev1.Secret, error) {
	secrets := s.client.CoreV1().Secrets(s.opts.Namespace)
	secret, err := secrets.Get(ctx, s.opts.Name, metav1.GetOptions{})
	exists := err == nil
	switch {
	case apierrors.IsNotFound(err):
		secret = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.opts.Namespace, Name: s.opts.Name}}
	case err != nil:
		return nil, err
	}
	changed, err := s.fill(secret)
	switch {
	case err != nil:
		return nil, err
	case !changed:
		return secret, nil
	case exists:
		return secrets.Update(ctx, secret, metav1.UpdateOptions{})
	default:
		return secrets.Create(ctx, secret, metav1.CreateOptions{})
	}
}

// fill puts a new CA or a new serving certificate into the Secret if the one
// there is missing, broken, for other names or near its end.
func (s *Secret) fill(secret *corev1.Secret) (changed bool, err error) {
	now := s.opts.Clock.Now()
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	d := secret.Data
	if ok, _ := rotator.ValidCert(d[caCertKey], d[caCertKey], d[caKeyKey], s.maker.CAName, nil, now.Add(renewBefore)); !ok {
		ca, err := s.maker.CreateCACert(now.Add(-backdate), now.Add(caLife))
		if err != nil {
			return false, fmt.Errorf("make CA: %w", err)
		}
		d[caCertKey], d[caKeyKey] = ca.CertPEM, ca.KeyPEM
		delete(d, certKey)
	}
	if s.valid(d, now.Add(renewBefore)) {
		return false, nil
	}
	ca, err := parseCA(d)
	if err != nil {
		return false, err
	}
	d[certKey], d[keyKey], err = s.maker.CreateCertPEM(ca, now.Add(-backdate), now.Add(certLife))
	if err != nil {
		return false, fmt.Errorf("make serving certificate: %w", err)
	}
	return true, nil
}

// valid says whether the serving certificate is good for all names at a time.
func (s *Secret) valid(d map[string][]byte, at time.Time) bool {
	return !slices.ContainsFunc(s.opts.DNSNames, func(name string) bool {
		ok, _ := rotator.ValidCert(d[caCertKey], d[certKey], d[keyKey], name, s.maker.ExtKeyUsages, at)
		return !ok
	})
}

func parseCA(d map[string][]byte) (*rotator.KeyPairArtifacts, error) {
	certDER, _ := pem.Decode(d[caCertKey])
	keyDER, _ := pem.Decode(d[caKeyKey])
	if certDER == nil || keyDER == nil {
		return nil, errors.New("the CA in the Secret is no PEM")
	}
	cert, err := x509.ParseCertificate(certDER.Bytes)
	if err != nil {
		return nil, fmt.Errorf("CA in the Secret: %w", err)
	}
	key, err := x509.ParsePKCS1PrivateKey(keyDER.Bytes)
	if err != nil {
		return nil, fmt.Errorf("CA key in the Secret: %w", err)
	}
	return &rotator.KeyPairArtifacts{Cert: cert, Key: key, CertPEM: d[caCertKey], KeyPEM: d[caKeyKey]}, nil
}

// take puts the Secret's certificate to use and tells who listens.
func (s *Secret) take(secret *corev1.Secret) {
	next := &pair{cert: secret.Data[certKey], key: secret.Data[keyKey]}
	last := s.current.Swap(next)
	if last != nil && bytes.Equal(last.cert, next.cert) && bytes.Equal(last.key, next.key) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.listeners {
		l.Enqueue()
	}
}
