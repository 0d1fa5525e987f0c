package server

import (
	"context"
	"fmt"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"

	"github.com/julienschmidt/httprouter"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tranche-dev/tranche/extender/planner"
)

// State is the body of GET /v1/state.
type State struct {
	// Program is the version of the program; the ledger's own version follows.
	Program string `json:"program"`
	Leader  bool   `json:"leader"`
	Ready   bool   `json:"ready"`
	// NotReady says why not, if not.
	NotReady []string `json:"notReady"`
	planner.State
}

// ObserverHandler serves people, probes and Prometheus, without TLS.
func (s *Server) ObserverHandler(gatherer prometheus.Gatherer, profiling bool) http.Handler {
	router := httprouter.New()
	router.GET("/healthz", s.healthz)
	router.GET("/readyz", s.readyz)
	router.GET("/v1/state", s.state)
	router.Handler(http.MethodGet, "/metrics", promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{}))
	if profiling {
		router.HandlerFunc(http.MethodGet, "/debug/pprof/", pprof.Index)
		router.HandlerFunc(http.MethodGet, "/debug/pprof/cmdline", pprof.Cmdline)
		router.HandlerFunc(http.MethodGet, "/debug/pprof/profile", pprof.Profile)
		router.HandlerFunc(http.MethodGet, "/debug/pprof/symbol", pprof.Symbol)
		router.HandlerFunc(http.MethodGet, "/debug/pprof/trace", pprof.Trace)
		for _, name := range []string{"allocs", "block", "goroutine", "heap", "mutex", "threadcreate"} {
			router.Handler(http.MethodGet, "/debug/pprof/"+name, pprof.Handler(name))
		}
	}
	return router
}

// aliveWithin is how long the planner may take to answer. It handles commands
// in microseconds; seconds mean that it hangs.
const aliveWithin = 5 * time.Second

func (s *Server) healthz(w http.ResponseWriter, r *http.Request, _ httprouter.Params) {
	ctx, cancel := context.WithTimeout(r.Context(), aliveWithin)
	defer cancel()
	if err := s.observer.Alive(ctx); err != nil {
		http.Error(w, "the planner does not answer: "+err.Error(), http.StatusServiceUnavailable)
		return
	}
	text(w, "ok")
}

func (s *Server) readyz(w http.ResponseWriter, _ *http.Request, _ httprouter.Params) {
	if reasons := s.observer.NotReady(); len(reasons) > 0 {
		http.Error(w, strings.Join(reasons, "\n"), http.StatusServiceUnavailable)
		return
	}
	text(w, "ok")
}

func (s *Server) state(w http.ResponseWriter, r *http.Request, _ httprouter.Params) {
	inner, err := s.observer.State(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	reasons := s.observer.NotReady()
	if reasons == nil {
		reasons = []string{}
	}
	_ = send(w, encode(State{
		Program: s.opts.Version, Leader: s.observer.Leading(), Ready: len(reasons) == 0, NotReady: reasons, State: inner,
	}))
}

func text(w http.ResponseWriter, s string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	fmt.Fprintln(w, s)
}
