package kubelet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/klog/v2"
	dp "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"k8s.io/utils/clock"
)

const (
	// lookEvery is how often the folder is looked at although the kernel said
	// nothing: a watch that came too late, or that went with its folder, must
	// not leave a node without devices.
	lookEvery = time.Second
	// registerFor bounds a registration. The kubelet calls back within 10 s.
	registerFor = 15 * time.Second
	// listFor is how long the kubelet may take to ask for the list of devices
	// after a registration.
	listFor = 10 * time.Second
	// kubeletSocket is the registration socket's name.
	kubeletSocket = "kubelet.sock"
)

// Registrar keeps Servers registered with the kubelet. When the kubelet starts
// it deletes all sockets in its folder and forgets all plugins; so whenever its
// own socket is another than the one we registered on, or ours is gone, or it
// stopped listening to our list, we listen and register anew.
type Registrar struct {
	dir     string
	clock   clock.WithTicker
	metrics *Metrics
	// gate says why nothing may be registered yet.
	gate func(context.Context) error
	kick chan struct{}
	// moved receives when a stream of any Server began or ended.
	moved chan struct{}
	// neighbour receives when a socket appears that is not ours.
	neighbour chan struct{}

	mu      sync.Mutex
	plugins []*plugin
	// problem is why the last look did not end with everything registered.
	problem error
}

// plugin is a Server and how far it is registered. Only Run uses the fields
// below withdrawn.
type plugin struct {
	server *Server
	// withdrawn plugins are not registered; guarded by Registrar.mu.
	withdrawn bool

	endpoint *endpoint
	// on is the kubelet's socket on which endpoint was registered, nil if none.
	on os.FileInfo
	at time.Time
}

// NewRegistrar returns a Registrar for the kubelet's device plugin folder.
// gate is asked before each registration and returns why it must wait.
func NewRegistrar(dir string, gate func(context.Context) error, c clock.WithTicker, m *Metrics, servers ...*Server) *Registrar {
	r := &Registrar{
		dir: dir, clock: c, metrics: m, gate: gate, kick: make(chan struct{}, 1), moved: make(chan struct{}, 1),
		neighbour: make(chan struct{}, 1), problem: errors.New("not registered with the kubelet yet"),
	}
	for _, s := range servers {
		s.moved = r.moved
		r.plugins = append(r.plugins, &plugin{server: s})
	}
	return r
}

// Withdraw takes a resource out of the kubelet, or puts it back.
func (r *Registrar) Withdraw(resource string, yes bool) {
	r.mu.Lock()
	for _, p := range r.plugins {
		if p.server.resource == resource {
			p.withdrawn = yes
		}
	}
	r.mu.Unlock()
	r.Kick()
}

// Kick makes Run look at once, because the gate may have opened.
func (r *Registrar) Kick() {
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

// Neighbour receives when the socket of another device plugin appears.
func (r *Registrar) Neighbour() <-chan struct{} { return r.neighbour }

func (r *Registrar) meet(e fsnotify.Event) {
	name := filepath.Base(e.Name)
	if !e.Has(fsnotify.Create) || name == kubeletSocket || strings.HasPrefix(name, socketPrefix) || filepath.Ext(name) != ".sock" {
		return
	}
	select {
	case r.neighbour <- struct{}{}:
	default:
	}
}

// Err says why not all resources are registered and listened to; nil if so.
func (r *Registrar) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.problem != nil {
		return r.problem
	}
	for _, p := range r.plugins {
		if !p.withdrawn && !p.server.Connected() {
			return fmt.Errorf("the kubelet does not listen to the list of %s", p.server.resource)
		}
	}
	return nil
}

// Run keeps the Servers registered until ctx ends; then it takes them out.
func (r *Registrar) Run(ctx context.Context) error {
	log := klog.FromContext(ctx)
	defer r.close()
	w := &watcher{}
	defer w.close()
	if err := removeStale(ctx, r.dir); err != nil {
		log.Error(err, "Left-over sockets stay")
	}
	tick := r.clock.NewTicker(lookEvery)
	defer tick.Stop()
	pause := newPauses()
	var notBefore time.Time
	complained := ""
	for {
		// 1. Watch first, look then: whatever happens after the look wakes us.
		err := w.ensure(r.dir)
		if !r.clock.Now().Before(notBefore) || r.changedKubelet() {
			err = errors.Join(err, r.look(ctx))
			r.setProblem(err)
			switch {
			case ctx.Err() != nil:
				return nil
			case err == nil:
				pause, complained = newPauses(), ""
			default:
				notBefore = r.clock.Now().Add(pause.next())
				if err.Error() != complained {
					complained = err.Error()
					log.Info("Not registered with the kubelet yet; trying again", "reason", complained)
				}
			}
		}
		// 2. Wait for a reason to look again.
		var retry <-chan time.Time
		if err != nil {
			retry = r.clock.After(max(notBefore.Sub(r.clock.Now()), firstPause))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C():
		case <-retry:
		case <-r.kick:
			notBefore = time.Time{}
		case e := <-w.events():
			r.meet(e)
		case err := <-w.errors():
			log.Error(err, "Watching the kubelet's folder")
		case <-r.moved:
		}
	}
}

