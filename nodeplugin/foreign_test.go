package nodeplugin_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/tranche-dev/tranche/nodeplugin/kubelet"
)

// foreign is NVIDIA's device plugin, as far as the kubelet can tell.
type foreign struct {
	pluginapi.UnimplementedDevicePluginServer
	stop chan struct{}
}

func (*foreign) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

func (f *foreign) ListAndWatch(_ *pluginapi.Empty, s grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	if err := s.Send(&pluginapi.ListAndWatchResponse{Devices: []*pluginapi.Device{{ID: string(gpu(0)), Health: pluginapi.Healthy}}}); err != nil {
		return err
	}
	select {
	case <-f.stop:
	case <-s.Context().Done():
	}
	return nil
}

// startForeign registers another plugin for whole GPUs and returns what ends it.
func (n *node) startForeign() (stop func()) {
	n.t.Helper()
	path := filepath.Join(n.kubelet.PluginDir, "nvidia-gpu.sock")
	l, err := (&net.ListenConfig{}).Listen(n.t.Context(), "unix", path)
	if err != nil {
		n.t.Fatal(err)
	}
	srv, f := grpc.NewServer(), &foreign{stop: make(chan struct{})}
	pluginapi.RegisterDevicePluginServer(srv, f)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(l)
	}()
	conn, err := grpc.NewClient("unix://"+filepath.Join(n.kubelet.PluginDir, "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		n.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := pluginapi.NewRegistrationClient(conn).Register(n.t.Context(), &pluginapi.RegisterRequest{
		Version: pluginapi.Version, Endpoint: "nvidia-gpu.sock", ResourceName: whole,
	}); err != nil {
		n.t.Fatal(err)
	}
	n.eventually(func() bool { h, _ := n.kubelet.Healthy(whole); return h == 1 }, says("the other plugin is heard"))
	return func() {
		close(f.stop)
		srv.Stop()
		<-done
	}
}

func TestBesideAnotherPluginWeDoNotStart(t *testing.T) {
	n := newNode(t, "A100-80GB", "A30-24GB")
	n.startKubelet()
	stop := n.startForeign()
	n.start()
	err := <-n.ended
	n.cancel()
	n.cancel = nil
	var foreign *kubelet.ForeignError
	if !errors.As(err, &foreign) || !strings.Contains(err.Error(), "nvidia.com/gpu.deploy.device-plugin=false") {
		t.Errorf("Run: %v", err)
	}
	events, err := n.client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(events.Items) != 1 || events.Items[0].InvolvedObject.Name != nodeName || events.Items[0].Reason != "ForeignDevicePlugin" {
		t.Errorf("events: %+v %v", events.Items, err)
	}
	if _, all := n.kubelet.Healthy(share); all != 0 {
		t.Errorf("%d shares are offered", all)
	}
	stop()
	n.eventually(func() bool { return n.kubelet.Plugins(whole) == 0 }, says("the other plugin is gone"))
	n.start()
	n.ready()
	n.healthyAre(0, 1)
}

func TestAnotherPluginThatComesLaterStopsNewPodsUntilItGoes(t *testing.T) {
	n := newNode(t, "A100-80GB", "A30-24GB").up()
	p := n.admit(n.simple("p", 0, 50))
	stop := n.startForeign()
	n.eventually(func() bool {
		shares, _ := n.kubelet.Healthy(share)
		return shares == 0 && strings.Contains(n.reason(0), "another device plugin") && strings.Contains(n.reason(1), "another device plugin")
	}, says("no GPU takes pods"))
	if err := n.plugin.Ready(); err == nil || !strings.Contains(err.Error(), "another device plugin") {
		t.Errorf("Ready: %v", err)
	}
	stop()
	n.eventually(func() bool { return n.plugin.Ready() == nil }, func() string { return fmt.Sprint(n.plugin.Ready()) })
	n.healthyAre(0, 1)
	if diff := cmp.Diff(on{gpu(0): 50}, n.on(p, "main", share)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
