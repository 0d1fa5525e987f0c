package nodeplugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/tranche-dev/tranche/nodeplugin/assign"
	"github.com/tranche-dev/tranche/nodeplugin/cdi"
	"github.com/tranche-dev/tranche/nodeplugin/health"
	"github.com/tranche-dev/tranche/nodeplugin/inventory"
	"github.com/tranche-dev/tranche/nodeplugin/isolation"
	"github.com/tranche-dev/tranche/nodeplugin/kubelet"
	"github.com/tranche-dev/tranche/nodeplugin/ledger"
	"github.com/tranche-dev/tranche/nodeplugin/nvml"
	"github.com/tranche-dev/tranche/nodeplugin/slice"
	"github.com/tranche-dev/tranche/pkg/contract"
)

// Dependencies are what a Plugin does not make itself.
type Dependencies struct {
	Client  kubernetes.Interface
	Library nvml.Library
	// Registry receives the metrics.
	Registry *prometheus.Registry
	Clock    clock.WithTicker
	// Simulation, if not nil, follows the simulation file until ctx ends.
	Simulation func(ctx context.Context) error
}

const (
	// foreignEvery is how often the kubelet is asked about other plugins.
	foreignEvery = 10 * time.Second
	// A new socket of another plugin may be that of one for GPUs, once it has
	// registered: suspicious questions follow each other faster.
	suspiciousEvery, suspicious = 500 * time.Millisecond, 10
)

// Plugin is the node plugin of one node.
type Plugin struct {
	opts Options
	deps Dependencies

	monitor    *health.Monitor
	publisher  *inventory.Publisher
	store      *ledger.Store
	cdi        *cdi.Writer
	assigner   *assign.Assigner
	reconciler *assign.Reconciler
	tracker    *kubelet.Tracker
	pods       *kubelet.PodsAPI
	resources  *kubelet.PodResources
	informer   *kubelet.Informer // nil if not used
	registrar  *kubelet.Registrar
	share, gpu *kubelet.Server

	// learnt is closed once the ledger is true to the kubelet: from the start
	// if the file was there, else after the first comparison.
	learnt <-chan struct{}
	// nudge makes the conductor look again.
	nudge chan struct{}

	mu sync.Mutex
	// gpus is what the kubelet was told last.
	gpus map[contract.GPUUUID]assign.GPU
	// checked: the kubelet was asked about other plugins, and had none.
	checked bool
	// foreign is why another plugin forbids ours to work; refused why
	// --isolation cannot be had.
	foreign, refused error
	// published: the inventory was on the Node at least once.
	published bool
}

// New builds a Plugin. Nothing is started; Close what was opened if Run is
// never called.
func New(ctx context.Context, opts Options, deps Dependencies) (*Plugin, error) {
	xids, err := opts.xids()
	if err != nil {
		return nil, err
	}
	p := &Plugin{opts: opts, deps: deps, nudge: make(chan struct{}, 1)}
	if err := p.openLedger(ctx); err != nil {
		return nil, err
	}
	kubeletMetrics := kubelet.NewMetrics(deps.Registry)
	if p.pods, err = kubelet.NewPodsAPI(opts.podsAPISocket(), deps.Clock, kubeletMetrics); err != nil {
		return nil, err
	}
	if p.resources, err = kubelet.NewPodResources(opts.podResourcesSocket(), deps.Clock, kubeletMetrics); err != nil {
		return nil, err
	}
	p.tracker = kubelet.NewTracker(opts.KubeletRootDir, deps.Clock)
	source, err := p.podSource(kubeletMetrics)
	if err != nil {
		return nil, err
	}
	p.cdi = cdi.New(cdi.Options{Dir: opts.CDIDir, NVIDIAKind: opts.NVIDIACDIKind})
	res := opts.resources()
	p.assigner = assign.New(
		assign.Options{Node: opts.NodeName, Resources: res, GPUs: p.currentGPUs, Clock: deps.Clock},
		source, p.resources, p.tracker, p.store, p.cdi, assign.NewMetrics(deps.Registry, opts.ShareResource, opts.GPUResource))
	p.reconciler = assign.NewReconciler(p.assigner, deps.Clock)
	if p.learnt == nil {
		p.learnt = p.reconciler.Done()
	}
	p.monitor = health.New(deps.Library, health.Options{ApplicationXIDs: xids, RecoveryPeriod: opts.HealthRecoveryPeriod},
		opts.HealthCheckInterval, opts.FailOnInitError, deps.Clock, health.NewMetrics(deps.Registry))
	p.publisher = inventory.NewPublisher(deps.Client, opts.NodeName, deps.Clock)
	log := klog.FromContext(ctx)
	p.share = kubelet.NewServer(opts.ShareResource, p.assigner, log, deps.Clock, kubeletMetrics)
	p.gpu = kubelet.NewServer(opts.GPUResource, p.assigner, log, deps.Clock, kubeletMetrics)
	p.registrar = kubelet.NewRegistrar(opts.DevicePluginDir, p.gate, deps.Clock, kubeletMetrics, p.share, p.gpu)
	deps.Registry.MustRegister(&collector{p})
	return p, nil
}

