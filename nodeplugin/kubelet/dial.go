package kubelet

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"k8s.io/utils/clock"
)

// maxMessage is far above gRPC's default of 4 MiB, which the pods of a large
// node exceed: 500 pods of 64 KiB are 32 MiB.
const maxMessage = 256 << 20

// dial returns a connection to a socket of the kubelet. It connects when first
// used and again, quickly, after the kubelet was away.
func dial(socket string) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("unix://"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()), // a local socket that only root may open
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: time.Second,
		}))
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", socket, err)
	}
	return conn, nil
}

const (
	// askFor bounds a question asked while the kubelet waits for us.
	askFor = 2 * time.Second
	// limitPause lets the kubelet's limit of 100 questions a second recover.
	limitPause = 12 * time.Millisecond
)

// reconnectFor is how long a question waits for a connection that has to be made
// anew. A kubelet that asks us something is there; it is our connection to its
// other sockets that may still be waiting to be tried again after a restart.
const reconnectFor = 300 * time.Millisecond

// patiently calls ask until it gets an answer that is not "too many requests".
// It tries once more, at once, where the connection had been lost.
func patiently(ctx context.Context, conn *grpc.ClientConn, c clock.Clock, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	reconnected := false
	for {
		err := ask(ctx)
		switch status.Code(err) {
		case codes.ResourceExhausted:
			select {
			case <-ctx.Done():
				return err
			case <-c.After(limitPause):
			}
		case codes.Unavailable:
			if reconnected || !reconnect(ctx, conn) {
				return err
			}
			reconnected = true
		default:
			return err
		}
	}
}

// reconnect says whether there is a connection now.
func reconnect(ctx context.Context, conn *grpc.ClientConn) bool {
	if path := strings.TrimPrefix(conn.Target(), "unix://"); !exists(path) {
		return false // an older kubelet has no such socket at all
	}
	ctx, cancel := context.WithTimeout(ctx, reconnectFor)
	defer cancel()
	conn.ResetConnectBackoff()
	conn.Connect()
	for state := conn.GetState(); state != connectivity.Ready; state = conn.GetState() {
		if !conn.WaitForStateChange(ctx, state) {
			return false
		}
	}
	return true
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
