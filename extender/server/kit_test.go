package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/tranche-dev/tranche/extender/certificate"
	"github.com/tranche-dev/tranche/extender/internal/fixture"
	"github.com/tranche-dev/tranche/extender/metrics"
	"github.com/tranche-dev/tranche/extender/planner"
	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const schedulerName = "system:kube-scheduler"

// quiet has no effects.
type quiet struct{}

func (quiet) Wake(ledger.Pod, uint64)          {}
func (quiet) Warn(ledger.Pod, string, string)  {}
func (quiet) Verify(ledger.Pod)                {}
func (quiet) Admit([]planner.Admission)        {}
func (quiet) Withdraw(ledger.Pod)              {}
func (quiet) Evict(ledger.Pod, string, string) {}
func (quiet) Report(planner.GangReport)        {}
func (quiet) ReportQueue(planner.QueueReport)  {}
func (quiet) EvictTogether([]planner.Eviction) {}
func (quiet) Spare(ledger.Pod)                 {}

// observer says what the test wants.
type observer struct {
	mu       sync.Mutex
	notReady []string
	alive    error
	planner  *planner.Planner
}

func (o *observer) NotReady() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.notReady
}
func (o *observer) Leading() bool                                    { return true }
func (o *observer) Alive(context.Context) error                      { return o.alive }
func (o *observer) State(ctx context.Context) (planner.State, error) { return o.planner.State(ctx) }

func (o *observer) set(reasons ...string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.notReady = reasons
}

// binder remembers what it was asked.
type binder struct {
	asked []planner.Target
	err   error
}

func (b *binder) Bind(_ context.Context, t planner.Target) error {
	b.asked = append(b.asked, t)
	return b.err
}

// kit is a server on a real port, with a real planner behind it.
type kit struct {
	testing.TB
	ca       *fixture.CA
	url      string
	server   *Server
	planner  *planner.Planner
	binder   *binder
	observer *observer
	metrics  *metrics.Metrics
	registry *prometheus.Registry
	// client is the scheduler.
	client *http.Client
}

func newKit(tb testing.TB, change func(*Options)) *kit {
	tb.Helper()
	k := &kit{TB: tb, ca: fixture.NewCA(tb, "ca"), binder: &binder{}, registry: prometheus.NewRegistry()}
	k.metrics = metrics.New(k.registry)
	var err error
	k.planner, err = planner.New(planner.Options{
		Resources: contract.DefaultResources(), Placement: contract.PlacementBinpack, HoldTimeout: 1e9, Clock: clock.RealClock{},
	}, k.metrics, quiet{})
	if err != nil {
		tb.Fatal(err)
	}
	k.observer = &observer{planner: k.planner}
	opts := Options{AllowedNames: []string{schedulerName}, Version: "v1.2.3", Clock: clock.RealClock{}}
	if change != nil {
		change(&opts)
	}
	k.server = New(opts, k.planner, k.binder, k.observer, k.metrics)

	dir := tb.TempDir()
	cert, key := k.ca.Issue(tb, "extender", "localhost")
	fixture.Write(tb, filepath.Join(dir, "tls.crt"), cert)
	fixture.Write(tb, filepath.Join(dir, "tls.key"), key)
	fixture.Write(tb, filepath.Join(dir, "ca.crt"), k.ca.PEM)
	serving, err := certificate.FromFiles(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
	if err != nil {
		tb.Fatal(err)
	}
	config, err := certificate.New(serving, filepath.Join(dir, "ca.crt"))
	if err != nil {
		tb.Fatal(err)
	}

	ctx, cancel := context.WithCancel(tb.Context())
	var running sync.WaitGroup
	tb.Cleanup(func() {
		cancel()
		running.Wait()
	})
	running.Go(func() { k.planner.Run(ctx) })
	running.Go(func() { config.Run(ctx) })
	k.url = k.serve(ctx, &running, k.server.Handler(), config.Config())
	k.client = k.as(schedulerName)
	return k
}

// serve serves until ctx ends and returns the URL.
func (k *kit) serve(ctx context.Context, running *sync.WaitGroup, handler http.Handler, config *tls.Config) string {
	k.Helper()
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		k.Fatal(err)
	}
	server := HTTPServer(ctx, handler, config, 0)
	running.Go(func() {
		if err := Serve(server, listener); err != nil {
			k.Error(err)
		}
	})
	context.AfterFunc(ctx, func() { _ = server.Close() })
	scheme := "http://"
	if config != nil {
		scheme = "https://"
	}
	return scheme + listener.Addr().String()
}

// as is a client with a certificate of that common name.
func (k *kit) as(name string) *http.Client {
	k.Helper()
	transport := &http.Transport{TLSClientConfig: k.ca.Client(k, name, k.ca.PEM), ForceAttemptHTTP2: true}
	k.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// reply is an answer with its body read.
type reply struct {
	*http.Response
	body []byte
}

func (k *kit) do(client *http.Client, method, url string, body []byte) (reply, error) {
	k.Helper()
	request, err := http.NewRequestWithContext(k.Context(), method, url, bytes.NewReader(body))
	if err != nil {
		k.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		return reply{}, err
	}
	read, err := io.ReadAll(response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		k.Fatal(err)
	}
	return reply{response, read}, nil
}

// call is a scheduler's POST; the answer is decoded into result.
func (k *kit) call(verb string, args, result any) reply {
	k.Helper()
	body, ok := args.([]byte)
	if !ok {
		var err error
		if body, err = json.Marshal(args); err != nil {
			k.Fatal(err)
		}
	}
	r, err := k.do(k.client, http.MethodPost, k.url+"/v1/"+verb, body)
	if err != nil {
		k.Fatal(err)
	}
	if r.StatusCode != http.StatusOK || int64(len(r.body)) != r.ContentLength {
		k.Errorf("status %d, length %d of %d, want 200 and a length", r.StatusCode, r.ContentLength, len(r.body))
	}
	if err := json.Unmarshal(r.body, result); err != nil {
		k.Errorf("answer %q: %v", r.body, err)
	}
	return r
}

func (k *kit) node(name string, gpus int) {
	k.Helper()
	k.planner.ObserveNode(k.Context(), view.NodeOf(fixture.Node(k, name, fixture.Inventory(name, gpus)), contract.DefaultResources()))
	k.settled()
}

func (k *kit) pod(pod *corev1.Pod) {
	k.Helper()
	k.planner.Observe(k.Context(), view.PodOf(pod, contract.DefaultResources()))
	k.settled()
}

func (k *kit) settled() {
	k.Helper()
	if err := k.planner.Ping(k.Context()); err != nil {
		k.Fatal(err)
	}
}
