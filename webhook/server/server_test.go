package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/webhook"
)

const (
	emptySecret = `
apiVersion: v1
kind: Secret
metadata: {name: tranche-webhook-tls, namespace: tranche-system}
type: Opaque`
	othersSecret  = "\n---\napiVersion: v1\nkind: Secret\nmetadata: {name: others, namespace: tranche-system}\n"
	configuration = `
apiVersion: admissionregistration.k8s.io/v1
kind: %sWebhookConfiguration
metadata: {name: tranche}
webhooks:
- {name: pods.tranche.dev, clientConfig: {url: "https://localhost/"}}
- {name: more.tranche.dev, clientConfig: {url: "https://localhost/"}}`
)

// clusterObjects are what a cluster has after the manifests were applied.
func clusterObjects(t *testing.T) map[string]string {
	t.Helper()
	return map[string]string{
		namespacesPath: "apiVersion: v1\nkind: Namespace\nmetadata: {name: demo, labels: {tranche.dev/inject: enabled}}",
		nodesPath: fmt.Sprintf("apiVersion: v1\nkind: Node\nmetadata: {name: n1, annotations: {%s: '%s'}}",
			contract.InventoryAnnotation, inventory(t, "NVIDIA-A30", 24576)),
		jobsPath: "apiVersion: batch/v1\nkind: Job\nmetadata: {name: train, namespace: demo, uid: u-1, labels: {tranche.dev/gang: trio, tranche.dev/queue: night}, annotations: {tranche.dev/gang-min-count: '3'}}\n" +
			"---\napiVersion: batch/v1\nkind: Job\nmetadata: {name: plain, namespace: demo, uid: u-2}",
		queuesPath: "apiVersion: tranche.dev/v1alpha1\nkind: Queue\nmetadata: {name: open}\nspec: {limit: {gpu: 4}}\nstatus: {open: true}\n" +
			"---\napiVersion: tranche.dev/v1alpha1\nkind: Queue\nmetadata: {name: busy}\nstatus: {open: false}",
		secretsPath:    emptySecret + othersSecret,
		mutatingPath:   fmt.Sprintf(configuration, "Mutating"),
		validatingPath: fmt.Sprintf(configuration, "Validating"),
	}
}

// running is a webhook that run serves.
type running struct {
	options *webhook.Options
	api     *apiServer
	// done gets run's result.
	done   chan error
	cancel context.CancelFunc
}

var runs atomic.Int32

// bufferedLogger shows what was logged if the test fails. It does not log to
// the test: cert-controller leaves goroutines behind that would after its end.
func bufferedLogger(t *testing.T) logr.Logger {
	t.Helper()
	var mu sync.Mutex
	var lines []string
	t.Cleanup(func() {
		mu.Lock()
		defer mu.Unlock()
		if t.Failed() {
			t.Log(strings.Join(lines, "\n"))
		}
	})
	return funcr.New(func(prefix, args string) {
		mu.Lock()
		defer mu.Unlock()
		lines = append(lines, prefix+" "+args)
	}, funcr.Options{LogTimestamp: true})
}

// start runs the webhook until the test ends. name tells its controller apart.
func start(t *testing.T, api *apiServer, name string, change func(*webhook.Options), registry prometheus.Registerer) *running {
	t.Helper()
	o := webhook.DefaultOptions()
	o.Kubeconfig = api.kubeconfig(t)
	o.BindAddress, o.MetricsBindAddress, o.HealthBindAddress = freeAddress(t), freeAddress(t), freeAddress(t)
	if change != nil {
		change(o)
	}
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r := &running{options: o, api: api, done: make(chan error, 1), cancel: cancel}
	log := bufferedLogger(t)
	ctrllog.SetLogger(log)
	// controller-runtime wants names to be new in the process, also with -count.
	name = fmt.Sprintf("%s-%d", name, runs.Add(1))
	go func() { r.done <- run(klog.NewContext(ctx, log), o, registry, name) }()
	t.Cleanup(func() {
		cancel()
		_ = r.stopped(t) // what it says is for tests that ask
	})
	return r
}

