package health

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/tranche-dev/tranche/nodeplugin/nvml"
	"github.com/tranche-dev/tranche/pkg/contract"
)

const (
	// waitFor bounds one wait for events, so that a stop does not hang.
	waitFor = 500 * time.Millisecond
	// firstPause and maxPause bound the time between attempts to start NVML.
	firstPause, maxPause = time.Second, 30 * time.Second
)

// Monitor watches the GPUs through NVML. It is safe for concurrent use.
type Monitor struct {
	lib     nvml.Library
	every   time.Duration
	clock   clock.WithTicker
	metrics *Metrics
	// failFast makes Run return when NVML cannot be started at first.
	failFast bool

	tracker *Tracker // only Run uses it
	events  nvml.Events
	// watched are the GPUs whose events are collected; only Run uses them.
	watched []contract.GPUUUID

	mu      sync.Mutex
	state   State
	changed chan struct{} // closed, and replaced, at every change
}

// New returns a Monitor that probes the GPUs at that interval. With failFast,
// Run returns an error if NVML does not start at the first attempt, instead of
// trying again.
func New(lib nvml.Library, opts Options, every time.Duration, failFast bool, c clock.WithTicker, m *Metrics) *Monitor {
	return &Monitor{
		lib: lib, every: every, clock: c, metrics: m, failFast: failFast,
		tracker: NewTracker(opts), changed: make(chan struct{}),
	}
}

// State returns what is known now, and a channel that is closed when that
// changes.
func (m *Monitor) State() (State, <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state, m.changed
}

// publish makes the Tracker's state known if it differs.
func (m *Monitor) publish(ctx context.Context) {
	now := m.tracker.State()
	m.mu.Lock()
	defer m.mu.Unlock()
	if reflect.DeepEqual(now, m.state) {
		return
	}
	m.log(ctx, m.state, now)
	m.state = now
	close(m.changed)
	m.changed = make(chan struct{})
}

// log says what has changed, for operators.
func (m *Monitor) log(ctx context.Context, before, now State) {
	log := klog.FromContext(ctx)
	if now.Failure != nil && (before.Failure == nil || before.Failure.Error() != now.Failure.Error()) {
		log.Error(now.Failure, "NVML does not work; no GPU takes new pods until it does")
	}
	was := map[contract.GPUUUID]GPU{}
	for _, g := range before.GPUs {
		was[g.UUID] = g
	}
	for _, g := range now.GPUs {
		b, known := was[g.UUID]
		switch {
		case !known:
			log.Info("Found GPU", "gpu", g.UUID, "index", g.Index, "model", g.Product, "memoryMiB", g.Memory, "healthy", g.Healthy, "reason", g.Reason)
		case b.Healthy && !g.Healthy:
			log.Info("GPU is not fit for work", "gpu", g.UUID, "index", g.Index, "reason", g.Reason)
		case !b.Healthy && g.Healthy:
			log.Info("GPU is fit for work again", "gpu", g.UUID, "index", g.Index)
		}
	}
	if !before.Known && now.Known && len(now.GPUs) == 0 {
		log.Info("This node has no GPUs")
	}
}

// Run starts NVML and watches the GPUs until ctx ends. While NVML does not
// work it is started again and again, and all GPUs are unfit.
func (m *Monitor) Run(ctx context.Context) error {
	pause := firstPause
	for first := true; ; first = false {
		err := m.lib.Init()
		if err == nil {
			pause = firstPause
			err = m.watch(ctx)
			m.unwatch()
			if stop := m.lib.Shutdown(); stop != nil {
				klog.FromContext(ctx).V(2).Info("NVML did not shut down", "err", stop)
			}
		}
		if ctx.Err() != nil {
			return nil //nolint:nilerr // asked to stop
		}
		if first && m.failFast && !m.tracker.known {
			return err
		}
		m.tracker.Failed(err, m.clock.Now())
		m.publish(ctx)
		m.metrics.failed()
		select {
		case <-ctx.Done():
			return nil
		case <-m.clock.After(pause):
		}
		pause = min(2*pause, maxPause)
	}
}

// watch probes the GPUs and waits for events until NVML fails or ctx ends.
func (m *Monitor) watch(ctx context.Context) error {
	for {
		if err := m.probe(ctx); err != nil {
			return err
		}
		m.publish(ctx)
		if err := m.wait(ctx); err != nil || ctx.Err() != nil {
			return err
		}
	}
}

// probe lists and asks all GPUs once.
func (m *Monitor) probe(ctx context.Context) error {
	machine, err := m.lib.Machine()
	if err != nil {
		return err
	}
	now := m.clock.Now()
	before := m.tracker.Present()
	m.tracker.Listed(machine, now)
	present := m.tracker.Present()
	if !slices.Equal(before, present) {
		m.tracker.Linked(m.lib.Links(machine.GPUs))
		m.metrics.only(present)
	}
	for _, g := range present {
		m.tracker.Probed(g.UUID, m.lib.Probe(g.UUID), now)
		if u, err := m.lib.Usage(g.UUID); err == nil {
			m.metrics.used(g.UUID, u)
		}
	}
	m.rewatch(ctx, present)
	return nil
}

// rewatch collects the events of exactly the GPUs that are present.
func (m *Monitor) rewatch(ctx context.Context, present []nvml.GPU) {
	gpus := make([]contract.GPUUUID, 0, len(present))
	for _, g := range present {
		gpus = append(gpus, g.UUID)
	}
	if m.events != nil && slices.Equal(gpus, m.watched) {
		return
	}
	m.unwatch()
	events, unwatched, err := m.lib.Watch(gpus)
	if err != nil {
		// Probes go on; they notice most of what events would say.
		klog.FromContext(ctx).Error(err, "GPU events are not available; errors are noticed by probing only")
		m.watched = nil
		return
	}
	if len(unwatched) > 0 {
		klog.FromContext(ctx).Info("Some GPUs report no events; their errors are noticed by probing only", "gpus", unwatched)
	}
	m.events, m.watched = events, gpus
}

func (m *Monitor) unwatch() {
	if m.events != nil {
		_ = m.events.Close()
		m.events, m.watched = nil, nil
	}
}

// wait takes in events until the next probe is due, or something failed.
func (m *Monitor) wait(ctx context.Context) error {
	due := m.clock.Now().Add(m.every)
	for ctx.Err() == nil {
		left := due.Sub(m.clock.Now())
		if left <= 0 {
			return nil
		}
		if m.events == nil {
			select {
			case <-ctx.Done():
			case <-m.clock.After(left):
			}
			continue
		}
		event, err := m.events.Wait(min(left, waitFor))
		switch {
		case err == nil:
			m.reported(ctx, event)
		case errors.Is(err, nvml.ErrTimeout):
		default:
			// A GPU is gone or NVML broke: the probe finds out which. Not at
			// once if it finds nothing, though, or this would turn in circles.
			klog.FromContext(ctx).V(2).Info("Waiting for GPU events failed", "err", err)
			m.unwatch()
			select {
			case <-ctx.Done():
			case <-m.clock.After(waitFor):
			}
			return nil
		}
	}
	return nil
}

func (m *Monitor) reported(ctx context.Context, e nvml.Event) {
	fatal := m.tracker.Reported(e, m.clock.Now())
	m.metrics.reported(e, fatal)
	klog.FromContext(ctx).Info("GPU reported an error", "gpu", e.GPU, "xid", e.XID, "text", XIDText(e.XID), "makesUnfit", fatal)
	m.publish(ctx)
}
