package objectwriter

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	// workers hide each other's round trips; the client's limit bounds them.
	workers = 8
	// firstRetry is doubled with each failure, up to lastRetry.
	firstRetry, lastRetry = 200 * time.Millisecond, 30 * time.Second
	// complainAfter is how often a write fails before an operator hears of it:
	// 200 ms doubled six times are 12 s.
	complainAfter = 6
)

// Change is how much of a report is not in the object.
type Change int

const (
	// Nothing differs.
	Nothing Change = iota
	// Unread: the object has to be read to know.
	Unread
	// Numbers differ, which people read.
	Numbers
	// Urgent is what somebody waits for.
	Urgent
)

// Options say what objects are written from reports R, and how often. S is what
// is known of an object once it was read or written; nobody changes it.
type Options[R, S any] struct {
	// Kind is what logs call the objects, such as "Gang".
	Kind string
	// Compare says how much of wanted is not in the object. seen is what Write
	// returned last, nil if that is unknown or outdated. It must not block.
	Compare func(seen *S, wanted *R, now time.Time) Change
	// Write makes the object what wanted says; if Compare found it Unread, it
	// only reads it, so that what is heard meanwhile counts. It returns what is
	// known of the object then, also with an error, which may wrap ErrRaced,
	// ErrGone or ErrNoKind.
	Write func(ctx context.Context, seen *S, wanted *R) (*S, error)
	// UrgentInterval is between two urgent writes of one object, of which the
	// first is made at once.
	UrgentInterval time.Duration
	// NumbersInterval is between a write of an object and one of mere numbers,
	// NumbersLimit the bound of those of all objects together, if there is one.
	NumbersInterval time.Duration
	NumbersLimit    *rate.Limiter
	// RetryNew has a report that comes after a failure tried at once, instead of
	// when the one that failed would be.
	RetryNew bool
	// Requests counts what Result is told; its labels are verb and result.
	Requests *prometheus.CounterVec
	Clock    clock.PassiveClock
}

// Writer writes what is reported, while Run runs.
type Writer[R, S any] struct {
	o       Options[R, S]
	queue   workqueue.TypedDelayingInterface[types.NamespacedName]
	backOff workqueue.TypedRateLimiter[types.NamespacedName]

	mu     sync.Mutex
	states map[types.NamespacedName]*state[R, S]
}

// state is what a Writer knows of one object.
type state[R, S any] struct {
	// wanted is the last report.
	wanted *R
	// seen is the object as it was last read or written, nil if unknown.
	seen *S
	// doubted says that what is being read or written now is outdated.
	doubted bool
	// written is when the object was last written, pressed when something
	// urgent was.
	written, pressed time.Time
	// slot is when mere numbers may be written, zero if none was asked for.
	slot time.Time
	// failed could not be written last, and may be tried again from retry on.
	failed *R
	retry  time.Time
}

// New returns a Writer whose queue fills until Run is called.
func New[R, S any](o Options[R, S]) *Writer[R, S] {
	return &Writer[R, S]{
		o:       o,
		queue:   workqueue.NewTypedDelayingQueue[types.NamespacedName](),
		backOff: workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](firstRetry, lastRetry),
		states:  map[types.NamespacedName]*state[R, S]{},
	}
}

// Report has an object written soon. It does not block. The report must not be
// changed afterwards.
func (w *Writer[R, S]) Report(key types.NamespacedName, report *R) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.states[key]
	if s == nil {
		s = &state[R, S]{}
		w.states[key] = s
	}
	s.wanted = report
	// Whether and when it is to be written is for a worker to find out, once
	// for many reports.
	w.queue.Add(key)
}

// Doubt has an object read again, unless it was seen as known says. Objects
// without a report are nothing to doubt.
func (w *Writer[R, S]) Doubt(key types.NamespacedName, known func(seen *S) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.states[key]
	if s == nil || s.seen != nil && known(s.seen) {
		return
	}
	s.seen, s.doubted = nil, true
	w.queue.Add(key)
}

// Forget drops all that is known of an object and its reports.
func (w *Writer[R, S]) Forget(key types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.states, key)
	w.backOff.Forget(key)
}

