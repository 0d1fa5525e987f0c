package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"github.com/julienschmidt/httprouter"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/tranche-dev/tranche/extender/metrics"
	"github.com/tranche-dev/tranche/extender/planner"
)

// Decider answers what only reads, or holds.
type Decider interface {
	Filter(ctx context.Context, pod *corev1.Pod, nodes []string) (planner.Verdict, error)
	Prioritize(ctx context.Context, pod *corev1.Pod, nodes []string) ([]int64, error)
	Preempt(ctx context.Context, pod *corev1.Pod, victims map[string][]types.UID) map[string]bool
}

// Binder binds.
type Binder interface {
	Bind(ctx context.Context, target planner.Target) error
}

// Observer shows the process to people.
type Observer interface {
	// NotReady says, one sentence each, why kube-scheduler gets no answers.
	NotReady() []string
	// Leading says whether this replica has the lease.
	Leading() bool
	// Alive fails if the planner does not answer while ctx lasts.
	Alive(ctx context.Context) error
	// State is the ledger and who waits.
	State(ctx context.Context) (planner.State, error)
}

// Options are the server's settings.
type Options struct {
	// AllowedNames are the common names of client certificates that may call.
	AllowedNames []string
	// Version is of the program, for GET /v1/state.
	Version string
	// MaxBody bounds a request, in bytes; 0 is DefaultMaxBody.
	MaxBody int64
	Clock   clock.PassiveClock
}

// DefaultMaxBody takes 5,000 whole nodes of 10 KiB each, for schedulers that
// are not configured with nodeCacheCapable; with it a request is 0.2 MiB.
const DefaultMaxBody = 64 << 20

// Server has the handlers.
type Server struct {
	opts     Options
	decider  Decider
	binder   Binder
	observer Observer
	metrics  *metrics.Metrics
}

// New returns a Server.
func New(opts Options, decider Decider, binder Binder, observer Observer, m *metrics.Metrics) *Server {
	if opts.MaxBody == 0 {
		opts.MaxBody = DefaultMaxBody
	}
	return &Server{opts: opts, decider: decider, binder: binder, observer: observer, metrics: m}
}

// Handler serves kube-scheduler. The connection must have been authenticated
// with a client certificate.
func (s *Server) Handler() http.Handler {
	router := httprouter.New()
	router.POST("/v1/filter", s.verb("filter", s.filter))
	router.POST("/v1/prioritize", s.verb("prioritize", s.prioritize))
	router.POST("/v1/bind", s.verb("bind", s.bind))
	router.POST("/v1/preempt", s.verb("preempt", s.preempt))
	router.GET("/v1/state", s.state)
	return router
}

// A body arrives within seconds; an answer may wait for the API server and,
// when a gang is bound, for its other members. kube-scheduler keeps one
// connection for ever.
const (
	readHeaderTimeout = 10 * time.Second
	readTimeout       = 30 * time.Second
	writeTimeout      = 2 * time.Minute
	idleTimeout       = 5 * time.Minute
	// spareTime is what a call may take besides what it waits for.
	spareTime = 10 * time.Second
	// maxStreams is how many calls one HTTP/2 connection may carry at once. The
	// scheduler has a call open for every pod that is being bound.
	maxStreams = 5000
)

// HTTPServer returns a server for handler with this package's limits, which
// leave time for calls that wait for as long as longest. Requests' contexts come
// from ctx and carry its logger.
func HTTPServer(ctx context.Context, handler http.Handler, config *tls.Config, longest time.Duration) *http.Server {
	log := klog.FromContext(ctx)
	return &http.Server{
		Handler:           handler,
		TLSConfig:         config,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ErrorLog:          slog.NewLogLogger(logr.ToSlogHandler(log.V(2)), slog.LevelInfo),
		ReadHeaderTimeout: readHeaderTimeout,
		// Over HTTP/1.1, net/http cancels a request whose time to be read ends
		// while it is answered.
		ReadTimeout:    max(readTimeout, longest+spareTime),
		WriteTimeout:   max(writeTimeout, longest+spareTime),
		IdleTimeout:    idleTimeout,
		MaxHeaderBytes: 64 << 10,
		HTTP2:          &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
	}
}

// Serve serves until server is shut down. With a TLS configuration it speaks
// HTTPS.
func Serve(server *http.Server, listener net.Listener) error {
	serve := server.Serve
	if server.TLSConfig != nil {
		serve = func(l net.Listener) error { return server.ServeTLS(l, "", "") }
	}
	if err := serve(listener); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", listener.Addr(), err)
	}
	return nil
}