// openLedger opens the ledger. If it was there and whole, it is true; else it
// has to be learnt from the kubelet before anything is given away.
func (p *Plugin) openLedger(ctx context.Context) error {
	store, err := ledger.Open(p.opts.ledgerFile())
	switch {
	case errors.Is(err, ledger.ErrCorrupt):
		klog.FromContext(ctx).Error(err, "Ledger begun anew; learning from the kubelet who holds devices")
	case err != nil:
		return err
	case store.Existed():
		whole := make(chan struct{})
		close(whole)
		p.learnt = whole
	}
	p.store = store
	return nil
}

func (p *Plugin) podSource(m *kubelet.Metrics) (assign.Pods, error) {
	if p.opts.PodSource == PodSourceKubelet {
		return p.pods, nil
	}
	informer, err := kubelet.NewInformer(p.deps.Client, p.opts.NodeName, p.tracker)
	if err != nil {
		return nil, err
	}
	p.informer = informer
	if p.opts.PodSource == PodSourceAPIServer {
		return informer, nil
	}
	return kubelet.NewEither(p.pods, informer, m), nil
}

// Run works until ctx ends or something fails for good; it returns after all
// that it started has ended.
func (p *Plugin) Run(ctx context.Context) error {
	defer func() { _, _, _ = p.pods.Close(), p.resources.Close(), p.store.Close() }()
	g, ctx := errgroup.WithContext(ctx)
	if p.deps.Simulation != nil {
		g.Go(func() error { return p.deps.Simulation(ctx) })
	}
	if p.informer != nil {
		g.Go(func() error { return p.informer.Run(ctx) })
	}
	if p.opts.PodSource != PodSourceAPIServer {
		g.Go(func() error { return p.pods.Follow(ctx, p.tracker) })
	}
	g.Go(func() error { return p.monitor.Run(ctx) })
	g.Go(func() error { return p.publisher.Run(ctx) })
	g.Go(func() error { return p.reconciler.Run(ctx, p.tracker.Changed()) })
	g.Go(func() error { return p.watchForeign(ctx) })
	g.Go(func() error { return p.registrar.Run(ctx) })
	g.Go(func() error { return p.conduct(ctx) })
	return g.Wait()
}

// conduct brings what is known of the GPUs to the kubelet and to the Node.
func (p *Plugin) conduct(ctx context.Context) error {
	var tried trial
	var retry <-chan time.Time
	learnt := p.learnt
	for {
		state, changed := p.monitor.State()
		moved, inventoryErr := p.publisher.Status()
		if inventoryErr == nil && p.markPublished() {
			p.registrar.Kick()
		}
		if state.Known {
			if err := p.advertise(ctx, state, &tried); err != nil {
				// A ledger or a CDI folder that cannot be written; the next
				// look tries again.
				klog.FromContext(ctx).Error(err, "GPUs not advertised; trying again")
				retry = p.deps.Clock.After(time.Second)
			}
		} else if state.Failure != nil {
			p.disown(ctx, state.Failure)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-moved:
		case <-p.nudge:
		case <-learnt:
			learnt = nil
			p.registrar.Kick()
		case <-retry:
			retry = nil
		}
	}
}

