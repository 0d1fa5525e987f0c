package bind

import (
	"context"
	"fmt"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

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
	// AdmissionQPS bounds the requests per second that nominate admitted pods and
	// lift their gates: two for each.
	AdmissionQPS float32
	// Run tells this process from the ones before it, so that a wake-up patch
	// always changes something: the ledger's versions begin anew.
	Run   string
	Clock clock.Clock
	// Events is the backlog of the recorder's sink; nil: it has none.
	Events *EventBacklog
}

// EffectsClients are the connections that Effects uses.
type EffectsClients struct {
	Main kubernetes.Interface
	// Admission allows at least AdmissionQPS.
	Admission kubernetes.Interface
}

// Reporter writes Gang objects. Report does not block.
type Reporter interface {
	Report(report planner.GangReport)
}

// QueueReporter writes Queue objects. ReportQueue does not block.
type QueueReporter interface {
	ReportQueue(report planner.QueueReport)
}

// Effects does in the background what the planner asks for. Its methods only
// put things into queues: of wake-ups in the order asked, of all else the last
// one per pod.
type Effects struct {
	clients  EffectsClients
	recorder record.EventRecorder
	reporter Reporter
	queues   QueueReporter
	metrics  *metrics.Metrics
	opts     EffectsOptions

	wakes      workqueue.TypedRateLimitingInterface[wake]
	warnings   workqueue.TypedRateLimitingInterface[ledger.Pod]
	doubts     workqueue.TypedRateLimitingInterface[ledger.Pod]
	admissions workqueue.TypedRateLimitingInterface[ledger.Pod]
	evictions  workqueue.TypedRateLimitingInterface[ledger.Pod]

	mu    sync.Mutex
	texts map[ledger.Pod]warning
	// intents and ends are what the planner wants of the pods in admissions
	// and evictions.
	intents map[ledger.Pod]*intent
	ends    map[ledger.Pod]*end
	// evicted are the last pods whose eviction was told of.
	evicted *lru.Cache[types.UID, struct{}]
}

var _ planner.Effects = (*Effects)(nil)

type warning struct{ reason, message string }

// NewEffects returns Effects whose queues fill until Run is called.
func NewEffects(clients EffectsClients, recorder record.EventRecorder, reporter Reporter, queues QueueReporter, m *metrics.Metrics, opts EffectsOptions) (*Effects, error) {
	evicted, err := lru.New[types.UID, struct{}](mostEvicted)
	if err != nil {
		return nil, fmt.Errorf("evicted pods: %w", err)
	}
	return &Effects{
		clients: clients, recorder: recorder, reporter: reporter, queues: queues, metrics: m, opts: opts,
		wakes: newQueue[wake](), warnings: newQueue[ledger.Pod](), doubts: newQueue[ledger.Pod](),
		admissions: newQueue[ledger.Pod](), evictions: newQueue[ledger.Pod](),
		texts: map[ledger.Pod]warning{}, intents: map[ledger.Pod]*intent{}, ends: map[ledger.Pod]*end{}, evicted: evicted,
	}, nil
}

func newQueue[T comparable]() workqueue.TypedRateLimitingInterface[T] {
	return workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[T](200*time.Millisecond, 30*time.Second))
}

// Warn implements planner.Effects.
func (e *Effects) Warn(pod ledger.Pod, reason, message string) {
	e.mu.Lock()
	e.texts[pod] = warning{reason, message}
	e.mu.Unlock()
	e.warnings.Add(pod)
}

// Verify implements planner.Effects.
func (e *Effects) Verify(pod ledger.Pod) { e.doubts.Add(pod) }

// Report implements planner.Effects.
func (e *Effects) Report(report planner.GangReport) { e.reporter.Report(report) }

// ReportQueue implements planner.Effects.
func (e *Effects) ReportQueue(report planner.QueueReport) { e.queues.ReportQueue(report) }

// truth hears what became of pods in doubt, and who may not be evicted now.
type truth interface {
	Truth(ctx context.Context, uid types.UID, pod *view.Pod)
	EvictionRefused(ctx context.Context, why string, uids ...types.UID)
}

// newLimiter allows qps a second, and two seconds' worth at once.
func newLimiter(qps float32) flowcontrol.RateLimiter {
	return flowcontrol.NewTokenBucketRateLimiter(qps, max(1, int(2*qps)))
}

// How many calls of a kind may be on their way at once: enough that the rate
// limit, not a round trip, is what bounds them. 32 calls of 60 ms each are 500
// a second, on an API server that is slow because a whole gang is admitted.
const (
	workers          = 4
	admissionWorkers = 32
)

// Run works until ctx ends.
func (e *Effects) Run(ctx context.Context, t truth) {
	var running sync.WaitGroup
	retries, events, admissions := newLimiter(e.opts.RetryQPS), newLimiter(e.opts.EventQPS), newLimiter(e.opts.AdmissionQPS)
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
		running.Go(func() { work(ctx, e.evictions, func(pod ledger.Pod) error { return e.evict(ctx, pod, t) }) })
	}
	for range admissionWorkers {
		running.Go(func() {
			work(ctx, e.admissions, func(pod ledger.Pod) error { return e.fulfil(ctx, pod, admissions) })
		})
	}
	running.Go(func() {
		work(ctx, e.warnings, func(pod ledger.Pod) error {
			if events.Wait(ctx) == nil {
				e.opts.Events.add(ctx, e.opts.Clock)
				e.warn(pod)
			}
			return nil
		})
	})
	<-ctx.Done()
	e.wakes.ShutDown()
	e.warnings.ShutDown()
	e.doubts.ShutDown()
	e.admissions.ShutDown()
	e.evictions.ShutDown()
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

// callTimeout bounds one call in the background.
const callTimeout = 10 * time.Second

// verify reads the pod and tells the planner.
func (e *Effects) verify(ctx context.Context, pod ledger.Pod, t truth) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	found, err := readPod(ctx, e.clients.Main, target(pod))
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

// gone says whether a call that named the pod's UID failed with err because the
// pod is gone. A conflict may also be that others change the pod all the time,
// and an invalid object an admission policy's refusal, so then it is read.
func (e *Effects) gone(ctx context.Context, pod ledger.Pod, err error) bool {
	if apierrors.IsNotFound(err) {
		return true
	}
	if !apierrors.IsConflict(err) && !apierrors.IsInvalid(err) {
		return false
	}
	found, err := readPod(ctx, e.clients.Main, target(pod))
	return err == nil && found == nil
}

func target(pod ledger.Pod) planner.Target {
	return planner.Target{UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name}
}
