package cluster

import (
	"crypto/x509"
	"net"
	"os"
	"testing"

	certutil "k8s.io/client-go/util/cert"
)

func TestCertificatesAreMadeOnceAndFollowTheNode(t *testing.T) {
	t.Parallel()
	p := paths{dir: t.TempDir()}
	if err := p.create(); err != nil {
		t.Fatal(err)
	}
	names := []string{authorityName, userAdmin, userScheduler, certServer, userKubelet}
	read := func() map[string]string {
		t.Helper()
		all := map[string]string{}
		for _, n := range names {
			b, err := os.ReadFile(p.crt(n))
			if err != nil {
				t.Fatal(err)
			}
			all[n] = string(b)
		}
		return all
	}
	ensure := func(node string) map[string]string {
		t.Helper()
		if err := p.ensurePKI(net.ParseIP(node)); err != nil {
			t.Fatal(err)
		}
		return read()
	}
	first := ensure("10.160.0.1")
	for name, cert := range ensure("10.160.0.1") {
		if first[name] != cert {
			t.Errorf("%s changed without a reason", name)
		}
	}
	for name, cert := range ensure("10.160.1.1") {
		if (first[name] != cert) != (name == userKubelet) {
			t.Errorf("%s: changed %t after the node moved", name, first[name] != cert)
		}
	}
	roots, err := certutil.NewPool(p.crt(authorityName))
	if err != nil {
		t.Fatal(err)
	}
	for name, host := range map[string]string{certServer: "127.0.0.1", userKubelet: "10.160.1.1"} {
		certs, err := certutil.CertsFromFile(p.crt(name))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := certs[0].Verify(x509.VerifyOptions{Roots: roots, DNSName: host}); err != nil {
			t.Errorf("%s for %s: %v", name, host, err)
		}
	}
	if info, err := os.Stat(p.key(userAdmin)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the administrator's key: %v, %v", info.Mode(), err)
	}
}