// stopped waits for run's result; later calls get the same.
func (r *running) stopped(t *testing.T) error {
	t.Helper()
	select {
	case err := <-r.done:
		r.done <- err
		return err
	case <-time.After(time.Minute):
		t.Fatal("the webhook does not stop")
		return nil
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// eventually waits until check returns "", which says what is still missing.
func eventually(t *testing.T, what string, check func() string) {
	t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	missing := ""
	for {
		if missing = check(); missing == "" {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s: %s", what, missing)
		}
	}
}

// get fetches a plain HTTP page.
func get(t *testing.T, address, path string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err.Error()
	}
	return response.StatusCode, string(text)
}

func (r *running) waitReady(t *testing.T) {
	t.Helper()
	eventually(t, "readiness", func() string {
		select {
		case err := <-r.done:
			r.done <- err
			t.Fatalf("it ended with %v", err)
		default:
		}
		code, text := get(t, r.options.HealthBindAddress, "/readyz?verbose")
		if code == http.StatusOK {
			return ""
		}
		return fmt.Sprintf("%d %s", code, text)
	})
}

// bundle is the CA that a webhook configuration gives the API server; nil until
// all its webhooks have the same.
func (r *running) bundle(path string) []byte {
	webhooks, _, _ := unstructured.NestedSlice(r.api.get(path, "tranche").Object, "webhooks")
	first := ""
	for i, w := range webhooks {
		ca, _, _ := unstructured.NestedString(w.(map[string]any), "clientConfig", "caBundle")
		if i == 0 {
			first = ca
		}
		if ca == "" || ca != first {
			return nil
		}
	}
	text, _ := base64.StdEncoding.DecodeString(first)
	return text
}

// dial shakes hands as the API server does, and returns what the webhook shows.
func (r *running) dial(t *testing.T, ca []byte, name string) (*x509.Certificate, error) {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	d := tls.Dialer{Config: &tls.Config{RootCAs: pool, ServerName: name}}
	conn, err := d.DialContext(t.Context(), "tcp", r.options.BindAddress)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0], nil
}

// post sends an admission review the way the API server does.
func (r *running) post(t *testing.T, ca []byte, path, body string) string {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: pool, ServerName: "tranche-webhook.tranche-system.svc"},
		ForceAttemptHTTP2: true,
	}}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+r.options.BindAddress+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	response, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

