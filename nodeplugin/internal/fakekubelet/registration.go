package fakekubelet

import (
	"context"
	"path/filepath"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	dp "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// plugin is a device plugin that has registered.
type plugin struct {
	resource, path string
	client         dp.DevicePluginClient
	options        *dp.DevicePluginOptions
	cancel         context.CancelFunc
}

type registration struct {
	dp.UnimplementedRegistrationServer
	k *Kubelet
	s *servers
}

// Register calls the plugin back before it answers, as the kubelet does.
func (r *registration) Register(ctx context.Context, req *dp.RegisterRequest) (*dp.Empty, error) {
	if req.GetVersion() != dp.Version {
		return nil, status.Errorf(codes.InvalidArgument, "version %q", req.GetVersion())
	}
	p := &plugin{resource: req.GetResourceName(), path: filepath.Join(r.k.PluginDir, req.GetEndpoint())}
	// The default limit on messages, 4 MiB, is the kubelet's.
	conn, err := grpc.NewClient("unix://"+p.path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	p.client = dp.NewDevicePluginClient(conn)
	if p.options, err = p.client.GetDevicePluginOptions(ctx, &dp.Empty{}); err != nil {
		_ = conn.Close()
		return nil, err
	}
	r.k.mu.Lock()
	defer r.k.mu.Unlock()
	for _, o := range r.k.plugins[p.resource] {
		if o.path == p.path {
			_ = conn.Close()
			return nil, status.Errorf(codes.AlreadyExists, "device plugin already connected: %s", p.path)
		}
	}
	var stream context.Context
	stream, p.cancel = context.WithCancel(r.s.ctx)
	r.k.plugins[p.resource] = append(r.k.plugins[p.resource], p)
	r.s.done.Go(func() {
		r.k.listen(stream, p)
		_ = conn.Close()
	})
	return &dp.Empty{}, nil
}

// listen takes in the plugin's lists until it hangs up.
func (k *Kubelet) listen(ctx context.Context, p *plugin) {
	defer k.disconnect(p)
	stream, err := p.client.ListAndWatch(ctx, &dp.Empty{})
	if err != nil {
		return
	}
	for {
		list, err := stream.Recv()
		if err != nil {
			return
		}
		devices := map[string]bool{}
		for _, d := range list.GetDevices() {
			devices[d.GetID()] = d.GetHealth() == dp.Healthy
		}
		k.mu.Lock()
		k.all[p.resource] = devices
		k.mu.Unlock()
	}
}

// disconnect forgets a plugin. After the last one of a resource its devices are
// unhealthy.
func (k *Kubelet) disconnect(p *plugin) {
	p.cancel()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.plugins[p.resource] = slices.DeleteFunc(k.plugins[p.resource], func(o *plugin) bool { return o == p })
	if len(k.plugins[p.resource]) == 0 {
		for id := range k.all[p.resource] {
			k.all[p.resource][id] = false
		}
	}
}
