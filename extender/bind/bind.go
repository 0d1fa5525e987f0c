package bind

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/tranche-dev/tranche/extender/metrics"
	"github.com/tranche-dev/tranche/extender/planner"
	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/contract"
)

// Binder binds pods to nodes together with their plans.
type Binder struct {
	client  kubernetes.Interface
	res     contract.Resources
	planner *planner.Planner
	metrics *metrics.Metrics
	timeout time.Duration
	// posting bounds how many Bindings are on their way at once.
	posting chan struct{}
}

// mostPosts is how many Bindings are on their way at once. When a gang is whole,
// all of its members go on at the same moment, and an API server that is asked
// for hundreds of writes at once answers none of them in time.
const mostPosts = 64

// New returns a Binder. timeout bounds each call to the API server; a bind
// takes at most two of them one after the other.
func New(client kubernetes.Interface, res contract.Resources, p *planner.Planner, m *metrics.Metrics, timeout time.Duration) *Binder {
	return &Binder{client: client, res: res, planner: p, metrics: m, timeout: timeout, posting: make(chan struct{}, mostPosts)}
}

// Bind binds t's pod to t's node. Bound there already is a success. The error
// says what is wrong and what to do.
func (b *Binder) Bind(ctx context.Context, t planner.Target) error {
	log := klog.FromContext(ctx).WithValues("pod", klog.KRef(t.Namespace, t.Name), "node", t.Node)
	err := b.bind(klog.NewContext(ctx, log), t)
	if err != nil {
		b.metrics.BindFailures.WithLabelValues(label(err)).Inc()
		log.V(2).Info("Not bound", "reason", err.Error())
		return fmt.Errorf("bind pod %s/%s to node %s: %w", t.Namespace, t.Name, t.Node, err)
	}
	return nil
}

func (b *Binder) bind(ctx context.Context, t planner.Target) error {
	// 1. Charge the pod.
	reservation, err := b.reserve(ctx, t)
	if err != nil {
		return err
	}
	log := klog.FromContext(ctx).V(2)
	if reservation.Done {
		log.Info("Bound already")
		return nil
	}
	// 2. Write node and plan in one transaction.
	err = b.post(ctx, t, reservation.Plan)
	// 3. Make the ledger follow what came of it.
	if err == nil {
		b.planner.Bound(ctx, t)
		log.Info("Bound", "planned", reservation.Plan != nil)
		return nil
	}
	return b.settle(ctx, t, err)
}

// reserve asks the planner; a pod that it does not know is read.
func (b *Binder) reserve(ctx context.Context, t planner.Target) (planner.Reservation, error) {
	r, err := b.planner.Reserve(ctx, t, nil)
	if !errors.Is(err, planner.ErrUnknownPod) {
		return r, err
	}
	pod, err := b.read(ctx, t)
	switch {
	case err != nil:
		return planner.Reservation{}, &failure{"read_failed", "the pod could not be read; it will be tried again", err}
	case pod == nil:
		return planner.Reservation{}, errGone
	case pod.Spec.NodeName == "":
	case pod.Spec.NodeName != t.Node:
		return planner.Reservation{}, planner.ErrBoundElsewhere
	default:
		b.planner.Truth(ctx, t.UID, view.PodOf(pod, b.res))
		return planner.Reservation{Done: true}, nil
	}
	v := view.PodOf(pod, b.res)
	if v == nil {
		return planner.Reservation{}, errNoGPU
	}
	return b.planner.Reserve(ctx, t, v)
}

// post creates the Binding. The UID keeps it from a pod of the same name that
// was created meanwhile.
func (b *Binder) post(ctx context.Context, t planner.Target, plan *contract.Plan) error {
	binding := &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: t.Namespace, Name: t.Name, UID: t.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: t.Node},
	}
	if plan != nil {
		text, err := plan.Format()
		if err != nil {
			// Nothing was sent, so this is as certain as a refusal.
			return apierrors.NewInternalError(err)
		}
		binding.Annotations = map[string]string{contract.PlanAnnotation: text}
	}
	select {
	case b.posting <- struct{}{}:
		defer func() { <-b.posting }()
	case <-b.planner.Stopped():
		return apierrors.NewInternalError(planner.ErrStopped) // nothing was sent
	}
	ctx, cancel := b.detach(ctx)
	defer cancel()
	return b.client.CoreV1().Pods(t.Namespace).Bind(ctx, binding, metav1.CreateOptions{})
}

// read returns the pod with the target's UID, nil if it is gone. The answer is
// not from any cache.
func (b *Binder) read(ctx context.Context, t planner.Target) (*corev1.Pod, error) {
	ctx, cancel := b.detach(ctx)
	defer cancel()
	return readPod(ctx, b.client, t)
}

// detach makes a call independent of the scheduler's patience, since a call
// that is broken off half-way leaves everybody in doubt. It ends with the
// planner, for a replica that lost its lease must not write.
func (b *Binder) detach(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.timeout)
	go func() {
		select {
		case <-b.planner.Stopped():
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// settle finds out what became of a Binding that failed with cause.
func (b *Binder) settle(ctx context.Context, t planner.Target, cause error) error {
	kind := classify(cause)
	if kind == certain {
		b.planner.Abort(ctx, t)
		return explain(cause)
	}
	pod, err := b.read(ctx, t)
	switch {
	case err != nil:
		b.planner.Unknown(t)
		return &failure{"unknown", "it is not known whether the pod was bound, and reading it failed as well; it keeps its GPUs until that is known", errors.Join(cause, err)}
	case pod == nil:
		b.planner.Truth(ctx, t.UID, nil)
		return errGone
	case pod.Spec.NodeName == t.Node:
		// The plan on the pod counts, even if it is not the one just sent.
		b.planner.Truth(ctx, t.UID, view.PodOf(pod, b.res))
		klog.FromContext(ctx).V(2).Info("Bound, though the call failed", "failure", cause.Error())
		return nil
	case pod.Spec.NodeName != "":
		b.planner.Truth(ctx, t.UID, view.PodOf(pod, b.res))
		return planner.ErrBoundElsewhere
	case kind == conflict:
		b.planner.Abort(ctx, t)
		return explain(cause)
	default:
		b.planner.Truth(ctx, t.UID, view.PodOf(pod, b.res))
		return explain(cause)
	}
}

func readPod(ctx context.Context, client kubernetes.Interface, t planner.Target) (*corev1.Pod, error) {
	pod, err := client.CoreV1().Pods(t.Namespace).Get(ctx, t.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // gone is an answer, not an error
	case err != nil:
		return nil, fmt.Errorf("read pod: %w", err)
	case pod.UID != t.UID:
		return nil, nil //nolint:nilnil // its successor is another pod
	}
	return pod, nil
}
