package extender

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/tranche-dev/tranche/extender/bind"
	"github.com/tranche-dev/tranche/extender/certificate"
	"github.com/tranche-dev/tranche/extender/gangobject"
	"github.com/tranche-dev/tranche/extender/metrics"
	"github.com/tranche-dev/tranche/extender/planner"
	"github.com/tranche-dev/tranche/extender/queueobject"
	"github.com/tranche-dev/tranche/extender/server"
	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/extender/watch"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/program"
	"github.com/tranche-dev/tranche/pkg/units"
)

// Run is tranche-extender: it works until ctx ends, then lets running calls
// finish, gives its lease back and waits for all that it started.
func Run(ctx context.Context, o *Options) error {
	c, err := newClients(o)
	if err != nil {
		return err
	}
	listeners, err := listen(ctx, o)
	if err != nil {
		return err
	}
	p, err := newProcess(ctx, o, c, clock.RealClock{})
	if err != nil {
		return errors.Join(err, listeners.close())
	}
	return p.run(ctx, listeners)
}

// process is the program with its parts, not yet running.
type process struct {
	o        *Options
	planner  *planner.Planner
	effects  *bind.Effects
	gangs    *gangobject.Writer
	queues   *queueobject.Writer
	watcher  *watch.Watcher
	tls      *certificate.TLS
	server   *server.Server
	election *election
	registry *prometheus.Registry
	metrics  *metrics.Metrics
	events   record.EventBroadcaster
	draining atomic.Bool
}

// listeners are opened before anything else, so that a taken port is found out
// at once.
type listeners struct{ scheduler, observer net.Listener }

func listen(ctx context.Context, o *Options) (listeners, error) {
	var l listeners
	var config net.ListenConfig
	var err error
	if l.scheduler, err = config.Listen(ctx, "tcp", o.BindAddress); err != nil {
		return listeners{}, fmt.Errorf("--bind-address: %w", err)
	}
	if l.observer, err = config.Listen(ctx, "tcp", o.MetricsBindAddress); err != nil {
		return listeners{}, errors.Join(fmt.Errorf("--metrics-bind-address: %w", err), l.scheduler.Close())
	}
	return l, nil
}

func (l listeners) close() error { return errors.Join(l.scheduler.Close(), l.observer.Close()) }

