package cluster

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"slices"
	"time"

	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// certificate is one that the cluster's own authority signs, for servers and
// clients alike. Its files are NAME.crt and NAME.key of the folder pki.
type certificate struct {
	name         string
	commonName   string
	organization []string
	hosts        []string
	addresses    []net.IP
}

// validity is long, because nothing renews the certificates of a test cluster
// but another Up, which does so in the last month.
const (
	validity = 10 * 365 * 24 * time.Hour
	renewal  = 30 * 24 * time.Hour
)

func (p paths) crt(name string) string { return p.pki(name + ".crt") }
func (p paths) key(name string) string { return p.pki(name + ".key") }

// authorityName is the certificate authority of everything here.
const authorityName = "ca"

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// ensureAuthority loads the cluster's authority or makes one.
func (p paths) ensureAuthority() (authority, error) {
	key, err := p.ensureKey(authorityName)
	if err != nil {
		return authority{}, err
	}
	if certs, err := certutil.CertsFromFile(p.crt(authorityName)); err == nil && sameKey(certs[0], key) {
		return authority{cert: certs[0], key: key}, nil
	}
	cert, err := certutil.NewSelfSignedCACert(certutil.Config{CommonName: "tranche-local-" + p.hash()}, key)
	if err != nil {
		return authority{}, fmt.Errorf("certificate authority: %w", err)
	}
	return authority{cert: cert, key: key}, p.writeCertificate(authorityName, cert)
}

// ensure loads c or makes it, and makes it anew when another one is wanted now.
func (a authority) ensure(p paths, c certificate) error {
	key, err := p.ensureKey(c.name)
	if err != nil {
		return err
	}
	if certs, err := certutil.CertsFromFile(p.crt(c.name)); err == nil && sameKey(certs[0], key) && a.stillGood(certs[0], c) {
		return nil
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 63))
	if err != nil {
		return fmt.Errorf("certificate %s: %w", c.name, err)
	}
	now := time.Now()
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: c.commonName, Organization: c.organization},
		DNSNames:     c.hosts,
		IPAddresses:  c.addresses,
		NotBefore:    now.Add(-time.Hour), // for virtual machines whose clock jumps
		NotAfter:     now.Add(validity),
		KeyUsage:     x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.cert, key.Public(), a.key)
	if err != nil {
		return fmt.Errorf("certificate %s: %w", c.name, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return fmt.Errorf("certificate %s: %w", c.name, err)
	}
	return p.writeCertificate(c.name, cert)
}

func (a authority) stillGood(have *x509.Certificate, want certificate) bool {
	return have.CheckSignatureFrom(a.cert) == nil &&
		time.Until(have.NotAfter) > renewal &&
		have.Subject.CommonName == want.commonName &&
		slices.Equal(have.Subject.Organization, want.organization) &&
		slices.Equal(have.DNSNames, want.hosts) &&
		slices.EqualFunc(have.IPAddresses, want.addresses, net.IP.Equal)
}

func sameKey(cert *x509.Certificate, key crypto.Signer) bool {
	public, ok := cert.PublicKey.(*ecdsa.PublicKey)
	return ok && public.Equal(key.Public())
}

// ensureKey loads a private key or makes one.
func (p paths) ensureKey(name string) (crypto.Signer, error) {
	file := p.key(name)
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, fmt.Errorf("key %s: %w", name, err)
		}
		if b, err = keyutil.MarshalPrivateKeyToPEM(key); err != nil {
			return nil, fmt.Errorf("key %s: %w", name, err)
		}
		return key, writeFile(file, b, 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", name, err)
	}
	key, err := keyutil.ParsePrivateKeyPEM(b)
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", name, err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("key %s is a %T, which cannot sign", name, key)
	}
	return signer, nil
}

func (p paths) writeCertificate(name string, cert *x509.Certificate) error {
	b, err := certutil.EncodeCertificates(cert)
	if err != nil {
		return fmt.Errorf("certificate %s: %w", name, err)
	}
	return writeFile(p.crt(name), bytes.TrimSpace(b), 0o644)
}

// Users of the cluster's own programs, each with a certificate and a
// kubeconfig of that name.
const (
	userAdmin             = "admin"
	userControllerManager = "kube-controller-manager"
	userScheduler         = "kube-scheduler"
	userKwok              = "kwok"
	userKubelet           = "kubelet"
	// certServer is for everything that listens on this machine only.
	certServer = "server"
	// certKubeletClient is what the API server shows to the kubelet.
	certKubeletClient = "kubelet-client"
	certEtcdClient    = "etcd-client"
	// serviceAccountKey signs the tokens of service accounts.
	serviceAccountKey = "service-accounts"
)

// kubeletClientUser may call the kubelet: see kubeletAccess.
const kubeletClientUser = "kube-apiserver-kubelet-client"

// ensurePKI makes all keys and certificates. node is the real node's address,
// nil without one.
func (p paths) ensurePKI(node net.IP) error {
	a, err := p.ensureAuthority()
	if err != nil {
		return err
	}
	if _, err := p.ensureKey(serviceAccountKey); err != nil {
		return err
	}
	certs := []certificate{
		{name: userAdmin, commonName: "tranche-admin", organization: []string{"system:masters"}},
		{name: userControllerManager, commonName: "system:kube-controller-manager"},
		{name: userScheduler, commonName: "system:kube-scheduler"},
		{name: userKwok, commonName: "kwok", organization: []string{"system:masters"}},
		{
			name: certServer, commonName: "localhost", hosts: []string{"localhost", "kubernetes.default.svc"},
			addresses: []net.IP{net.IPv4(127, 0, 0, 1), net.ParseIP(firstServiceAddress)},
		},
		{name: certKubeletClient, commonName: kubeletClientUser},
		{name: certEtcdClient, commonName: "kube-apiserver-etcd-client"},
	}
	if node != nil {
		certs = append(certs, certificate{
			name: userKubelet, commonName: "system:node:" + RealNodeName, organization: []string{"system:nodes"},
			hosts: []string{RealNodeName}, addresses: []net.IP{node},
		})
	}
	for _, c := range certs {
		if err := a.ensure(p, c); err != nil {
			return err
		}
	}
	return nil
}
