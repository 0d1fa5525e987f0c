package planner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/tranche-dev/tranche/extender/metrics"
	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/placement"
	"github.com/tranche-dev/tranche/pkg/placement/waste"
)

// Options are the planner's settings.
type Options struct {
	Resources contract.Resources
	// Placement applies to pods without a wish of their own.
	Placement contract.Placement
	// HoldTimeout is how long a pod may hold shares without being bound. It
	// must be longer than the scheduler takes from Filter to Bind.
	HoldTimeout time.Duration
	Clock       clock.WithTicker

	// Queues says whether queues are heeded. Without, the gates of single pods are
	// lifted and everybody takes what is free.
	Queues bool
	// DefaultQueue is for GPU pods that name none; empty: they are in none.
	DefaultQueue string
	// Reclaim says whether queues take back what they are entitled to, and pods
	// of high priority the places of others in their queue. EvictionsInFlight
	// bounds how many pods may be on their way out for that at a time.
	Reclaim           bool
	EvictionsInFlight int
	// ReservationDelay is how long a gang that is entitled to its places must
	// have waited before what becomes free is put by for it, ReservationTimeout
	// for how long that is done. 0: never.
	ReservationDelay, ReservationTimeout time.Duration

	// Gangs says whether gangs are heeded. Without, all gates are lifted and
	// members are placed like any other pods.
	Gangs bool
	// Nominate says whether members are nominated to their nodes.
	Nominate bool
	// GangBindTimeout is how long a member waits in Bind for the others, and
	// GangHoldTimeout, longer, how long a gang keeps its places without
	// progress.
	GangBindTimeout, GangHoldTimeout time.Duration
	// StalenessGracePeriod is how long a started gang of disruption mode All may
	// be below its minimum before the rest is evicted; 0: for ever.
	StalenessGracePeriod time.Duration
}

// Planner is the handle to the goroutine. All methods may be called by any
// goroutine.
type Planner struct {
	opts    Options
	metrics *metrics.Metrics
	effects Effects

	commands chan command
	stopped  chan struct{}
	snapshot atomic.Pointer[Snapshot]
	// parsed holds what Filter saw of recent pods: Prioritize and Bind of the
	// same pod follow, and the informer may be behind.
	parsed *lru.Cache[types.UID, *view.Pod]
	// spots are the owner's.
	spots *lru.Cache[spotKey, *spots]
	// decided holds the node of pods whose Binding is on its way or not long
	// ago (string by types.UID). Only the owner writes; Filter reads, to keep
	// such a pod where it is.
	decided sync.Map
	// places holds the node of gang members that have a place (string by
	// types.UID). Only the owner writes; Filter reads.
	places sync.Map

	// admitted are single pods that hold GPUs (*admitted by types.UID), refused
	// those that wait for their queue (struct{} by types.UID). Only the owner
	// writes; Filter reads.
	admitted, refused sync.Map
	// gates are what Filter knows of queues, nil before anything is.
	gates atomic.Pointer[gates]

	// leastWaste is the policy of that name, by what has been learned. Only the
	// owner writes.
	leastWaste atomic.Pointer[placement.Policy]
	// ratings remember how well nodes suit pods.
	ratings *lru.Cache[ratingKey, *ratings]

	// queueGauges are the queues' sums for metrics and State, nil before there are
	// any.
	queueGauges atomic.Pointer[[]QueueState]

	// live is whether Observe and ObserveNode have told of everything once.
	live atomic.Bool
}

// command changes the state and returns what to do when the change is visible
// to readers, or nil.
type command func(ctx context.Context, s *state, now time.Time) (reply func())

// ErrStopped is returned by calls after Run has ended.
var ErrStopped = errors.New("the planner has stopped")

// parsedPods bounds Planner.parsed: more pods than a scheduler has between
// Filter and Bind.
const parsedPods = 8192

// commandBatch bounds how many commands share one snapshot.
const commandBatch = 256

// tick is how often expiry and wake-ups are looked at.
const tick = 100 * time.Millisecond

// New returns a planner without nodes and pods. Call Run.
func New(opts Options, m *metrics.Metrics, effects Effects) (*Planner, error) {
	parsed, err := lru.New[types.UID, *view.Pod](parsedPods)
	if err != nil {
		return nil, fmt.Errorf("parsed pods: %w", err)
	}
	spots, err := lru.New[spotKey, *spots](mostSpots)
	if err != nil {
		return nil, fmt.Errorf("spots: %w", err)
	}
	ratings, err := lru.New[ratingKey, *ratings](mostRatings)
	if err != nil {
		return nil, fmt.Errorf("ratings: %w", err)
	}
	p := &Planner{
		opts: opts, metrics: m, effects: effects, parsed: parsed, spots: spots, ratings: ratings,
		commands: make(chan command, commandBatch),
		stopped:  make(chan struct{}),
	}
	p.setTables(waste.NewTables(nil, waste.Cluster{}))
	p.snapshot.Store(&Snapshot{Ledger: ledger.New().Snapshot()})
	return p, nil
}

