package gangobject

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tranche-dev/tranche/extender/metrics"
	"github.com/tranche-dev/tranche/extender/planner"
	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
)

const (
	// workers hide each other's round trips; the client's limit bounds them.
	workers = 8
	// minInterval keeps a gang whose members change one by one from being
	// written for each of them. A new phase is never kept waiting.
	minInterval = 200 * time.Millisecond
	// complainAfter is how often a write fails before an operator hears of it:
	// 200 ms doubled six times are 12 s.
	complainAfter = 6
)

// Writer writes what is reported, while Run runs.
type Writer struct {
	client   client.Client
	recorder record.EventRecorder
	metrics  *metrics.Metrics
	clock    clock.PassiveClock

	queue workqueue.TypedRateLimitingInterface[planner.GangKey]

	mu sync.Mutex
	// reports are not written yet.
	reports map[planner.GangKey]*planner.GangReport
	// written are the gangs that have members.
	written map[planner.GangKey]written
	// phases are what the gauges show.
	phases map[planner.GangKey]v1alpha1.GangPhase
}

// written is when a gang was written last, and with which phase.
type written struct {
	at    time.Time
	phase v1alpha1.GangPhase
}

// New returns a Writer whose queue fills until Run is called.
func New(c client.Client, recorder record.EventRecorder, m *metrics.Metrics, clk clock.PassiveClock) *Writer {
	return &Writer{
		client: c, recorder: recorder, metrics: m, clock: clk,
		queue:   workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[planner.GangKey](200*time.Millisecond, 30*time.Second)),
		reports: map[planner.GangKey]*planner.GangReport{}, written: map[planner.GangKey]written{}, phases: map[planner.GangKey]v1alpha1.GangPhase{},
	}
}

// Report has a gang written soon. It does not block. The report's parts must
// not be changed afterwards.
func (w *Writer) Report(report planner.GangReport) {
	w.mu.Lock()
	w.reports[report.Key] = &report
	w.gauge(&report)
	wait := w.early(&report)
	w.mu.Unlock()
	w.queue.AddAfter(report.Key, wait)
}

// early is how long a report has to wait for its turn, 0 or less if it has not.
// w.mu is held.
func (w *Writer) early(report *planner.GangReport) time.Duration {
	if last, ok := w.written[report.Key]; ok && last.phase == report.Status.Phase {
		return minInterval - w.clock.Since(last.at)
	}
	return 0
}

// gauge counts gangs by phase. w.mu is held.
func (w *Writer) gauge(report *planner.GangReport) {
	phase, before := report.Status.Phase, w.phases[report.Key]
	if !report.Keep {
		phase = ""
	}
	if phase == before {
		return
	}
	if before != "" {
		w.metrics.Gangs.WithLabelValues(string(before)).Dec()
	}
	if phase == "" {
		delete(w.phases, report.Key)
		return
	}
	w.phases[report.Key] = phase
	w.metrics.Gangs.WithLabelValues(string(phase)).Inc()
}

// Run writes until ctx ends.
func (w *Writer) Run(ctx context.Context) {
	var running sync.WaitGroup
	for range workers {
		running.Go(func() {
			for {
				key, shutdown := w.queue.Get()
				if shutdown {
					return
				}
				w.handle(ctx, key)
				w.queue.Done(key)
			}
		})
	}
	<-ctx.Done()
	w.queue.ShutDown()
	running.Wait()
}

// handle writes a gang's last report.
func (w *Writer) handle(ctx context.Context, key planner.GangKey) {
	w.mu.Lock()
	report := w.reports[key]
	if report == nil {
		w.mu.Unlock()
		return // written together with an earlier one
	}
	if wait := w.early(report); wait > 0 {
		// It came while the one before was being written.
		w.mu.Unlock()
		w.queue.AddAfter(key, wait)
		return
	}
	delete(w.reports, key)
	w.mu.Unlock()
	err := w.write(ctx, report)
	if ctx.Err() != nil {
		return
	}
	log := klog.FromContext(ctx).WithValues("gang", klog.KRef(key.Namespace, key.Name))
	switch {
	case err == nil:
		w.succeeded(key, report)
		return
	case errors.Is(err, errRaced):
		log.V(4).Info("Gang object changed meanwhile", "reason", err.Error())
	case missing(err):
		// The watcher says so to the operator.
		log.V(2).Info("Gang object not written: no CustomResourceDefinition", "reason", err.Error())
	case w.queue.NumRequeues(key) == complainAfter:
		log.Error(err, "Gang object could not be written; it is tried again until that succeeds")
	default:
		log.V(2).Info("Gang object could not be written yet", "reason", err.Error())
	}
	w.mu.Lock()
	if w.reports[key] == nil {
		w.reports[key] = report
	}
	w.mu.Unlock()
	w.queue.AddRateLimited(key)
}

// succeeded starts the time in which the gang is not written again.
func (w *Writer) succeeded(key planner.GangKey, report *planner.GangReport) {
	w.queue.Forget(key)
	w.mu.Lock()
	defer w.mu.Unlock()
	if report.Keep {
		w.written[key] = written{w.clock.Now(), report.Status.Phase}
	} else {
		delete(w.written, key)
	}
}

// errRaced is wrapped by errors that say that the object is not what it was
// when it was read.
var errRaced = errors.New("the object has changed")

// result counts a write and sorts its error.
func (w *Writer) result(verb string, err error) error {
	switch {
	case err == nil:
		w.metrics.GangWrites.WithLabelValues(verb, "ok").Inc()
		return nil
	case apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err):
		w.metrics.GangWrites.WithLabelValues(verb, "conflict").Inc()
		return fmt.Errorf("%s gang: %w: %w", verb, errRaced, err)
	default:
		w.metrics.GangWrites.WithLabelValues(verb, "failed").Inc()
		return fmt.Errorf("%s gang: %w", verb, err)
	}
}

// missing says whether err is that the API server knows no Gangs.
func missing(err error) bool { return apierrors.IsNotFound(err) && !withoutNamespace(err) }

// ending says whether err is that the namespace is gone or about to go, with
// everything in it.
func ending(err error) bool {
	return apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) || withoutNamespace(err)
}

// withoutNamespace says whether err is that the namespace does not exist.
func withoutNamespace(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	return details != nil && details.Kind == "namespaces"
}
