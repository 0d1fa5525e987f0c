package kubelet

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"
	dp "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"k8s.io/utils/clock"

	"github.com/tranche-dev/tranche/nodeplugin/assign"
	"github.com/tranche-dev/tranche/nodeplugin/slice"
)

// Decider answers the kubelet's two questions.
type Decider interface {
	// Preferred says which of the available devices to take; none if unknown.
	Preferred(ctx context.Context, resource string, available, must []string, size int) []string
	// Allocate gives devices to the container that the kubelet admits and
	// returns the CDI devices that bring them into it.
	Allocate(ctx context.Context, resource string, devices []string) (cdi []string, refusal *assign.Refusal)
}

var _ Decider = (*assign.Assigner)(nil)

// Server is the device plugin of one resource. It lives as long as the process;
// the sockets on which it is served (see endpoint) come and go with the kubelet.
type Server struct {
	dp.UnimplementedDevicePluginServer
	resource string
	decider  Decider
	// log names the resource; plain, for the Decider, does not.
	log, plain logr.Logger
	clock      clock.PassiveClock
	metrics    *Metrics

	mu      sync.Mutex
	devices []slice.Device
	changed chan struct{} // closed, and replaced, at every change
	// streams counts the streams that have sent a list and wait for changes.
	streams int
	// moved receives whenever a stream has sent its first list or has ended.
	// The Registrar sets it before anything is served.
	moved chan struct{}
}

// NewServer returns the device plugin of a resource, without devices.
func NewServer(resource string, d Decider, log logr.Logger, c clock.PassiveClock, m *Metrics) *Server {
	return &Server{
		resource: resource, decider: d, log: log.WithValues("resource", resource), plain: log, clock: c, metrics: m,
		changed: make(chan struct{}),
	}
}

// Resource is what the devices are counted as.
func (s *Server) Resource() string { return s.resource }

// SetDevices replaces the list of devices and sends it to the kubelet.
func (s *Server) SetDevices(devices []slice.Device) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Equal(devices, s.devices) {
		return
	}
	s.devices = slices.Clone(devices)
	close(s.changed)
	s.changed = make(chan struct{})
}

// Connected says whether a kubelet has received our list and waits for changes.
func (s *Server) Connected() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streams > 0
}

// GetDevicePluginOptions asks for GetPreferredAllocation to be called.
func (s *Server) GetDevicePluginOptions(context.Context, *dp.Empty) (*dp.DevicePluginOptions, error) {
	return options(), nil
}

func options() *dp.DevicePluginOptions {
	return &dp.DevicePluginOptions{GetPreferredAllocationAvailable: true}
}

// stream sends the list of devices, and again whenever it changes, until the
// kubelet goes away or stop is closed. sent is told when the first list is out,
// and when the stream ends after that.
func (s *Server) stream(stream grpc.ServerStreamingServer[dp.ListAndWatchResponse], stop <-chan struct{}, sent func(bool)) error {
	first := true
	defer func() {
		if !first {
			sent(false)
			s.count(-1)
		}
	}()
	for {
		s.mu.Lock()
		devices, changed := s.devices, s.changed
		s.mu.Unlock()
		if err := stream.Send(&dp.ListAndWatchResponse{Devices: wire(devices)}); err != nil {
			return err
		}
		s.log.V(2).Info("Sent the list of devices", "devices", len(devices), "healthy", healthy(devices))
		if first {
			first = false
			sent(true)
			s.count(+1)
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		case <-stop:
			return nil
		}
	}
}

func (s *Server) count(d int) {
	s.mu.Lock()
	s.streams += d
	n := s.streams
	s.mu.Unlock()
	s.metrics.isConnected(s.resource, n > 0)
	select {
	case s.moved <- struct{}{}:
	default:
	}
}

// wire makes the message. Without topology: see package slice.
func wire(devices []slice.Device) []*dp.Device {
	list := make([]*dp.Device, 0, len(devices))
	for _, d := range devices {
		health := dp.Healthy
		if !d.Healthy {
			health = dp.Unhealthy
		}
		list = append(list, &dp.Device{ID: d.ID, Health: health})
	}
	return list
}

func healthy(devices []slice.Device) int {
	n := 0
	for _, d := range devices {
		if d.Healthy {
			n++
		}
	}
	return n
}

// GetPreferredAllocation never fails: an error would make the kubelet keep the
// devices that it has set aside (kubernetes/kubernetes#130145).
func (s *Server) GetPreferredAllocation(ctx context.Context, r *dp.PreferredAllocationRequest) (*dp.PreferredAllocationResponse, error) {
	answer := &dp.PreferredAllocationResponse{}
	for _, c := range r.GetContainerRequests() {
		ids := s.preferred(klog.NewContext(ctx, s.plain), c)
		answer.ContainerResponses = append(answer.ContainerResponses, &dp.ContainerPreferredAllocationResponse{DeviceIDs: ids})
	}
	return answer, nil
}

func (s *Server) preferred(ctx context.Context, c *dp.ContainerPreferredAllocationRequest) (ids []string) {
	started := s.clock.Now()
	defer func() {
		code := codes.OK
		if s.recovered(recover()) != nil {
			ids, code = nil, codes.Internal
		}
		s.metrics.answered(s.resource, "GetPreferredAllocation", code, s.clock.Since(started))
	}()
	return s.decider.Preferred(ctx, s.resource, c.GetAvailableDeviceIDs(), c.GetMustIncludeDeviceIDs(), int(c.GetAllocationSize()))
}

// Allocate answers with CDI devices only: environment variables could be
// overridden by the pod. A refusal is an error, whose text the kubelet puts
// into the pod's status.
func (s *Server) Allocate(ctx context.Context, r *dp.AllocateRequest) (*dp.AllocateResponse, error) {
	answer := &dp.AllocateResponse{}
	for _, c := range r.GetContainerRequests() {
		one, err := s.allocate(klog.NewContext(ctx, s.plain), c)
		if err != nil {
			return nil, err
		}
		answer.ContainerResponses = append(answer.ContainerResponses, one)
	}
	return answer, nil
}

func (s *Server) allocate(ctx context.Context, c *dp.ContainerAllocateRequest) (answer *dp.ContainerAllocateResponse, err error) {
	started := s.clock.Now()
	defer func() {
		if p := s.recovered(recover()); p != nil {
			answer, err = nil, status.Error(codes.Internal, p.Error())
		}
		s.metrics.answered(s.resource, "Allocate", status.Code(err), s.clock.Since(started))
	}()
	names, refusal := s.decider.Allocate(ctx, s.resource, c.GetDevicesIds())
	if refusal != nil {
		return nil, status.Error(codes.FailedPrecondition, refusal.Message)
	}
	answer = &dp.ContainerAllocateResponse{}
	for _, n := range names {
		answer.CdiDevices = append(answer.CdiDevices, &dp.CDIDevice{Name: n})
	}
	return answer, nil
}

// recovered turns a panic into an error that is logged and counted: the other
// pods of the node still need us.
func (s *Server) recovered(p any) error {
	if p == nil {
		return nil
	}
	err := fmt.Errorf("the node plugin has a defect: %v", p)
	s.metrics.panicked()
	s.log.Error(err, "Panic while answering the kubelet", "stack", string(debug.Stack()))
	return err
}
