package nodeplugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// Ready says why the node does not take GPU pods as it should; nil if it does.
// A single GPU that is unfit is no reason.
func (p *Plugin) Ready() error {
	state, _ := p.monitor.State()
	p.mu.Lock()
	foreign, refused := p.foreign, p.refused
	p.mu.Unlock()
	problems := []error{state.Failure, foreign, refused}
	if !state.Known && state.Failure == nil {
		problems = append(problems, errors.New("the GPUs are not known yet"))
	}
	return errors.Join(append(problems, p.publisher.Err(), p.registrar.Err())...)
}

// Serve answers /metrics, /healthz and /readyz until ctx ends.
func Serve(ctx context.Context, l net.Listener, reg *prometheus.Registry, ready func() error) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{Registry: reg}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n"))
	})
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second}
	stopped := make(chan error, 1)
	go func() { stopped <- srv.Serve(l) }()
	select {
	case err := <-stopped:
		return fmt.Errorf("metrics and health: %w", err)
	case <-ctx.Done():
	}
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	err := srv.Shutdown(bound)
	if ended := <-stopped; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	return err
}

// event tells the operator on the Node object. It is a help, not a promise: the
// log has it too.
func (p *Plugin) event(ctx context.Context, reason, message string) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	now := metav1.NewTime(p.deps.Clock.Now())
	// A Node's UID in events is its name, by which kubectl describe finds them.
	name := p.opts.NodeName + ".tranche." + fmt.Sprintf("%x", now.UnixNano())
	_, err := p.deps.Client.CoreV1().Events(metav1.NamespaceDefault).Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault},
		InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: p.opts.NodeName, UID: types.UID(p.opts.NodeName)},
		Reason:         reason, Message: message, Type: corev1.EventTypeWarning,
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
		Source: corev1.EventSource{Component: "tranche-nodeplugin", Host: p.opts.NodeName},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		klog.FromContext(ctx).Error(err, "Event not written", "reason", reason, "message", message)
	}
}