func newProcess(ctx context.Context, o *Options, c clients, clk clock.WithTicker) (*process, error) {
	res := contract.Resources{
		Share: corev1.ResourceName(o.ShareResource), GPU: corev1.ResourceName(o.GPUResource), PerGPU: units.Shares(o.SharesPerGPU),
	}
	// run tells this process from earlier ones.
	run := strconv.FormatInt(clk.Now().UnixMilli(), 36)
	p := &process{o: o, registry: prometheus.NewRegistry()}
	p.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	p.metrics = metrics.New(p.registry)

	// 1. Who decides.
	p.events = record.NewBroadcaster(record.WithContext(context.WithoutCancel(ctx)))
	backlog := &bind.EventBacklog{}
	p.events.StartRecordingToSink(bind.NewEventSink(&typedcorev1.EventSinkImpl{Interface: c.events.CoreV1().Events(metav1.NamespaceAll)}, backlog))
	recorder := p.events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: leaseName})
	p.gangs = gangobject.New(c.gangs, recorder, p.metrics, clk)
	p.queues = queueobject.New(c.queues, recorder, p.metrics.QueueWrites, clk)
	var err error
	p.effects, err = bind.NewEffects(bind.EffectsClients{Main: c.main, Admission: c.admission}, recorder, p.gangs, p.queues, p.metrics, bind.EffectsOptions{
		Resources: res, RetryQPS: o.RetryQPS, EventQPS: o.EventQPS, AdmissionQPS: o.AdmissionQPS, Run: run, Clock: clk, Events: backlog,
	})
	if err != nil {
		return nil, p.abandon(err)
	}
	p.planner, err = planner.New(planner.Options{
		Resources: res, Placement: contract.Placement(o.Placement), HoldTimeout: o.HoldTimeout, Clock: clk,
		Queues: o.Queues, DefaultQueue: o.DefaultQueue, Reclaim: o.Reclaim, EvictionsInFlight: o.EvictionsInFlight,
		ReservationDelay: o.ReservationDelay, ReservationTimeout: o.ReservationTimeout,
		Gangs: o.Gangs, Nominate: o.Nominate, GangBindTimeout: o.GangBindTimeout, GangHoldTimeout: o.GangHoldTimeout,
		StalenessGracePeriod: o.GangStalenessGracePeriod,
	}, p.metrics, p.effects)
	if err != nil {
		return nil, p.abandon(err)
	}
	p.registry.MustRegister(metrics.NewQueueCollector(func() []metrics.Queue { return gaugesOf(p.planner.Queues()) }))
	p.registry.MustRegister(metrics.NewLedgerCollector(func() *ledger.Snapshot { return p.planner.Snapshot().Ledger }))
	audience := watch.Audience{Pods: p.planner, Nodes: p.planner}
	if o.Gangs {
		audience.Gangs, audience.Groups = p.planner, p.planner
	}
	if o.Gangs || o.Queues {
		audience.Usages = p.planner
	}
	if o.Queues {
		audience.Queues, audience.Namespaces = queueAudience{p.queues, p.planner}, p.planner
	} else {
		releaser := queueobject.Releaser{Writer: p.queues}
		audience.Queues, audience.Namespaces = releaser, releaser
	}
	p.watcher = watch.New(c.main, c.gangs, res, audience)
	if p.election, err = newElection(c.election, o, run); err != nil {
		return nil, p.abandon(err)
	}

	// 2. Who answers.
	serving, err := servingCertificate(ctx, o, c, clk)
	if err != nil {
		return nil, p.abandon(err)
	}
	if p.tls, err = certificate.New(serving, o.ClientCAFile); err != nil {
		return nil, p.abandon(err)
	}
	binder := bind.New(c.main, res, p.planner, p.metrics, o.BindTimeout)
	p.server = server.New(server.Options{AllowedNames: o.AllowedClientNames, Version: program.Version(), Clock: clk}, p.planner, binder, p, p.metrics)
	return p, nil
}

// queueAudience tells the writer of queues, which then knows what its reports
// are about, before the planner.
type queueAudience struct {
	writer  *queueobject.Writer
	planner *planner.Planner
}

var _ watch.Queues = queueAudience{}

// ObserveQueue implements watch.Queues.
func (a queueAudience) ObserveQueue(ctx context.Context, queue *view.Queue) {
	a.writer.ObserveQueue(ctx, queue)
	a.planner.ObserveQueue(ctx, queue)
}

// ForgetQueue implements watch.Queues.
func (a queueAudience) ForgetQueue(ctx context.Context, name string) {
	a.writer.ForgetQueue(ctx, name)
	a.planner.ForgetQueue(ctx, name)
}

// gaugesOf translates queues for their metrics.
func gaugesOf(queues []planner.QueueState) []metrics.Queue {
	list := make([]metrics.Queue, 0, len(queues))
	for i := range queues {
		q := &queues[i]
		list = append(list, metrics.Queue{
			Name: q.Name, Allocated: q.Allocated, Held: q.Held, Demand: q.Demand, Deserved: q.Deserved, FairShare: q.FairShare, Limit: q.Limit, Pending: q.Pending,
		})
	}
	return list
}

// abandon ends what newProcess has started.
func (p *process) abandon(err error) error {
	p.events.Shutdown()
	return err
}

func servingCertificate(ctx context.Context, o *Options, c clients, clk clock.WithTicker) (certificate.Source, error) {
	if o.TLSSecretName == "" {
		return certificate.FromFiles(o.TLSCertFile, o.TLSPrivateKeyFile)
	}
	return certificate.FromSecret(ctx, c.main, certificate.SecretOptions{
		Namespace: o.Namespace, Name: o.TLSSecretName, DNSNames: o.dnsNames(), Clock: clk,
	})
}