// Run owns the state until ctx ends. It must be called once.
func (p *Planner) Run(ctx context.Context) {
	defer close(p.stopped)
	s := newState(p)
	ticker := p.opts.Clock.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case c := <-p.commands:
			p.batch(ctx, s, c)
		case <-ticker.C():
			s.tick(klog.FromContext(ctx), p.opts.Clock.Now())
			p.finish(ctx, s, true)
			s.flush()
		}
	}
}

// batch runs first and whatever waits behind it, makes the result visible, and
// answers. Answers come last so that whoever got one sees its effect.
func (p *Planner) batch(ctx context.Context, s *state, first command) {
	replies := make([]func(), 0, 8)
	run := func(c command) {
		if reply := c(ctx, s, p.opts.Clock.Now()); reply != nil {
			replies = append(replies, reply)
		}
	}
	run(first)
	for range commandBatch - 1 {
		select {
		case c := <-p.commands:
			run(c)
			continue
		default:
		}
		break
	}
	p.finish(ctx, s, false)
	for _, reply := range replies {
		reply()
	}
	s.flush()
}

// finish draws the consequences of what has changed and makes them visible.
// What has become free goes to those for whom it was made free before anybody
// else sees it. timed says that time has passed since the last call with it.
func (p *Planner) finish(ctx context.Context, s *state, timed bool) {
	log := klog.FromContext(ctx)
	s.topUp(p.opts.Clock.Now())
	s.favour(p.opts.Clock.Now())
	s.planRound(log, p.opts.Clock.Now(), timed)
	s.settleBooks()
	s.reportQueues(p.opts.Clock.Now())
	s.learnt(p.opts.Clock.Now())
	p.publish(s)
	p.publishGates(s, p.opts.Clock.Now())
}

// send hands c over without waiting for its effect.
func (p *Planner) send(ctx context.Context, c command) error {
	select {
	case p.commands <- c:
		return nil
	case <-p.stopped:
		return ErrStopped
	case <-ctx.Done():
		return fmt.Errorf("planner: %w", ctx.Err())
	}
}

// ask runs f as a command and waits for its result. If ctx ends first, f may
// run nevertheless.
func ask[T any](ctx context.Context, p *Planner, f func(ctx context.Context, s *state, now time.Time) T) (T, error) {
	answer := make(chan T, 1)
	err := p.send(ctx, func(ctx context.Context, s *state, now time.Time) func() {
		v := f(ctx, s, now)
		return func() { answer <- v }
	})
	var none T
	if err != nil {
		return none, err
	}
	select {
	case v := <-answer:
		return v, nil
	case <-p.stopped:
		return none, ErrStopped
	case <-ctx.Done():
		return none, fmt.Errorf("planner: %w", ctx.Err())
	}
}

// Ping returns nil if the goroutine answers before ctx ends.
func (p *Planner) Ping(ctx context.Context) error {
	_, err := ask(ctx, p, func(context.Context, *state, time.Time) struct{} { return struct{}{} })
	return err
}

// view returns what is to be known of pod, nil if it uses no GPU. Parsing is
// remembered per object, not per pod: annotations of a pending pod may change.
func (p *Planner) view(pod *corev1.Pod) *view.Pod {
	if v, ok := p.parsed.Get(pod.UID); ok && pod.UID != "" && pod.ResourceVersion != "" && v.ResourceVersion == pod.ResourceVersion {
		return v
	}
	v := view.PodOf(pod, p.opts.Resources)
	if v != nil && v.UID != "" {
		p.parsed.Add(v.UID, v)
	}
	return v
}

// query prepares the question whether and how pod fits.
func (p *Planner) query(pod *view.Pod) *placement.Query {
	return placement.New(pod.Request, placement.Options{
		Policy: p.policy(pod), Without: pod.UID, PerGPU: p.opts.Resources.PerGPU, MilliCPU: pod.Needs.MilliCPU,
	})
}

// policy is the one that applies to pod: its own, else its queue's.
func (p *Planner) policy(pod *view.Pod) placement.Policy {
	if pod.Request.Placement != "" {
		return p.policyNamed(pod.Request.Placement)
	}
	if g := p.gates.Load(); g != nil {
		if own := g.placements[cmp.Or(pod.Queue, g.fallback)]; own != "" {
			return p.policyNamed(own)
		}
	}
	return p.policyNamed(p.opts.Placement)
}

func (p *Planner) policyNamed(name contract.Placement) placement.Policy {
	if name == contract.PlacementLeastWaste {
		return *p.leastWaste.Load()
	}
	return placement.For(name)
}

// ref is the ledger's name for pod.
func ref(pod *view.Pod) ledger.Pod {
	return ledger.Pod{UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name}
}

// Stopped is closed when Run has ended.
func (p *Planner) Stopped() <-chan struct{} { return p.stopped }