const review = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","namespace":"demo","operation":"CREATE",
	"resource":{"version":"v1","resource":"pods"},"object":{"metadata":{"name":"p","annotations":{"tranche.dev/gpu-memory":"12Gi"}},
	"spec":{"containers":[{"name":"main"}]}}}}`

func TestServesWithCertificatesOfItsOwn(t *testing.T) {
	api := newAPIServer(t, clusterObjects(t))
	registry := prometheus.NewRegistry()
	r := start(t, api, "own", func(o *webhook.Options) { o.DNSNames = []string{"localhost"} }, registry)
	r.waitReady(t)

	// 1. Everybody who must has the CA, and the certificate is right for all names.
	ca := r.bundle(mutatingPath)
	if !bytes.Equal(ca, r.bundle(validatingPath)) || len(ca) == 0 {
		t.Fatalf("CA in the mutating configuration: %q, in the validating one: %q", ca, r.bundle(validatingPath))
	}
	var first *x509.Certificate
	for _, name := range []string{"tranche-webhook.tranche-system.svc", "tranche-webhook", "localhost"} {
		leaf, err := r.dial(t, ca, name)
		if err != nil {
			t.Fatalf("as %s: %v", name, err)
		}
		first = leaf
	}

	// 2. The cluster is known: half of the only GPU's memory is half its shares.
	answer := r.post(t, ca, MutatePath, review)
	patch, _, _ := strings.Cut(answer[strings.Index(answer, `"patch":"`)+len(`"patch":"`):], `"`)
	if ops, err := base64.StdEncoding.DecodeString(patch); err != nil || !bytes.Contains(ops, []byte(`"limits":{"nvidia.com/gpu-share":"50"}`)) {
		t.Errorf("answer %s: patch %s, error %v", answer, ops, err)
	}

	// 3. What a Job declares reaches its pods.
	for name, tc := range map[string]struct{ owner, want string }{
		"a Job that is a gang": {`{"apiVersion":"batch/v1","kind":"Job","name":"train","uid":"u-1","controller":true}`, `{"op":"add","path":"/spec/schedulingGates","value":[{"name":"tranche.dev/admission"}]}`},
		"a Job that is none":   {`{"apiVersion":"batch/v1","kind":"Job","name":"plain","uid":"u-2","controller":true}`, ""},
		"a Job that is gone":   {`{"apiVersion":"batch/v1","kind":"Job","name":"gone","uid":"u-3","controller":true}`, ""},
	} {
		answer := r.post(t, ca, MutatePath, strings.Replace(review, `"name":"p",`, `"name":"p","ownerReferences":[`+tc.owner+`],`, 1))
		patch, _, _ := strings.Cut(answer[strings.Index(answer, `"patch":"`)+len(`"patch":"`):], `"`)
		ops, err := base64.StdEncoding.DecodeString(patch)
		if err != nil || bytes.Contains(ops, []byte("schedulingGates")) != (tc.want != "") || !bytes.Contains(ops, []byte(tc.want)) ||
			bytes.Contains(ops, []byte(`"tranche.dev/gang":"trio","tranche.dev/queue":"night"`)) != (tc.want != "") {
			t.Errorf("%s: answer %s: patch %s, error %v", name, answer, ops, err)
		}
		if strings.Contains(answer, "does not exist any more") != (name == "a Job that is gone") {
			t.Errorf("%s: answer %s", name, answer)
		}
	}

	// 4. A new certificate is served without a restart, and the CA stays.
	secret := api.get(secretsPath, "tranche-webhook-tls")
	_ = unstructured.SetNestedField(secret.Object, "", "data", "tls.crt")
	api.put(secretsPath, secret)
	eventually(t, "renewal", func() string {
		leaf, err := r.dial(t, ca, "localhost")
		if err != nil {
			return err.Error()
		}
		if leaf.Equal(first) {
			return "the old certificate is served"
		}
		return ""
	})

	// 5. A configuration that was applied anew gets the CA again.
	plain := api.get(mutatingPath, "tranche")
	_ = unstructured.SetNestedSlice(plain.Object, []any{map[string]any{
		"name": "pods.tranche.dev", "clientConfig": map[string]any{"url": "https://localhost/"},
	}}, "webhooks")
	api.put(mutatingPath, plain)
	eventually(t, "CA in the new configuration", func() string {
		if got := r.bundle(mutatingPath); !bytes.Equal(got, ca) {
			return fmt.Sprintf("%q", got)
		}
		return ""
	})

	// 6. A new CA, since somebody emptied the Secret, reaches everybody.
	secret = api.get(secretsPath, "tranche-webhook-tls")
	unstructured.RemoveNestedField(secret.Object, "data")
	api.put(secretsPath, secret)
	eventually(t, "new CA", func() string {
		renewed := r.bundle(validatingPath)
		if bytes.Equal(renewed, ca) || !bytes.Equal(renewed, r.bundle(mutatingPath)) {
			return "the configurations have the old one"
		}
		if _, err := r.dial(t, renewed, "localhost"); err != nil {
			return err.Error()
		}
		return ""
	})

	// 7. Metrics of ours and of controller-runtime.
	if n, err := testutil.GatherAndCount(registry, "tranche_webhook_requests_total", "tranche_webhook_certificate_expiry_timestamp_seconds"); n != 2 || err != nil {
		t.Errorf("%d metrics of ours, error %v", n, err)
	}
	if _, text := get(t, r.options.MetricsBindAddress, "/metrics"); !strings.Contains(text, `controller_runtime_webhook_requests_total{code="200",webhook="/mutate-pods"}`) {
		t.Errorf("no metrics of controller-runtime in %s", text)
	}
	if code, text := get(t, r.options.HealthBindAddress, "/healthz"); code != http.StatusOK {
		t.Errorf("healthz: %d %s", code, text)
	}

	// 8. It did with the rights that it has, and ends when told.
	if denied := api.refused(); len(denied) > 0 {
		t.Errorf("asked for what its rights forbid: %s", denied)
	}
	r.cancel()
	if err := r.stopped(t); err != nil {
		t.Errorf("stopped with %v", err)
	}
	if _, err := r.dial(t, ca, "localhost"); err == nil {
		t.Errorf("serves after the end")
	}
}

func TestRenewsACertificateThatLacksAName(t *testing.T) {
	chain, key, authority := certificate(t, "tranche-webhook.tranche-system.svc")
	objects := clusterObjects(t)
	objects[secretsPath] = emptySecret + fmt.Sprintf("\ndata: {ca.crt: %s, ca.key: %s, tls.crt: %s, tls.key: %s}\n",
		encode(authority.CertPEM), encode(authority.KeyPEM), encode(chain), encode(key))
	r := start(t, newAPIServer(t, objects), "names", func(o *webhook.Options) { o.DNSNames = []string{"localhost"} }, prometheus.NewRegistry())
	eventually(t, "certificate for localhost by the same CA", func() string {
		if _, err := r.dial(t, authority.CertPEM, "localhost"); err != nil {
			return err.Error()
		}
		return ""
	})
}