// markPublished notes that the inventory is on the Node, and says whether that
// is news.
func (p *Plugin) markPublished() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	news := !p.published
	p.published = true
	return news
}

// disown says of the GPUs that an earlier process put on the Node, before a
// reboot perhaps, that none of them works.
func (p *Plugin) disown(ctx context.Context, failure error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	earlier, ok := p.publisher.Earlier(ctx)
	if !ok || len(earlier.GPUs) == 0 {
		return
	}
	if err := p.publisher.Set(inventory.Unfit(earlier, failure.Error())); err != nil {
		klog.FromContext(ctx).Error(err, "Inventory not valid")
	}
}

// advertise tells the kubelet first, then the Node; see the package's comment.
func (p *Plugin) advertise(ctx context.Context, state health.State, tried *trial) error {
	objection := p.objection(ctx, state, tried)
	uuids := make([]contract.GPUUUID, 0, len(state.GPUs))
	gpus := make(map[contract.GPUUUID]assign.GPU, len(state.GPUs))
	list := make([]slice.GPU, 0, len(state.GPUs))
	for _, g := range state.GPUs {
		one := assign.GPU{Healthy: g.Healthy, Reason: g.Reason, Memory: g.Memory}
		if objection != "" && one.Healthy {
			one.Healthy, one.Reason = false, objection
		}
		uuids = append(uuids, g.UUID)
		gpus[g.UUID] = one
		list = append(list, slice.GPU{UUID: g.UUID, Healthy: one.Healthy})
	}
	// In the ledger first: should we be killed now, the next process must not
	// take these devices for another plugin's.
	if err := p.store.Update(func(st *ledger.State) bool { return st.Advertised(uuids...) }); err != nil {
		return err
	}
	p.mu.Lock()
	p.gpus = gpus
	p.mu.Unlock()
	if err := p.assigner.WriteCDI(); err != nil {
		return err
	}
	p.share.SetDevices(slice.Shares(list, p.opts.resources().PerGPU))
	p.gpu.SetDevices(slice.Whole(list))
	return p.publisher.Set(inventory.Build(state, p.opts.resources().PerGPU, tried.isolation, objection))
}

func (p *Plugin) currentGPUs() map[contract.GPUUUID]assign.GPU {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gpus
}

// objection says why no GPU may take pods although it works; empty if it may.
func (p *Plugin) objection(ctx context.Context, state health.State, tried *trial) string {
	tried.decide(ctx, p, state)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused = tried.refused
	switch {
	case p.foreign != nil:
		return p.foreign.Error()
	case p.refused != nil:
		return p.refused.Error()
	}
	return ""
}

// trial is the last finding on memory limits; it holds as long as driver and
// GPUs stay the same.
type trial struct {
	driver    string
	gpus      []contract.GPUUUID
	isolation contract.Isolation
	refused   error
}

func (t *trial) decide(ctx context.Context, p *Plugin, state health.State) {
	var fit []contract.GPUUUID
	for _, g := range state.GPUs {
		if g.Healthy {
			fit = append(fit, g.UUID)
		}
	}
	if t.isolation != "" && t.driver == state.Driver && (slices.Equal(fit, t.gpus) || len(fit) == 0) {
		return
	}
	mode := isolation.Mode(p.opts.Isolation)
	found, err := isolation.Decide(mode, isolation.Node{
		Driver: state.Driver, GPUs: fit, CgroupRoot: p.opts.CgroupRoot, Limits: p.deps.Library,
		NVIDIAKind: p.opts.NVIDIACDIKind, CDIDirs: p.opts.NVIDIACDIDirs,
	})
	*t = trial{driver: state.Driver, gpus: fit, isolation: found}
	switch {
	case err != nil && mode == isolation.ModeCgroup:
		t.refused = fmt.Errorf("--isolation=cgroup: %w", err)
		klog.FromContext(ctx).Error(t.refused, "No GPU takes pods, because memory limits were demanded")
	case err != nil:
		klog.FromContext(ctx).Info("GPU memory limits are not enforced on this node", "reason", err.Error())
	default:
		klog.FromContext(ctx).Info("Decided on GPU memory limits", "isolation", found)
	}
	p.cdi.Enforce(found.Enforced())
}

