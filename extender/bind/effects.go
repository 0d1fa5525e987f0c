package bind

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/tranche-dev/tranche/extender/metrics"
	"github.com/tranche-dev/tranche/extender/planner"
	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
)

// EffectsOptions bound what is done in the background.
type EffectsOptions struct {
	Resources contract.Resources
	// RetryQPS and EventQPS bound wake-up patches and events per second.
	RetryQPS, EventQPS float32
	// Run tells this process from the ones before it, so that a wake-up patch
	// always changes something: the ledger's versions begin anew.
	Run string
}

// Effects does in the background what the planner asks for. Its methods only
// put things into queues: of wake-ups in the order asked, of events the last
// one per pod.
type Effects struct {
	client   kubernetes.Interface
	recorder record.EventRecorder
	metrics  *metrics.Metrics
	opts     EffectsOptions

	wakes    workqueue.TypedRateLimitingInterface[wake]
	warnings workqueue.TypedRateLimitingInterface[ledger.Pod]
	doubts   workqueue.TypedRateLimitingInterface[ledger.Pod]

	mu    sync.Mutex
	texts map[ledger.Pod]warning
}

var _ planner.Effects = (*Effects)(nil)

type wake struct {
	pod     ledger.Pod
	version uint64
}

type warning struct{ reason, message string }

// NewEffects returns Effects whose queues fill until Run is called.
func NewEffects(client kubernetes.Interface, recorder record.EventRecorder, m *metrics.Metrics, opts EffectsOptions) *Effects {
	return &Effects{
		client: client, recorder: recorder, metrics: m, opts: opts,
		wakes: newQueue[wake](), warnings: newQueue[ledger.Pod](), doubts: newQueue[ledger.Pod](),
		texts: map[ledger.Pod]warning{},
	}
}

func newQueue[T comparable]() workqueue.TypedRateLimitingInterface[T] {
	return workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[T](200*time.Millisecond, 30*time.Second))
}

// Wake implements planner.Effects.
func (e *Effects) Wake(pod ledger.Pod, version uint64) { e.wakes.Add(wake{pod, version}) }

// Warn implements planner.Effects.
func (e *Effects) Warn(pod ledger.Pod, reason, message string) {
	e.mu.Lock()
	e.texts[pod] = warning{reason, message}
	e.mu.Unlock()
	e.warnings.Add(pod)
}

// Verify implements planner.Effects.
func (e *Effects) Verify(pod ledger.Pod) { e.doubts.Add(pod) }

// truth hears what became of pods in doubt.
type truth interface {
	Truth(ctx context.Context, uid types.UID, pod *view.Pod)
}

// newLimiter allows qps a second, and two seconds' worth at once.
func newLimiter(qps float32) flowcontrol.RateLimiter {
	return flowcontrol.NewTokenBucketRateLimiter(qps, max(1, int(2*qps)))
}

// workers is how many calls of a kind may be on their way at once: enough that
// the rate limit, not a round trip, is what bounds them.
const workers = 4

// Run works until ctx ends.
func (e *Effects) Run(ctx context.Context, t truth) {
	var running sync.WaitGroup
	retries, events := newLimiter(e.opts.RetryQPS), newLimiter(e.opts.EventQPS)
	for range workers {
		running.Go(func() {
			work(ctx, e.wakes, func(w wake) error {
				if retries.Wait(ctx) == nil {
					return e.wake(ctx, w)
				}
				return nil // ctx has ended
			})
		})
		running.Go(func() { work(ctx, e.doubts, func(pod ledger.Pod) error { return e.verify(ctx, pod, t) }) })
	}
	running.Go(func() {
		work(ctx, e.warnings, func(pod ledger.Pod) error {
			if events.Wait(ctx) == nil {
				e.warn(pod)
			}
			return nil
		})
	})
	<-ctx.Done()
	e.wakes.ShutDown()
	e.warnings.ShutDown()
	e.doubts.ShutDown()
	running.Wait()
}

// work handles a queue's items until it is shut down; failed ones come back
// later.
func work[T comparable](ctx context.Context, queue workqueue.TypedRateLimitingInterface[T], handle func(T) error) {
	for {
		item, shutdown := queue.Get()
		if shutdown {
			return
		}
		if err := handle(item); err != nil && ctx.Err() == nil {
			queue.AddRateLimited(item)
		} else {
			queue.Forget(item)
		}
		queue.Done(item)
	}
}

// mostWakes is how often one wake-up patch is tried; the planner asks again
// after a while.
const mostWakes = 5

// wake changes an annotation of the pod, which makes the scheduler try it.
func (e *Effects) wake(ctx context.Context, w wake) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid":         w.pod.UID, // not another pod of that name
		"annotations": map[string]string{contract.RetryAnnotation: fmt.Sprintf("%d-%s", w.version, e.opts.Run)},
	}})
	if err == nil {
		_, err = e.client.CoreV1().Pods(w.pod.Namespace).Patch(ctx, w.pod.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	log := klog.FromContext(ctx)
	switch {
	case err == nil:
		e.metrics.Retries.WithLabelValues("ok").Inc()
		return nil
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsInvalid(err):
		e.metrics.Retries.WithLabelValues("gone").Inc()
		return nil
	case e.wakes.NumRequeues(w) >= mostWakes:
		e.metrics.Retries.WithLabelValues("failed").Inc()
		log.Error(err, "Waiting pod could not be patched", "pod", klog.KRef(w.pod.Namespace, w.pod.Name))
		return nil
	default:
		return err
	}
}

func (e *Effects) warn(pod ledger.Pod) {
	e.mu.Lock()
	text, ok := e.texts[pod]
	delete(e.texts, pod)
	e.mu.Unlock()
	if !ok {
		return
	}
	ref := &corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
	e.recorder.Event(ref, corev1.EventTypeWarning, text.reason, text.message)
}

// verify reads the pod and tells the planner.
func (e *Effects) verify(ctx context.Context, pod ledger.Pod, t truth) error {
	ctx, cancel := context.WithTimeout(ctx, verifyTimeout)
	defer cancel()
	found, err := readPod(ctx, e.client, planner.Target{UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name})
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Pod in doubt could not be read", "pod", klog.KRef(pod.Namespace, pod.Name), "reason", err.Error())
		return err
	}
	var v *view.Pod
	if found != nil {
		v = view.PodOf(found, e.opts.Resources)
	}
	t.Truth(ctx, pod.UID, v)
	return nil
}

// verifyTimeout bounds one read of a pod in doubt.
const verifyTimeout = 10 * time.Second