func encode(text []byte) string { return base64.StdEncoding.EncodeToString(text) }

// certificate makes a certificate for name, its key, and the authority of both.
func certificate(t *testing.T, name string) (chain, key []byte, authority *rotator.KeyPairArtifacts) {
	t.Helper()
	cr := &rotator.CertRotator{CAName: "tranche-webhook-ca", DNSName: name, ExtKeyUsages: &[]x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	begin, end := time.Now().Add(-time.Hour), time.Now().Add(300*24*time.Hour)
	authority, err := cr.CreateCACert(begin, end)
	if err != nil {
		t.Fatal(err)
	}
	if chain, key, err = cr.CreateCertPEM(authority, begin, end); err != nil {
		t.Fatal(err)
	}
	return chain, key, authority
}

// Two replicas that start on an empty Secret must end up with one certificate.
func TestReplicasShareTheSecret(t *testing.T) {
	api := newAPIServer(t, clusterObjects(t))
	a := start(t, api, "replica-a", nil, prometheus.NewRegistry())
	b := start(t, api, "replica-b", nil, prometheus.NewRegistry())
	a.waitReady(t)
	b.waitReady(t)
	eventually(t, "agreement", func() string {
		ca := a.bundle(mutatingPath)
		one, errOne := a.dial(t, ca, "tranche-webhook")
		two, errTwo := b.dial(t, ca, "tranche-webhook")
		if errOne != nil || errTwo != nil || !one.Equal(two) {
			return fmt.Sprintf("errors %v, %v", errOne, errTwo)
		}
		return ""
	})
}

// writeCertificate makes a certificate, puts it into dir, and returns its CA.
func writeCertificate(t *testing.T, dir string) []byte {
	t.Helper()
	chain, key, authority := certificate(t, "tranche-webhook.tranche-system.svc")
	for name, text := range map[string][]byte{"tls.key": key, "tls.crt": chain} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return authority.CertPEM
}

func TestServesCertificatesOfOthers(t *testing.T) {
	dir := t.TempDir()
	ca := writeCertificate(t, dir)
	objects := clusterObjects(t)
	delete(objects, secretsPath)
	api := newAPIServer(t, objects)
	r := start(t, api, "others", func(o *webhook.Options) { o.SelfSigned, o.CertDir = false, dir }, prometheus.NewRegistry())
	r.waitReady(t)
	if _, err := r.dial(t, ca, "tranche-webhook.tranche-system.svc"); err != nil {
		t.Fatal(err)
	}
	renewed := writeCertificate(t, dir)
	eventually(t, "renewed files", func() string {
		if _, err := r.dial(t, renewed, "tranche-webhook.tranche-system.svc"); err != nil {
			return err.Error()
		}
		return ""
	})
	if ca := r.bundle(mutatingPath); ca != nil {
		t.Errorf("wrote a CA that is not its own: %q", ca)
	}
}

func TestSaysWhatIsMissing(t *testing.T) {
	objects := clusterObjects(t)
	delete(objects, secretsPath)
	certDir := t.TempDir()
	writeCertificate(t, certDir)
	cases := map[string]struct {
		change func(*webhook.Options)
		want   string
	}{
		"no secret":        {want: "secret tranche-system/tranche-webhook-tls does not exist; create it empty"},
		"no certificate":   {change: func(o *webhook.Options) { o.SelfSigned, o.CertDir = false, t.TempDir() }, want: "certificate in --cert-dir"},
		"no kubeconfig":    {change: func(o *webhook.Options) { o.Kubeconfig = "/does/not/exist" }, want: "api server access"},
		"no such host":     {change: func(o *webhook.Options) { o.SelfSigned, o.CertDir, o.BindAddress = false, certDir, "192.0.2.1:9443" }, want: "192.0.2.1:9443"},
		"not in a cluster": {change: func(o *webhook.Options) { o.Kubeconfig = "" }, want: "api server access"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			api := newAPIServer(t, objects)
			r := start(t, api, "missing "+name, tc.change, prometheus.NewRegistry())
			if err := r.stopped(t); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v; want %q", err, tc.want)
			}
		})
	}
}