// run works until ctx ends or a part fails.
func (p *process) run(ctx context.Context, l listeners) error {
	log := klog.FromContext(ctx)
	// The parts outlive the signal: calls that run are finished first.
	work, stopWork := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWork()
	lease, giveBack := context.WithCancel(context.WithoutCancel(ctx))
	defer giveBack()
	failed, fail := context.WithCancelCause(ctx)
	defer fail(nil)

	var parts, elector sync.WaitGroup
	part := func(f func() error) func() {
		return func() {
			if err := f(); err != nil {
				fail(err)
			}
		}
	}
	scheduler := server.HTTPServer(work, p.server.Handler(), p.tls.Config(), p.o.longestCall())
	observer := server.HTTPServer(work, p.server.ObserverHandler(p.registry, p.o.Profiling), nil, 0)
	parts.Go(func() { p.planner.Run(work) })
	parts.Go(func() { p.effects.Run(work, p.planner) })
	parts.Go(func() { p.gangs.Run(work) })
	parts.Go(func() { p.queues.Run(work) })
	parts.Go(func() { p.tls.Run(work) })
	parts.Go(part(func() error { return server.Serve(scheduler, l.scheduler) }))
	parts.Go(part(func() error { return server.Serve(observer, l.observer) }))
	parts.Go(part(func() error { return p.lead(work) }))
	elector.Go(part(func() error { return p.election.run(lease) }))

	<-failed.Done()
	cause := context.Cause(failed)
	if ctx.Err() != nil && errors.Is(cause, context.Canceled) {
		// 1. Let calls finish. Until then the lease is ours.
		cause = nil
		log.Info("Draining")
		p.draining.Store(true)
		patience, cancel := context.WithTimeout(work, p.o.ShutdownTimeout)
		if err := scheduler.Shutdown(patience); err != nil {
			log.Error(err, "Calls did not end in time")
		}
		cancel()
	}
	// 2. Stop deciding.
	stopWork()
	_ = scheduler.Close()
	_ = observer.Close()
	parts.Wait()
	p.events.Shutdown()
	// 3. Let another replica lead.
	giveBack()
	elector.Wait()
	return cause
}

// lead reads the cluster once this replica leads, and follows it.
func (p *process) lead(ctx context.Context) error {
	log := klog.FromContext(ctx)
	select {
	case <-ctx.Done():
		return nil
	case <-p.election.started:
	}
	p.metrics.Leader.Set(1)
	log.Info("Leading, reading nodes and pods")
	err := p.watcher.Run(ctx, func(ctx context.Context) error {
		if err := p.planner.Rebuilt(ctx); err != nil {
			return err
		}
		p.metrics.Ready.Set(1)
		totals := p.planner.Snapshot().Ledger.Totals()
		log.Info("Ready", "nodes", totals.Nodes, "gpus", totals.GPUs, "shares", totals.Shares, "allocated", totals.Allocated, "overcommittedGPUs", totals.Overcommitted)
		return nil
	})
	if ctx.Err() == nil {
		return err
	}
	return nil // stopped, perhaps while it was reading
}

var _ server.Observer = (*process)(nil)

// NotReady implements server.Observer.
func (p *process) NotReady() []string {
	switch {
	case p.draining.Load():
		return []string{"this replica is shutting down"}
	case !p.election.leads():
		return []string{"this replica does not hold the lease " + leaseName}
	case !p.planner.Live():
		return []string{"nodes and pods are still being read, so it is not known yet which GPUs are in use"}
	default:
		return nil
	}
}

// Leading implements server.Observer.
func (p *process) Leading() bool { return p.election.leads() }

// Alive implements server.Observer.
func (p *process) Alive(ctx context.Context) error { return p.planner.Ping(ctx) }

// State implements server.Observer.
func (p *process) State(ctx context.Context) (planner.State, error) { return p.planner.State(ctx) }
