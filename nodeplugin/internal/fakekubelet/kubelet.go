// Package fakekubelet plays a kubelet for tests: real gRPC over real sockets,
// and the device manager's way of choosing devices as it is in Kubernetes
// 1.37.2 (pkg/kubelet/cm/devicemanager/manager.go): devices of init containers
// are reused first, then the plugin is asked what it prefers, and what is
// missing is taken at random. Pods are admitted one after the other. The pods
// and pod-resources APIs answer a hundred questions a second in bursts of ten.
//
// What a kubelet keeps over a restart, its checkpoint of devices and, from the
// API server, its pods, the fake keeps too.
package fakekubelet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	dp "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	pods "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

// Kubelet is a fake kubelet. Its methods are safe for concurrent use.
type Kubelet struct {
	// Root and PluginDir are its folders.
	Root, PluginDir string
	// NoPodsAPI leaves out the pods API, as kubelets before 1.37 do.
	NoPodsAPI bool

	// admission is held while a pod is admitted.
	admission sync.Mutex

	mu sync.Mutex
	// pods are those that the kubelet knows, as the API server has them;
	// statuses what it has found out itself, which restarts forget.
	pods     map[types.UID]*corev1.Pod
	statuses map[types.UID]*corev1.PodStatus
	order    []types.UID
	// devices is the checkpoint: pod, container, resource.
	devices map[types.UID]map[string]map[string]allocation
	// allocated are the devices in use by resource.
	allocated map[string]map[string]bool
	// plugins are registered now; all are the devices that were listed.
	plugins  map[string][]*plugin
	all      map[string]map[string]bool // to whether healthy
	ready    bool                       // all sources of pods have been heard
	watchers map[chan *pods.WatchPodsEvent]bool
	lists    int // calls of pod-resources List
	reuse    map[types.UID]map[string]map[string]bool

	running *servers
}

// allocation is what one container got of one resource.
type allocation struct {
	ids    []string
	answer *dp.ContainerAllocateResponse
}

type servers struct {
	grpc   []*grpc.Server
	done   sync.WaitGroup
	cancel context.CancelFunc
	ctx    context.Context //nolint:containedctx // the life of the servers, not of a call
}

// New returns a kubelet with its folders below root; it does not run yet.
func New(root string) *Kubelet {
	return &Kubelet{
		Root: root, PluginDir: filepath.Join(root, "device-plugins"),
		pods: map[types.UID]*corev1.Pod{}, statuses: map[types.UID]*corev1.PodStatus{},
		devices: map[types.UID]map[string]map[string]allocation{}, allocated: map[string]map[string]bool{},
	}
}

// Start runs the kubelet. As the real one it first deletes all sockets of
// device plugins. Sources are ready unless SetReady says otherwise.
// It runs until Stop, whatever becomes of ctx.
func (k *Kubelet) Start(ctx context.Context) error {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s := &servers{cancel: cancel, ctx: ctx}
	k.mu.Lock()
	k.running, k.ready = s, true
	k.statuses, k.reuse = map[types.UID]*corev1.PodStatus{}, map[types.UID]map[string]map[string]bool{}
	k.plugins, k.all, k.watchers = map[string][]*plugin{}, map[string]map[string]bool{}, map[chan *pods.WatchPodsEvent]bool{}
	k.regenerate()
	k.mu.Unlock()
	if err := os.MkdirAll(k.PluginDir, 0o750); err != nil {
		return err
	}
	old, err := filepath.Glob(filepath.Join(k.PluginDir, "*.sock"))
	if err != nil {
		return err
	}
	for _, path := range old {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	limited := func() grpc.ServerOption {
		limiter := rate.NewLimiter(100, 10)
		return grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
			if !limiter.Allow() {
				return nil, status.Error(codes.ResourceExhausted, "rejected by rate limit")
			}
			return h(ctx, req)
		})
	}
	if err := k.serve(s, filepath.Join(k.PluginDir, "kubelet.sock"), grpc.NewServer(), func(g *grpc.Server) {
		dp.RegisterRegistrationServer(g, &registration{k: k, s: s})
	}); err != nil {
		return err
	}
	if err := k.serve(s, filepath.Join(k.Root, "pod-resources", "kubelet.sock"), grpc.NewServer(limited()), func(g *grpc.Server) {
		podresources.RegisterPodResourcesListerServer(g, &resourcesServer{k: k})
	}); err != nil {
		return err
	}
	if k.NoPodsAPI {
		return nil
	}
	return k.serve(s, filepath.Join(k.Root, "pods-api", "pods-api.sock"), grpc.NewServer(limited()), func(g *grpc.Server) {
		pods.RegisterPodsServer(g, &podsServer{k: k, s: s})
	})
}

