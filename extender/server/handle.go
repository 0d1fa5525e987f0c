package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"

	"github.com/julienschmidt/httprouter"
	"k8s.io/klog/v2"
)

// verb wraps what all verbs have in common.
func (s *Server) verb(name string, f verbFunc) httprouter.Handle {
	return func(w http.ResponseWriter, r *http.Request, _ httprouter.Params) {
		ctx := r.Context()
		// 1. Who is it?
		if client, allowed := s.client(r); !allowed {
			s.metrics.Requests.WithLabelValues(name, forbidden).Inc()
			klog.FromContext(ctx).Info("Client may not call", "verb", name, "client", client, "remote", r.RemoteAddr)
			http.Error(w, forbiddenText(client, s.opts.AllowedNames), http.StatusForbidden)
			return
		}
		// 2. What is it? The time to read it is the client's, not ours.
		body, err := readBody(w, r, s.opts.MaxBody)
		began := s.opts.Clock.Now()
		var a answer
		switch reasons := s.observer.NotReady(); {
		case err != nil:
			a = f(ctx, nil, err.Error())
			a.result = malformed
		case len(reasons) > 0:
			a = f(ctx, nil, notReadyText(reasons))
			a.result = notReady
		default:
			a = s.guarded(ctx, name, f, body)
		}
		// 3. Answer.
		if err := send(w, a.body); err == nil {
			giveBuffer(a.body)
		}
		giveBuffer(body)
		s.metrics.Answered(name, a.result, s.opts.Clock.Since(began))
	}
}

// client returns the common name of the client's certificate, which the TLS
// layer has verified, and whether it may call.
func (s *Server) client(r *http.Request) (string, bool) {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return "", false
	}
	name := r.TLS.VerifiedChains[0][0].Subject.CommonName
	return name, slices.Contains(s.opts.AllowedNames, name)
}

// guarded calls f and turns a panic into an answer.
func (s *Server) guarded(ctx context.Context, name string, f verbFunc, body []byte) (a answer) {
	defer func() {
		if p := recover(); p != nil {
			s.metrics.Panics.Inc()
			klog.FromContext(ctx).Error(fmt.Errorf("panic: %v", p), "Handler panicked", "verb", name, "stack", string(debug.Stack()))
			a = f(ctx, nil, "Tranche's extender failed inside; its log has the details, please report them")
			a.result = panicked
		}
	}()
	return f(ctx, body, "")
}

// readBody reads at most limit bytes into a buffer, which the caller may give back
// when the request is decoded: all that is made of it is copied.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	size := 0
	if r.ContentLength > 0 && r.ContentLength <= limit {
		size = int(r.ContentLength) + bytes.MinRead
	}
	buffer := bytes.NewBuffer(takeBuffer(size))
	if _, err := buffer.ReadFrom(http.MaxBytesReader(w, r.Body, limit)); err != nil {
		if tooBig := (*http.MaxBytesError)(nil); errors.As(err, &tooBig) {
			return nil, fmt.Errorf("the request is bigger than %d bytes; set nodeCacheCapable: true in the scheduler's configuration of this extender", limit)
		}
		return nil, fmt.Errorf("read request: %w", err)
	}
	return buffer.Bytes(), nil
}

// send answers with a JSON body of known length: then HTTP/1.1 clients can use
// the connection again.
func send(w http.ResponseWriter, body []byte) error {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(http.StatusOK)
	_, err := w.Write(body)
	return err // the client may be gone, and there is nobody else to tell
}
