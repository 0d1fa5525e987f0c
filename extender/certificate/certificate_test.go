package certificate

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/tranche-dev/tranche/extender/internal/fixture"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// handshake connects to a server with that configuration and returns the
// serving certificate.
func handshake(t *testing.T, server, client *tls.Config) (*x509.Certificate, error) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	var serving sync.WaitGroup
	defer serving.Wait()
	serving.Go(func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		// With TLS 1.3 the client learns only now that it was refused.
		if c := tls.Server(conn, server); c.HandshakeContext(t.Context()) == nil {
			_, _ = c.Write([]byte("hello"))
			_ = c.CloseWrite()
		}
	})
	dialer := tls.Dialer{Config: client}
	conn, err := dialer.DialContext(t.Context(), "tcp", listener.Addr().String())
	if err != nil {
		_ = listener.Close()
		return nil, err
	}
	defer conn.Close()
	if _, err := conn.Read(make([]byte, 8)); err != nil {
		return nil, err
	}
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0], nil
}

// eventually tries until f returns nil.
func eventually(t *testing.T, f func() error) {
	t.Helper()
	deadline := time.NewTimer(30 * time.Second)
	defer deadline.Stop()
	retry := time.NewTicker(20 * time.Millisecond)
	defer retry.Stop()
	for {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-deadline.C:
			t.Fatal(err)
		case <-retry.C:
		}
	}
}

