package queueobject

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tranche-dev/tranche/extender/planner"
	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
)

const (
	// ClientQPS and ClientBurst are the limit that the client of a Writer
	// should have: urgent writes and numbers together.
	ClientQPS   = 100
	ClientBurst = 200

	// workers hide each other's round trips; the client's limit bounds them.
	workers = 8
	// numbersInterval is between two writes of a queue that change only numbers.
	numbersInterval = time.Second
	// numbersQPS bounds the writes of numbers of all queues together: of 1,000
	// busy queues each is written every 40 s, of 25 every second.
	numbersQPS   = 25
	numbersBurst = 50
	// urgentInterval is between two urgent writes of one queue: the first is
	// made at once, but one that opens and closes for each pod is not written
	// for each of them.
	urgentInterval = 200 * time.Millisecond
	// complainAfter is how often a write fails before an operator hears of it:
	// 200 ms doubled six times are 12 s.
	complainAfter = 6
)

// Writer writes what is reported, while Run runs. A change of what decides
// whether pods start, or whether the queue may vanish, is written at once, at
// most every urgentInterval; anything else at most every numbersInterval, and of
// all queues together at most numbersQPS times per second.
type Writer struct {
	client   client.Client
	recorder record.EventRecorder
	writes   *prometheus.CounterVec
	clock    clock.PassiveClock

	queue   workqueue.TypedDelayingInterface[string]
	backOff workqueue.TypedRateLimiter[string]
	numbers *rate.Limiter

	mu     sync.Mutex
	states map[string]*state
}

// New returns a Writer whose queue fills until Run is called. writes has the
// labels verb and result.
func New(c client.Client, recorder record.EventRecorder, writes *prometheus.CounterVec, clk clock.PassiveClock) *Writer {
	return &Writer{
		client: c, recorder: recorder, writes: writes, clock: clk,
		queue:   workqueue.NewTypedDelayingQueue[string](),
		backOff: workqueue.NewTypedItemExponentialFailureRateLimiter[string](200*time.Millisecond, 30*time.Second),
		numbers: rate.NewLimiter(numbersQPS, numbersBurst),
		states:  map[string]*state{},
	}
}

// ReportQueue has a queue written soon. It does not block. The report's parts must
// not be changed afterwards.
func (w *Writer) ReportQueue(report planner.QueueReport) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.states[report.Name]
	if s == nil {
		s = &state{}
		w.states[report.Name] = s
	}
	s.wanted = &report
	// Whether and when it is to be written is for a worker to find out, once
	// for many reports.
	w.queue.Add(report.Name)
}

// ObserveQueue has a queue looked at again whose finalizer is not what was last
// written, as when somebody has replaced the object.
func (w *Writer) ObserveQueue(_ context.Context, queue *view.Queue) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.states[queue.Name]
	if s == nil || s.seen != nil && s.seen.UID == queue.UID &&
		finalized(s.seen) == queue.Finalized && (s.seen.DeletionTimestamp != nil) == queue.Deleting {
		return
	}
	s.seen, s.doubted = nil, true
	w.schedule(queue.Name, s)
}

// ForgetQueue tells that a queue is gone, which is to be told before the planner
// hears of it.
func (w *Writer) ForgetQueue(_ context.Context, name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.states, name)
	w.backOff.Forget(name)
}

// schedule has a queue handled when that is due. w.mu is held.
func (w *Writer) schedule(name string, s *state) {
	now := w.clock.Now()
	if due, ok := w.due(s, now); ok {
		w.queue.AddAfter(name, due.Sub(now))
	}
}

// due returns when a queue may be written, false if it need not be. w.mu is
// held.
func (w *Writer) due(s *state, now time.Time) (time.Time, bool) {
	var due time.Time
	switch s.change(now) {
	case nothing:
		return time.Time{}, false
	case unread:
	case urgent:
		due = s.pressed.Add(urgentInterval)
	case numbers:
		if s.slot.IsZero() {
			s.slot = later(s.written.Add(numbersInterval), now.Add(w.numbers.ReserveN(now, 1).DelayFrom(now)))
		}
		due = s.slot
	}
	return later(due, s.retry), true
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Run writes until ctx ends.
func (w *Writer) Run(ctx context.Context) {
	var running sync.WaitGroup
	for range workers {
		running.Go(func() {
			for {
				name, shutdown := w.queue.Get()
				if shutdown {
					return
				}
				w.handle(ctx, name)
				w.queue.Done(name)
			}
		})
	}
	<-ctx.Done()
	w.queue.ShutDown()
	running.Wait()
}

// handle reads a queue's object or writes its last report, if that is due.
func (w *Writer) handle(ctx context.Context, name string) {
	// 1. What is to be done?
	w.mu.Lock()
	s := w.states[name]
	if s == nil {
		w.mu.Unlock()
		return
	}
	now := w.clock.Now()
	if due, ok := w.due(s, now); !ok || due.After(now) {
		w.schedule(name, s)
		w.mu.Unlock()
		return
	}
	s.doubted = false
	report, known, todo := s.wanted, s.seen, s.change(now)
	w.mu.Unlock()

	// 2. Do it. No other worker has this queue.
	var queue *v1alpha1.Queue
	var err error
	if todo == unread {
		queue, err = w.read(ctx, name)
	} else {
		queue, err = w.bring(ctx, known, report)
	}
	if ctx.Err() != nil {
		return
	}

	// 3. What has been learnt? If the queue was forgotten meanwhile, nobody
	// looks at s again.
	w.mu.Lock()
	defer w.mu.Unlock()
	now = w.clock.Now()
	if s.doubted {
		queue = nil
	}
	s.seen = queue
	switch {
	case w.states[name] != s:
		return
	case errors.Is(err, errGone):
		klog.FromContext(ctx).V(4).Info("Queue object is gone", "queue", name)
		w.backOff.Forget(name)
		if !s.doubted && s.wanted == report {
			delete(w.states, name)
			return
		}
	case err != nil:
		s.retry = now.Add(w.failed(ctx, name, err))
	case todo != unread:
		s.slot, s.written = time.Time{}, now
		if todo == urgent {
			s.pressed = now
		}
	}
	if s.change(now) == nothing {
		w.backOff.Forget(name)
	}
	w.schedule(name, s)
}

// failed logs a failure and returns how long to wait. Who has lost one race
// need not.
func (w *Writer) failed(ctx context.Context, name string, err error) time.Duration {
	log := klog.FromContext(ctx).WithValues("queue", name)
	tries := w.backOff.NumRequeues(name)
	wait := w.backOff.When(name)
	switch {
	case errors.Is(err, errRaced):
		log.V(4).Info("Queue object changed meanwhile", "reason", err.Error())
		if tries == 0 {
			return 0
		}
	case tries == complainAfter:
		log.Error(err, "Queue object could not be written; it is tried again until that succeeds")
	default:
		log.V(2).Info("Queue object could not be written yet", "reason", err.Error())
	}
	return wait
}