// Len is how many objects are remembered.
func (w *Writer[R, S]) Len() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.states)
}

// Run writes until ctx ends.
func (w *Writer[R, S]) Run(ctx context.Context) {
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

// handle writes an object's last report, if that is due.
func (w *Writer[R, S]) handle(ctx context.Context, key types.NamespacedName) {
	// 1. What is to be done?
	w.mu.Lock()
	s := w.states[key]
	if s == nil {
		w.mu.Unlock()
		return
	}
	todo, wait := w.next(s, w.o.Clock.Now())
	if todo == Nothing || wait > 0 {
		w.mu.Unlock()
		if todo != Nothing {
			w.queue.AddAfter(key, wait)
		}
		return
	}
	s.doubted = false
	wanted, seen := s.wanted, s.seen
	w.mu.Unlock()

	// 2. Do it. No other worker has this object.
	seen, err := w.o.Write(ctx, seen, wanted)
	if ctx.Err() != nil {
		return
	}

	// 3. What has been learnt? If the object was forgotten meanwhile, nothing.
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.states[key] != s {
		return
	}
	now := w.o.Clock.Now()
	if s.doubted || errors.Is(err, ErrRaced) || errors.Is(err, ErrGone) {
		seen = nil
	}
	s.seen = seen
	switch {
	case errors.Is(err, ErrGone):
		w.backOff.Forget(key)
		if !s.doubted && s.wanted == wanted {
			delete(w.states, key)
			w.log(ctx, key).V(4).Info(w.o.Kind + " object is gone or needs nothing more")
			return
		}
	case err != nil:
		s.failed, s.retry = wanted, now.Add(w.backedOff(ctx, key, err))
	case todo != Unread:
		w.backOff.Forget(key)
		s.slot, s.written = time.Time{}, now
		if todo == Urgent {
			s.pressed = now
		}
	}
	if todo, wait = w.next(s, now); todo == Nothing {
		w.backOff.Forget(key)
		return
	}
	w.queue.AddAfter(key, wait)
}

// next returns what is to be done about an object, and how long that has to
// wait. w.mu is held.
func (w *Writer[R, S]) next(s *state[R, S], now time.Time) (Change, time.Duration) {
	var due time.Time
	todo := w.o.Compare(s.seen, s.wanted, now)
	switch todo {
	case Nothing, Unread:
	case Urgent:
		due = s.pressed.Add(w.o.UrgentInterval)
	case Numbers:
		if s.slot.IsZero() {
			s.slot = s.written.Add(w.o.NumbersInterval)
			if limit := w.o.NumbersLimit; limit != nil {
				s.slot = later(s.slot, now.Add(limit.ReserveN(now, 1).DelayFrom(now)))
			}
		}
		due = s.slot
	}
	if !w.o.RetryNew || s.failed == s.wanted {
		due = later(due, s.retry)
	}
	return todo, due.Sub(now)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// backedOff logs a failure and returns how long to wait. Who has lost one race
// need not.
func (w *Writer[R, S]) backedOff(ctx context.Context, key types.NamespacedName, err error) time.Duration {
	log := w.log(ctx, key)
	tries := w.backOff.NumRequeues(key)
	wait := w.backOff.When(key)
	switch {
	case errors.Is(err, ErrRaced):
		log.V(4).Info(w.o.Kind+" object changed meanwhile", "reason", err.Error())
		if tries == 0 {
			return 0
		}
	case tries == complainAfter && !errors.Is(err, ErrNoKind):
		log.Error(err, w.o.Kind+" object could not be written; it is tried again until that succeeds")
	default:
		log.V(2).Info(w.o.Kind+" object could not be written yet", "reason", err.Error())
	}
	return wait
}

// log returns a logger that names the object.
func (w *Writer[R, S]) log(ctx context.Context, key types.NamespacedName) klog.Logger {
	var ref any = klog.KRef(key.Namespace, key.Name)
	if key.Namespace == "" {
		ref = key.Name
	}
	return klog.FromContext(ctx).WithValues(strings.ToLower(w.o.Kind), ref)
}