func TestKeysNeverReachTheDisk(t *testing.T) {
	dir := t.TempDir()
	r := start(t, newAPIServer(t, clusterObjects(t)), "disk", func(o *webhook.Options) { o.CertDir = dir }, prometheus.NewRegistry())
	r.waitReady(t)
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
			if block.Type != "CERTIFICATE" {
				t.Errorf("%s holds a %s", f.Name(), block.Type)
			}
		}
	}
}

// gated says whether the answer to a pod of that queue adds the gate.
func (r *running) gated(t *testing.T, queue string) bool {
	t.Helper()
	answer := r.post(t, r.bundle(mutatingPath), MutatePath, strings.Replace(review, `"name":"p",`, `"name":"p","labels":{"tranche.dev/queue":"`+queue+`"},`, 1))
	patch, _, _ := strings.Cut(answer[strings.Index(answer, `"patch":"`)+len(`"patch":"`):], `"`)
	ops, err := base64.StdEncoding.DecodeString(patch)
	if err != nil || !bytes.Contains(ops, []byte("nvidia.com/gpu-share")) {
		t.Fatalf("answer %s: patch %s, error %v", answer, ops, err)
	}
	return bytes.Contains(ops, []byte(`{"op":"add","path":"/spec/schedulingGates","value":[{"name":"tranche.dev/admission"}]}`))
}

func TestHoldsSinglePodsAsTheirQueuesSay(t *testing.T) {
	api := newAPIServer(t, clusterObjects(t))
	r := start(t, api, "queues", nil, prometheus.NewRegistry())
	r.waitReady(t)
	got := map[string]bool{}
	for _, queue := range []string{"open", "busy", "unknown", "default"} {
		got[queue] = r.gated(t, queue)
	}
	if diff := cmp.Diff(map[string]bool{"open": false, "busy": true, "unknown": true, "default": false}, got); diff != "" {
		t.Errorf("gated by queue (-want +got):\n%s", diff)
	}
	// What the extender writes counts from then on.
	busy := api.get(queuesPath, "busy")
	_ = unstructured.SetNestedField(busy.Object, true, "status", "open")
	api.put(queuesPath, busy)
	eventually(t, "the queue opens", func() string {
		if r.gated(t, "busy") {
			return "its pods are held"
		}
		return ""
	})
	if denied := api.refused(); len(denied) > 0 {
		t.Errorf("asked for what its rights forbid: %s", denied)
	}
}

func TestHoldsNoSinglePodWithoutQueues(t *testing.T) {
	cases := map[string]struct {
		remove []string
		change func(*webhook.Options)
	}{
		"not served":  {remove: []string{queuesPath}},
		"not wanted":  {change: func(o *webhook.Options) { o.QueueGate = false }},
		"neither nor": {remove: []string{queuesPath}, change: func(o *webhook.Options) { o.QueueGate = false }},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			objects := clusterObjects(t)
			for _, path := range tc.remove {
				delete(objects, path)
			}
			r := start(t, newAPIServer(t, objects), "without "+name, tc.change, prometheus.NewRegistry())
			r.waitReady(t)
			for _, queue := range []string{"busy", "unknown", "default"} {
				if r.gated(t, queue) {
					t.Errorf("a pod of queue %s is held", queue)
				}
			}
		})
	}
}

func TestIsReadyWhenQueuesAreKnown(t *testing.T) {
	api := newAPIServer(t, clusterObjects(t))
	api.withheld.Store(true)
	r := start(t, api, "late queues", nil, prometheus.NewRegistry())
	eventually(t, "all but the queues", func() string {
		_, text := get(t, r.options.HealthBindAddress, "/readyz?verbose")
		if strings.Contains(text, "[+]certificate ok") && strings.Contains(text, "[-]informers failed") {
			return ""
		}
		return text
	})
	// The other informers are there, so pods are answered, and not held.
	eventually(t, "an answer without queues", func() string {
		if answer := r.post(t, r.bundle(mutatingPath), MutatePath, review); !strings.Contains(answer, `"allowed":true`) {
			return answer
		}
		return ""
	})
	if r.gated(t, "busy") {
		t.Error("a pod is held for a queue that nobody knows")
	}
	api.withheld.Store(false)
	r.waitReady(t)
	if !r.gated(t, "busy") {
		t.Error("a pod of a busy queue is not held")
	}
}