func (k *Kubelet) serve(s *servers, path string, g *grpc.Server, register func(*grpc.Server)) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	_ = os.Remove(path)
	l, err := (&net.ListenConfig{}).Listen(s.ctx, "unix", path)
	if err != nil {
		return err
	}
	// A killed kubelet leaves its sockets behind.
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	register(g)
	s.grpc = append(s.grpc, g)
	s.done.Go(func() { _ = g.Serve(l) })
	return nil
}

// Stop ends the kubelet at once, as kill -9 does: sockets stay, nobody is told.
func (k *Kubelet) Stop() {
	k.mu.Lock()
	s := k.running
	k.running = nil
	k.mu.Unlock()
	if s == nil {
		return
	}
	s.cancel()
	for _, g := range s.grpc {
		g.Stop()
	}
	s.done.Wait()
}

// SetReady says whether all sources of pods have been heard. Until then the
// pods API does not answer.
func (k *Kubelet) SetReady(ready bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ready = ready
}

// Lists returns how often pod-resources List was called.
func (k *Kubelet) Lists() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.lists
}

// ForgetCheckpoint drops the kubelet's record of a pod's devices, as when it
// was killed after the plugin had answered and before it wrote that down.
func (k *Kubelet) ForgetCheckpoint(uid types.UID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.devices, uid)
	k.regenerate()
}

// DropInFlight makes the kubelet offer the devices of a pod again although it
// has recorded them: kubernetes/kubernetes#137534.
func (k *Kubelet) DropInFlight(uid types.UID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, resources := range k.devices[uid] {
		for resource, a := range resources {
			for _, id := range a.ids {
				delete(k.allocated[resource], id)
			}
		}
	}
}

// Devices returns what a container holds of a resource, in no order, and the
// CDI devices it was given.
func (k *Kubelet) Devices(uid types.UID, container, resource string) (ids, cdi []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	a := k.devices[uid][container][resource]
	for _, d := range a.answer.GetCdiDevices() {
		cdi = append(cdi, d.GetName())
	}
	return a.ids, cdi
}

// Healthy counts the healthy devices of a resource, and all.
func (k *Kubelet) Healthy(resource string) (healthy, all int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, ok := range k.all[resource] {
		if ok {
			healthy++
		}
	}
	return healthy, len(k.all[resource])
}

// Plugins counts the plugins that are registered for a resource.
func (k *Kubelet) Plugins(resource string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.plugins[resource])
}

// CloseStreams makes the kubelet hang up on all plugins of a resource, as after
// an error that it does not explain.
func (k *Kubelet) CloseStreams(resource string) {
	k.mu.Lock()
	list := append([]*plugin(nil), k.plugins[resource]...)
	k.mu.Unlock()
	for _, p := range list {
		p.cancel()
	}
}

// regenerate computes which devices are in use; the caller holds k.mu.
func (k *Kubelet) regenerate() {
	k.allocated = map[string]map[string]bool{}
	for _, containers := range k.devices {
		for _, resources := range containers {
			for resource, a := range resources {
				if k.allocated[resource] == nil {
					k.allocated[resource] = map[string]bool{}
				}
				for _, id := range a.ids {
					k.allocated[resource][id] = true
				}
			}
		}
	}
}

func (k *Kubelet) errNotRunning() error {
	return fmt.Errorf("fake kubelet in %s is not running", k.Root)
}