// watchForeign asks the kubelet about other plugins: before ours are
// registered, when finding one ends the program, and ever after.
func (p *Plugin) watchForeign(ctx context.Context) error {
	log := klog.FromContext(ctx)
	pause, quick := 100*time.Millisecond, 0
	complained := ""
	for {
		err := kubelet.CheckForeign(ctx, p.resources, p.opts.GPUResource, p.wasOurs)
		var foreign *kubelet.ForeignError
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // asked to stop
		case errors.As(err, &foreign):
			if !p.isChecked() {
				p.event(ctx, "ForeignDevicePlugin", foreign.Error())
				return foreign
			}
			p.setForeign(ctx, foreign)
			pause = foreignEvery
		case err != nil:
			if err.Error() != complained && !p.isChecked() {
				complained = err.Error()
				log.Info("Waiting for the kubelet, to ask whether another device plugin offers the same GPUs", "err", err)
			}
			pause = min(2*pause, foreignEvery)
		default:
			p.setForeign(ctx, nil)
			pause = foreignEvery
		}
		if quick > 0 {
			quick--
			pause = suspiciousEvery
		}
		select {
		case <-ctx.Done():
			return nil
		case <-p.registrar.Neighbour():
			quick = suspicious
		case <-p.deps.Clock.After(pause):
		}
	}
}

// wasOurs says whether a GPU is or was offered by this node's plugin.
func (p *Plugin) wasOurs(gpu contract.GPUUUID) bool {
	if p.store.State().WasAdvertised(gpu) {
		return true
	}
	_, ours := p.currentGPUs()[gpu]
	return ours
}

func (p *Plugin) isChecked() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.checked
}

// setForeign takes in whether another plugin offers our GPUs. While one does,
// our whole-GPU resource is withdrawn: the kubelet keeps one list per resource,
// and a list of ours would hide the other's.
func (p *Plugin) setForeign(ctx context.Context, foreign *kubelet.ForeignError) {
	p.mu.Lock()
	was, first := p.foreign, !p.checked
	p.checked = true
	p.foreign = nil
	if foreign != nil {
		p.foreign = foreign
	}
	p.mu.Unlock()
	if (was == nil) == (foreign == nil) && !first {
		return
	}
	if foreign != nil {
		klog.FromContext(ctx).Error(foreign, "No GPU takes pods until the other device plugin is gone")
		p.event(ctx, "ForeignDevicePlugin", foreign.Error())
	} else if was != nil {
		klog.FromContext(ctx).Info("The other device plugin is gone")
	}
	p.registrar.Withdraw(p.opts.GPUResource, foreign != nil)
	select {
	case p.nudge <- struct{}{}:
	default:
	}
}

// gate says why nothing may be registered yet.
func (p *Plugin) gate(context.Context) error {
	state, _ := p.monitor.State()
	p.mu.Lock()
	checked, published, refused := p.checked, p.published, p.refused
	p.mu.Unlock()
	switch {
	case !state.Known:
		return errors.New("the GPUs are not known yet")
	case !checked:
		return errors.New("the kubelet has not said yet whether another device plugin offers the same GPUs")
	case !published:
		return errors.New("the inventory is not on the Node yet")
	case refused != nil:
		return refused
	}
	select {
	case <-p.learnt:
		return nil
	default:
		return errors.New("the ledger is being learnt from the kubelet")
	}
}