func (r *Registrar) setProblem(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.problem = err
}

// changedKubelet says whether the kubelet's socket is another than the one of
// the last registration: then there is no point in waiting out a pause.
func (r *Registrar) changedKubelet() bool {
	now, err := os.Stat(filepath.Join(r.dir, kubeletSocket))
	if err != nil {
		return false
	}
	for _, p := range r.plugins {
		if p.on != nil && !same(p.on, now) {
			return true
		}
	}
	return false
}

// same says whether two looks saw the same socket. The number of a file may be
// given to the next one, its time may not.
func same(a, b os.FileInfo) bool { return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) }

// look registers what is not registered.
func (r *Registrar) look(ctx context.Context) error {
	r.mu.Lock()
	withdrawn := make([]bool, len(r.plugins))
	for i, p := range r.plugins {
		withdrawn[i] = p.withdrawn
	}
	r.mu.Unlock()
	kubelet, err := os.Stat(filepath.Join(r.dir, kubeletSocket))
	if err != nil {
		return fmt.Errorf("the kubelet's registration socket is missing, is it running? %w", err)
	}
	var problems []error
	for i, p := range r.plugins {
		switch {
		case withdrawn[i]:
			p.drop(r.clock)
		case p.settled(kubelet, r.clock.Now()):
		default:
			if err := r.gate(ctx); err != nil {
				return err // closed for all
			}
			if err := r.register(ctx, p, kubelet); err != nil {
				problems = append(problems, fmt.Errorf("register %s: %w", p.server.resource, err))
			}
		}
	}
	return errors.Join(problems...)
}

// settled says whether the plugin is registered on that socket of the kubelet
// and listened to, or will be in a moment. A kubelet that has stopped listening
// does not begin again by itself.
func (p *plugin) settled(kubelet os.FileInfo, now time.Time) bool {
	return p.endpoint != nil && p.endpoint.there() && p.on != nil && same(p.on, kubelet) &&
		(p.endpoint.live.Load() || now.Sub(p.at) < listFor && !p.endpoint.heard.Load())
}

// register serves the plugin on a new socket and makes it known. The old one is
// closed after that, so that the kubelet always has one.
func (r *Registrar) register(ctx context.Context, p *plugin, kubelet os.FileInfo) (err error) {
	defer func() { r.metrics.registered(p.server.resource, err) }()
	e, err := newEndpoint(ctx, r.dir, p.server)
	if err != nil {
		return err
	}
	conn, err := dial(filepath.Join(r.dir, kubeletSocket))
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, registerFor)
		_, err = dp.NewRegistrationClient(conn).Register(ctx, &dp.RegisterRequest{
			Version: dp.Version, Endpoint: filepath.Base(e.path), ResourceName: p.server.resource, Options: options(),
		})
		cancel()
		err = errors.Join(err, conn.Close())
	}
	if err != nil {
		e.close(r.clock)
		return err
	}
	p.drop(r.clock)
	p.endpoint, p.on, p.at = e, kubelet, r.clock.Now()
	klog.FromContext(ctx).Info("Registered with the kubelet", "resource", p.server.resource, "socket", e.path)
	return nil
}

// drop closes the endpoint, which takes the plugin out of the kubelet.
func (p *plugin) drop(c clock.Clock) {
	if p.endpoint != nil {
		p.endpoint.close(c)
		p.endpoint, p.on = nil, nil
	}
}

func (r *Registrar) close() {
	for _, p := range r.plugins {
		p.drop(r.clock)
	}
	r.setProblem(errors.New("stopped"))
}

// watcher watches a folder that may be missing, or be replaced.
type watcher struct {
	w   *fsnotify.Watcher
	dir os.FileInfo
}

// ensure watches the folder that is at path now.
func (w *watcher) ensure(path string) error {
	now, err := os.Stat(path)
	if err != nil {
		w.close()
		return fmt.Errorf("the kubelet's device plugin folder is missing, is it running? %w", err)
	}
	if w.w != nil && os.SameFile(w.dir, now) {
		return nil
	}
	w.close()
	fresh, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch the kubelet's device plugin folder: %w", err)
	}
	if err := fresh.Add(path); err != nil {
		return errors.Join(fmt.Errorf("watch the kubelet's device plugin folder: %w", err), fresh.Close())
	}
	w.w, w.dir = fresh, now
	return nil
}

func (w *watcher) events() <-chan fsnotify.Event {
	if w.w == nil {
		return nil
	}
	return w.w.Events
}

func (w *watcher) errors() <-chan error {
	if w.w == nil {
		return nil
	}
	return w.w.Errors
}

func (w *watcher) close() {
	if w.w != nil {
		_ = w.w.Close()
		w.w = nil
	}
}