func TestFilesAreFollowed(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	oldCA, newCA := fixture.NewCA(t, "old"), fixture.NewCA(t, "new")
	write := func(ca *fixture.CA) {
		cert, key := ca.Issue(t, "extender", "localhost")
		fixture.Write(t, file("tls.key"), key)
		fixture.Write(t, file("tls.crt"), cert)
		fixture.Write(t, file("ca.crt"), ca.PEM)
	}
	write(oldCA)
	serving, err := FromFiles(file("tls.crt"), file("tls.key"))
	if err != nil {
		t.Fatal(err)
	}
	config, err := New(serving, file("ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { config.Run(ctx) })
	defer running.Wait()
	defer cancel()

	if _, err := handshake(t, config.Config(), oldCA.Client(t, "x", oldCA.PEM)); err != nil {
		t.Errorf("at the start: %v", err)
	}
	if _, err := handshake(t, config.Config(), oldCA.Client(t, "", oldCA.PEM)); err == nil {
		t.Error("a client without certificate may connect")
	}
	write(newCA)
	eventually(t, func() error {
		_, err := handshake(t, config.Config(), newCA.Client(t, "x", newCA.PEM))
		return err
	})
	// The new server certificate, a client of the old CA.
	if _, err := handshake(t, config.Config(), oldCA.Client(t, "x", newCA.PEM)); err == nil {
		t.Error("a client of the old CA may still connect")
	}
	// Nonsense changes nothing.
	fixture.Write(t, file("ca.crt"), []byte("nonsense"))
	fixture.Write(t, file("tls.crt"), []byte("nonsense"))
	if _, err := handshake(t, config.Config(), newCA.Client(t, "x", newCA.PEM)); err != nil {
		t.Errorf("after nonsense was written: %v", err)
	}
}

func TestMissingFilesAreSaid(t *testing.T) {
	if _, err := FromFiles("/nonexistent/tls.crt", "/nonexistent/tls.key"); err == nil {
		t.Error("no error")
	}
	if _, err := New(nil, "/nonexistent/ca.crt"); err == nil {
		t.Error("no error")
	}
}

func options(clk clock.WithTicker) SecretOptions {
	return SecretOptions{Namespace: "tranche-system", Name: "tls", DNSNames: []string{"tranche-extender.tranche-system.svc", "localhost"}, Clock: clk}
}

func read(t *testing.T, client *fake.Clientset) *corev1.Secret {
	t.Helper()
	secret, err := client.CoreV1().Secrets("tranche-system").Get(t.Context(), "tls", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

func parse(t *testing.T, text []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(text)
	if block == nil {
		t.Fatalf("no PEM: %q", text)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func TestSecretIsMadeAndServes(t *testing.T) {
	dir := t.TempDir()
	clients := fixture.NewCA(t, "clients")
	fixture.Write(t, filepath.Join(dir, "ca.crt"), clients.PEM)
	client := fake.NewClientset()
	source, err := FromSecret(t.Context(), client, options(clock.RealClock{}))
	if err != nil {
		t.Fatal(err)
	}
	config, err := New(source, filepath.Join(dir, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { config.Run(ctx) })
	defer running.Wait()
	defer cancel()
	secret := read(t, client)
	for _, name := range options(clock.RealClock{}).DNSNames {
		c := clients.Client(t, "x", secret.Data["ca.crt"])
		c.ServerName = name
		if _, err := handshake(t, config.Config(), c); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	ca := parse(t, secret.Data["ca.crt"])
	if life := ca.NotAfter.Sub(ca.NotBefore); life < 9*365*24*time.Hour {
		t.Errorf("the CA lives for %v", life)
	}
	// A second replica uses the same.
	other, err := FromSecret(t.Context(), client, options(clock.RealClock{}))
	if err != nil {
		t.Fatal(err)
	}
	a, _ := source.CurrentCertKeyContent()
	b, _ := other.CurrentCertKeyContent()
	if !bytes.Equal(a, b) {
		t.Error("two replicas serve different certificates")
	}
}

func TestSecretIsRenewedInTimeAndKeepsItsCA(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Now())
	client := fake.NewClientset(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "tranche-system", Name: "tls"}})
	source, err := FromSecret(t.Context(), client, options(clk))
	if err != nil {
		t.Fatal(err)
	}
	first := read(t, client)
	steps := []struct {
		name              string
		after             time.Duration
		change            func(*corev1.Secret)
		newCert, newCACrt bool
	}{
		{name: "nothing to do", after: 200 * 24 * time.Hour},
		{name: "near the end", after: 80 * 24 * time.Hour, newCert: true},
		{name: "certificate spoilt", change: func(s *corev1.Secret) { s.Data["tls.crt"] = []byte("x") }, newCert: true},
		{name: "certificate gone", change: func(s *corev1.Secret) { delete(s.Data, "tls.crt") }, newCert: true},
		{name: "another's key", change: func(s *corev1.Secret) { s.Data["tls.key"] = s.Data["ca.key"] }, newCert: true},
		{name: "CA gone", change: func(s *corev1.Secret) { delete(s.Data, "ca.key") }, newCert: true, newCACrt: true},
		{name: "near the CA's end", after: 10 * 365 * 24 * time.Hour, newCert: true, newCACrt: true},
	}
	for _, step := range steps {
		before := read(t, client)
		if step.change != nil {
			changed := before.DeepCopy()
			step.change(changed)
			if _, err := client.CoreV1().Secrets("tranche-system").Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		clk.Step(step.after)
		if err := source.refresh(t.Context()); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		after := read(t, client)
		if got := !bytes.Equal(before.Data["tls.crt"], after.Data["tls.crt"]); got != step.newCert {
			t.Errorf("%s: new certificate %v, want %v", step.name, got, step.newCert)
		}
		if got := !bytes.Equal(before.Data["ca.crt"], after.Data["ca.crt"]); got != step.newCACrt {
			t.Errorf("%s: new CA %v, want %v", step.name, got, step.newCACrt)
		}
		if cert, _ := source.CurrentCertKeyContent(); !bytes.Equal(cert, after.Data["tls.crt"]) {
			t.Errorf("%s: serves another certificate than the Secret has", step.name)
		}
	}
	if bytes.Equal(first.Data["tls.crt"], read(t, client).Data["tls.crt"]) {
		t.Error("never renewed")
	}
}

func TestOtherNamesNeedAnotherCertificate(t *testing.T) {
	client := fake.NewClientset()
	if _, err := FromSecret(t.Context(), client, options(clock.RealClock{})); err != nil {
		t.Fatal(err)
	}
	before := read(t, client)
	opts := options(clock.RealClock{})
	opts.DNSNames = append(opts.DNSNames, "extender.example")
	if _, err := FromSecret(t.Context(), client, opts); err != nil {
		t.Fatal(err)
	}
	after := read(t, client)
	if err := parse(t, after.Data["tls.crt"]).VerifyHostname("extender.example"); err != nil || !bytes.Equal(before.Data["ca.crt"], after.Data["ca.crt"]) {
		t.Errorf("%v; the CA must stay", err)
	}
}

func TestReplicasThatStartTogetherAgree(t *testing.T) {
	client := fake.NewClientset()
	raced := false
	client.PrependReactor("create", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
		if raced {
			return false, nil, nil
		}
		raced = true // another replica is a moment quicker
		other := fake.NewClientset()
		if _, err := FromSecret(t.Context(), other, options(clock.RealClock{})); err != nil {
			t.Error(err)
		}
		if err := client.Tracker().Add(read(t, other)); err != nil {
			t.Error(err)
		}
		return true, nil, apierrors.NewAlreadyExists(schema.GroupResource{Resource: "secrets"}, "tls")
	})
	source, err := FromSecret(t.Context(), client, options(clock.RealClock{}))
	if err != nil {
		t.Fatal(err)
	}
	if cert, _ := source.CurrentCertKeyContent(); !bytes.Equal(cert, read(t, client).Data["tls.crt"]) {
		t.Error("serves another certificate than the Secret has")
	}
}

func TestForbiddenSecretSaysWhatToGrant(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("get", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "tls", nil)
	})
	_, err := FromSecret(t.Context(), client, options(clock.RealClock{}))
	if err == nil || !bytes.Contains([]byte(err.Error()), []byte("grant get and update")) {
		t.Errorf("error %v", err)
	}
}
