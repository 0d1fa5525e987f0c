package kubelet

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	dp "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"k8s.io/utils/clock"
)

// endpoint is a socket on which a Server is served. The kubelet tells plugins
// apart by the socket's name, so every endpoint has one of its own: while a
// new process takes over from an old one, both are registered, and the node
// keeps its devices.
type endpoint struct {
	*Server
	path string
	grpc *grpc.Server
	stop chan struct{} // closed when streams are to end
	done chan struct{} // closed when serving has ended
	// live is set while a stream has sent its list and waits, heard once one
	// has.
	live, heard atomic.Bool
}

// socketPrefix begins the names of our sockets.
const socketPrefix = "tranche-"

// newEndpoint listens and serves: a plugin must answer before it registers.
func newEndpoint(ctx context.Context, dir string, s *Server) (*endpoint, error) {
	random := make([]byte, 6)
	if _, err := rand.Read(random); err != nil {
		return nil, err
	}
	name := socketPrefix + s.resource[strings.LastIndex(s.resource, "/")+1:] + "-" + hex.EncodeToString(random) + ".sock"
	e := &endpoint{Server: s, path: filepath.Join(dir, name), grpc: grpc.NewServer(), stop: make(chan struct{}), done: make(chan struct{})}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", e.path)
	if err != nil {
		return nil, err
	}
	dp.RegisterDevicePluginServer(e.grpc, e)
	go func() {
		defer close(e.done)
		// It ends when close stops it, or with a socket that does not work, which
		// the Registrar notices by nobody listening.
		_ = e.grpc.Serve(listener)
	}()
	return e, nil
}

// ListAndWatch sends the list of devices until the endpoint closes.
func (e *endpoint) ListAndWatch(_ *dp.Empty, stream grpc.ServerStreamingServer[dp.ListAndWatchResponse]) error {
	return e.stream(stream, e.stop, func(sent bool) {
		if sent {
			e.heard.Store(true)
		}
		e.live.Store(sent)
	})
}

// there says whether the socket is still where the kubelet would look for it.
func (e *endpoint) there() bool {
	_, err := os.Lstat(e.path)
	return err == nil
}

// inFlight bounds the wait for an answer that is being worked on.
const inFlight = 5 * time.Second

// close ends the streams, waits for answers in progress, and stops serving. It
// also removes the socket.
func (e *endpoint) close(c clock.Clock) {
	close(e.stop)
	graceful := make(chan struct{})
	go func() {
		defer close(graceful)
		e.grpc.GracefulStop()
	}()
	select {
	case <-graceful:
	case <-c.After(inFlight):
		e.grpc.Stop()
		<-graceful
	}
	<-e.done
}

// removeStale deletes sockets that an earlier process left when it was killed.
// One that answers belongs to a process that runs, as during an update.
func removeStale(ctx context.Context, dir string) error {
	sockets, err := filepath.Glob(filepath.Join(dir, socketPrefix+"*.sock"))
	if err != nil {
		return err
	}
	var problems []error
	for _, path := range sockets {
		conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", path)
		if err == nil {
			_ = conn.Close()
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			problems = append(problems, fmt.Errorf("stale socket: %w", err))
		}
	}
	return errors.Join(problems...)
}
