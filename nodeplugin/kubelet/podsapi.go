package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
	"k8s.io/utils/clock"

	"github.com/tranche-dev/tranche/nodeplugin/assign"
)

// PodsAPI asks the kubelet for its own list of pods (KEP-4188, on by default
// from Kubernetes 1.37). It has the pod that is being admitted and none that
// comes after it, which no other source can say.
type PodsAPI struct {
	conn    *grpc.ClientConn
	client  podsv1alpha1.PodsClient
	clock   clock.WithTicker
	metrics *Metrics
}

// NewPodsAPI returns a client of the kubelet's pods API; see PodsAPISocket.
func NewPodsAPI(socket string, c clock.WithTicker, m *Metrics) (*PodsAPI, error) {
	conn, err := dial(socket)
	if err != nil {
		return nil, err
	}
	return &PodsAPI{conn: conn, client: podsv1alpha1.NewPodsClient(conn), clock: c, metrics: m}, nil
}

// Close ends the connection.
func (p *PodsAPI) Close() error { return p.conn.Close() }

// Pods lists the kubelet's pods.
func (p *PodsAPI) Pods(ctx context.Context) (assign.PodList, error) {
	list := assign.PodList{FromKubelet: true}
	err := patiently(ctx, p.conn, p.clock, func(ctx context.Context) error {
		started := p.clock.Now()
		answer, err := p.client.ListPods(ctx, &podsv1alpha1.ListPodsRequest{})
		p.metrics.asked("ListPods", status.Code(err), p.clock.Since(started))
		if err != nil {
			return err
		}
		list.Pods = make([]*corev1.Pod, 0, len(answer.GetPods()))
		for _, text := range answer.GetPods() {
			pod := &corev1.Pod{}
			if err := pod.Unmarshal(text); err != nil {
				return fmt.Errorf("a pod of the kubelet's list: %w", err)
			}
			list.Pods = append(list.Pods, pod)
		}
		return nil
	})
	if err != nil {
		return assign.PodList{}, fmt.Errorf("kubelet's pods API: %w", err)
	}
	return list, nil
}

// watch reports what happens to the kubelet's pods to t until ctx ends or the
// kubelet goes away.
func (p *PodsAPI) watch(ctx context.Context, t *Tracker) error {
	stream, err := p.client.WatchPods(ctx, &podsv1alpha1.WatchPodsRequest{})
	if err != nil {
		return err
	}
	for {
		event, err := stream.Recv()
		if err != nil {
			return err
		}
		if event.GetType() == podsv1alpha1.EventType_INITIAL_SYNC_COMPLETE {
			t.connected(true)
			t.signal()
			continue
		}
		pod := &corev1.Pod{}
		if err := pod.Unmarshal(event.GetPod()); err != nil {
			return fmt.Errorf("a pod of the kubelet's events: %w", err)
		}
		// The kubelet sends DELETED when it has taken down a pod's containers,
		// also if the pod was deleted by force and is in no list any more.
		if event.GetType() == podsv1alpha1.EventType_DELETED || assign.Ended(pod) {
			t.finish(pod.UID)
		}
		t.signal()
	}
}

// Follow keeps t informed by the kubelet's events until ctx ends.
func (p *PodsAPI) Follow(ctx context.Context, t *Tracker) error {
	log := klog.FromContext(ctx)
	b := newPauses()
	for {
		began := p.clock.Now()
		err := p.watch(ctx, t)
		t.connected(false)
		t.signal() // the next list may say more
		if ctx.Err() != nil {
			return nil //nolint:nilerr // asked to stop
		}
		if p.clock.Since(began) > maxPause {
			b = newPauses()
		}
		switch code := status.Code(err); {
		case errors.Is(err, io.EOF), code == codes.Unavailable, code == codes.FailedPrecondition, code == codes.ResourceExhausted:
			log.V(2).Info("Kubelet's pod events ended; asking again", "err", err)
		default:
			log.Error(err, "Kubelet's pod events failed; asking again")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-p.clock.After(b.next()):
		}
	}
}

var _ assign.Pods = (*PodsAPI)(nil)

// unavailable says whether the kubelet has no pods API to answer with, now or
// at all: it is starting, or older than 1.37.
func unavailable(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.Unimplemented, codes.FailedPrecondition, codes.DeadlineExceeded:
		return true
	default:
		return false
	}
}
