package kubelet

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/utils/clock"

	"github.com/tranche-dev/tranche/nodeplugin/assign"
)

// PodResources asks the kubelet which devices it has given out, and to whom.
type PodResources struct {
	conn    *grpc.ClientConn
	client  podresources.PodResourcesListerClient
	clock   clock.WithTicker
	metrics *Metrics
}

// NewPodResources returns a client of the kubelet's pod-resources API.
func NewPodResources(socket string, c clock.WithTicker, m *Metrics) (*PodResources, error) {
	conn, err := dial(socket)
	if err != nil {
		return nil, err
	}
	return &PodResources{conn: conn, client: podresources.NewPodResourcesListerClient(conn), clock: c, metrics: m}, nil
}

// Close ends the connection.
func (p *PodResources) Close() error { return p.conn.Close() }

var _ assign.Devices = (*PodResources)(nil)

// Devices returns the devices of one pod, by container and resource.
func (p *PodResources) Devices(ctx context.Context, namespace, name string) (map[string]map[string][]string, error) {
	var answer *podresources.GetPodResourcesResponse
	err := patiently(ctx, p.conn, p.clock, func(ctx context.Context) (err error) {
		started := p.clock.Now()
		answer, err = p.client.Get(ctx, &podresources.GetPodResourcesRequest{PodNamespace: namespace, PodName: name})
		p.metrics.asked("Get", status.Code(err), p.clock.Since(started))
		return err
	})
	if err != nil {
		if unknownPod(err) {
			err = fmt.Errorf("%w: %w", assign.ErrPodUnknown, err)
		}
		return nil, fmt.Errorf("kubelet's pod-resources API: %w", err)
	}
	// The kubelet sends one entry per device, in any order.
	devices := map[string]map[string][]string{}
	for _, c := range answer.GetPodResources().GetContainers() {
		for _, d := range c.GetDevices() {
			if devices[c.GetName()] == nil {
				devices[c.GetName()] = map[string][]string{}
			}
			ids := append(devices[c.GetName()][d.GetResourceName()], d.GetDeviceIds()...)
			devices[c.GetName()][d.GetResourceName()] = ids
		}
	}
	return devices, nil
}

// unknownPod recognises the kubelet's answer about a pod that it does not have.
// Kubernetes 1.37 gives it no code of its own
// (pkg/kubelet/apis/podresources/server_v1.go), so the text must do as well.
func unknownPod(err error) bool {
	switch status.Code(err) {
	case codes.NotFound:
		return true
	case codes.Unknown:
		return strings.HasSuffix(status.Convert(err).Message(), "not found")
	default:
		return false
	}
}

// Offered returns the healthy devices that device plugins offer of a resource,
// sorted. It has no side effects in the kubelet.
func (p *PodResources) Offered(ctx context.Context, resource string) ([]string, error) {
	var answer *podresources.AllocatableResourcesResponse
	err := patiently(ctx, p.conn, p.clock, func(ctx context.Context) (err error) {
		started := p.clock.Now()
		answer, err = p.client.GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
		p.metrics.asked("GetAllocatableResources", status.Code(err), p.clock.Since(started))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("kubelet's pod-resources API: %w", err)
	}
	ids := map[string]bool{}
	for _, d := range answer.GetDevices() {
		if d.GetResourceName() == resource {
			for _, id := range d.GetDeviceIds() {
				ids[id] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(ids)), nil
}
