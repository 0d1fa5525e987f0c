package assign

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/tranche-dev/tranche/nodeplugin/cdi"
	"github.com/tranche-dev/tranche/nodeplugin/ledger"
	"github.com/tranche-dev/tranche/nodeplugin/slice"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

// Pods tells which pods the kubelet has at this moment, the one that it is
// admitting included. It answers in milliseconds or not at all.
type Pods interface {
	Pods(ctx context.Context) (PodList, error)
}

// PodList is a list of the node's pods.
type PodList struct {
	Pods []*corev1.Pod
	// FromKubelet lists have all pods that the kubelet has, and no other. Those
	// from the API server may be behind, and ahead, of the kubelet.
	FromKubelet bool
}

// Devices tells which devices the kubelet has recorded for a pod, by container
// and resource. Ordinary init containers are left out.
type Devices interface {
	// Devices returns ErrPodUnknown if the kubelet has not met the pod yet.
	Devices(ctx context.Context, namespace, name string) (map[string]map[string][]string, error)
}

// ErrPodUnknown says that the kubelet does not have the pod: it has not begun
// to admit it, or has finished with it.
var ErrPodUnknown = errors.New("the kubelet does not have the pod")

// Liveness knows about pods that the kubelet lists no longer.
type Liveness interface {
	// Lingers says whether containers of such a pod may still run: a pod that
	// is deleted by force leaves the list at once and its GPU later.
	// fromKubelet is that of the list in which it is missing.
	Lingers(p *ledger.Pod, fromKubelet bool) bool
}

// GPU is the state of a GPU at this moment.
type GPU struct {
	Healthy bool
	// Reason says why not.
	Reason string
	Memory units.MiB
}

// Options say for whom the Assigner works.
type Options struct {
	Node      string
	Resources contract.Resources
	// GPUs returns the GPUs that the kubelet was told of.
	GPUs  func() map[contract.GPUUUID]GPU
	Clock clock.PassiveClock
}

// Assigner answers the kubelet. Its methods are safe for concurrent use; they
// run one after the other, as the kubelet asks.
type Assigner struct {
	opts     Options
	pods     Pods
	devices  Devices
	liveness Liveness
	store    *ledger.Store
	cdi      *cdi.Writer
	metrics  *Metrics

	// turn holds a token while a call is in progress.
	turn chan struct{}
	// pending are preferences not yet followed by an Allocate, oldest first.
	// Guarded by turn.
	pending []pending
	// rejected are pods that the kubelet failed because we refused them, and
	// when: it asks for them no more. Guarded by turn.
	rejected map[types.UID]time.Time
}

// New returns an Assigner over a ledger.
func New(opts Options, pods Pods, devices Devices, liveness Liveness, store *ledger.Store, w *cdi.Writer, m *Metrics) *Assigner {
	return &Assigner{
		opts: opts, pods: pods, devices: devices, liveness: liveness, store: store, cdi: w, metrics: m,
		turn: make(chan struct{}, 1), rejected: map[types.UID]time.Time{},
	}
}

// pending is an answer to GetPreferredAllocation.
type pending struct {
	resource  string
	size      int
	candidate candidate
	// ids are what was preferred, sorted; empty if refusal says why nothing was.
	ids     []contract.DeviceID
	refusal *Refusal
	// view is what the answer was based on.
	view view
	at   time.Time
}

// The kubelet calls Allocate right after GetPreferredAllocation. What is older
// belongs to an admission that it gave up. Pods that were refused are Failed in
// all lists long before rejectedFor is over.
const (
	pendingFor  = 10 * time.Second
	maxPending  = 16
	rejectedFor = time.Minute
)

func (a *Assigner) resources() []string {
	return []string{string(a.opts.Resources.Share), string(a.opts.Resources.GPU)}
}

func (a *Assigner) take(ctx context.Context) error {
	select {
	case a.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (a *Assigner) release() { <-a.turn }

// view is what is known of the pods when a question is answered.
type view struct {
	pods []Pod
	st   ledger.State
	// gone pods are in the ledger still, but use nothing any more.
	gone []types.UID
	// fromKubelet is the list's.
	fromKubelet bool
}

// look asks for the pods and leaves out of the ledger those that are gone.
func (a *Assigner) look(ctx context.Context) (view, error) {
	// The book first: whoever is in it was admitted before the list was made,
	// so that a pod which is not in the list is one that has left.
	v := view{st: a.store.State()}
	list, err := a.pods.Pods(ctx)
	if err != nil {
		return view{}, err
	}
	v.fromKubelet = list.FromKubelet
	v.pods = views(list.Pods, a.opts.Node, a.opts.Resources)
	for i := range v.pods {
		at, rejected := a.rejected[v.pods[i].UID]
		v.pods[i].Rejected = rejected && a.opts.Clock.Since(at) < rejectedFor
	}
	v.gone = departed(v.pods, v.st, a.liveness, list.FromKubelet)
	for _, uid := range v.gone {
		v.st.Release(uid)
	}
	return v, nil
}

func views(list []*corev1.Pod, node string, res contract.Resources) []Pod {
	pods := make([]Pod, 0, len(list))
	for _, p := range list {
		if v, ok := PodOf(p, node, res); ok {
			pods = append(pods, v)
		}
	}
	return pods
}

// departed returns the pods of the ledger that use nothing any more.
func departed(pods []Pod, st ledger.State, alive Liveness, fromKubelet bool) []types.UID {
	listed := make(map[types.UID]bool, len(pods)) // to whether it has ended
	for i := range pods {
		listed[pods[i].UID] = pods[i].Ended
	}
	var gone []types.UID
	for _, p := range st.Pods() {
		over, ok := listed[p.UID]
		if over || (!ok && !alive.Lingers(p, fromKubelet)) {
			gone = append(gone, p.UID)
		}
	}
	return gone
}

// Preferred returns the devices that the kubelet should give to whom it asks
// for, or none: then it takes any, and Allocate says what is wrong. It never
// fails, for a failure would make the kubelet lose devices
// (kubernetes/kubernetes#130145).
func (a *Assigner) Preferred(ctx context.Context, resource string, available, must []string, size int) []string {
	log := klog.FromContext(ctx).WithValues("resource", resource, "size", size)
	if err := a.take(ctx); err != nil {
		return nil
	}
	defer a.release()
	ids, outcome := a.preferred(ctx, resource, available, must, size)
	a.metrics.preferred(resource, outcome)
	log.V(2).Info("Preferred devices", "outcome", outcome, "devices", summary(ids))
	return slice.Strings(ids)
}

func (a *Assigner) preferred(ctx context.Context, resource string, available, must []string, size int) ([]contract.DeviceID, Outcome) {
	log := klog.FromContext(ctx)
	q := question{resource: resource, size: size}
	var err error
	if q.available, err = slice.Parse(available); err == nil {
		q.must, err = slice.Parse(must)
	}
	if err != nil {
		log.Error(err, "Kubelet offers devices that are not ours", "resource", resource)
		return nil, OutcomeForeignDevices
	}
	v, err := a.look(ctx)
	if err != nil {
		log.Error(err, "No list of pods to find out whose devices these are", "resource", resource)
		a.remember(pending{resource: resource, size: size, refusal: noPods(err)})
		return nil, OutcomeNoPods
	}
	c, refusal := a.identify(ctx, v, q)
	if refusal != nil {
		a.remember(pending{resource: resource, size: size, refusal: refusal})
		return nil, OutcomeUnknownPod
	}
	p := pending{resource: resource, size: size, candidate: c, view: v}
	defer func() { a.remember(p) }()
	if p.refusal = a.planFits(c, size, resource); p.refusal != nil {
		return nil, OutcomeNoPlan
	}
	ids, shortage := slice.Choose(gpusOf(c.pod.Plan[c.container]), free(c, v.st, q), q.must, size)
	if shortage != nil {
		// Who is in the way says more than how many devices are left.
		if p.refusal = a.checkCapacity(c, c.pod.Plan[c.container], v.st); p.refusal == nil {
			p.refusal = tooFew(c, resource, *shortage)
		}
		return nil, OutcomeShort
	}
	p.ids = ids
	return ids, OutcomePlanned
}

// remember keeps p for the Allocate that follows, and forgets what is stale.
func (a *Assigner) remember(p pending) {
	p.at = a.opts.Clock.Now()
	a.pending = slices.DeleteFunc(a.pending, func(o pending) bool { return p.at.Sub(o.at) > pendingFor })
	if len(a.pending) >= maxPending {
		a.pending = slices.Delete(a.pending, 0, 1)
	}
	a.pending = append(a.pending, p)
}

// identify finds out for which container q is asked.
func (a *Assigner) identify(ctx context.Context, v view, q question) (candidate, *Refusal) {
	cs := candidates(v.pods, v.st, q, a.resources())
	return a.decide(ctx, cs, q, v.fromKubelet)
}

// decide picks one of the candidates. If it is not plain which, the kubelet's
// records exclude those that have their devices, and those that it has not met
// yet: it admits one pod after the other, and a list from the API server, which
// is all there is while the kubelet takes up its first pods after a restart,
// has the later ones as well.
func (a *Assigner) decide(ctx context.Context, cs []candidate, q question, fromKubelet bool) (candidate, *Refusal) {
	log := klog.FromContext(ctx)
	for len(cs) > 0 {
		best := likeliest(cs)
		cs = cs[len(best):]
		// A pod that has just come, alone, is the one; any other may have had
		// its devices before the ledger began.
		if len(best) == 1 && best[0].rank() == 0 && fromKubelet {
			return best[0], nil
		}
		var open []candidate
		for _, c := range best {
			has, err := a.hasDevices(ctx, c, q.resource)
			if errors.Is(err, ErrPodUnknown) && !fromKubelet {
				continue
			}
			if err != nil {
				log.V(2).Info("Kubelet's record of a pod is missing", "pod", klog.KRef(c.pod.Namespace, c.pod.Name), "err", err)
			}
			if !has {
				open = append(open, c)
			}
		}
		if !fromKubelet {
			// Those that the kubelet has met and that have nothing have failed,
			// which the API server does not know yet, except the last it met.
			slices.Reverse(open)
		}
		if len(open) > 1 {
			a.metrics.ambiguous(q.resource)
			log.Info("Several containers may be the one that the kubelet asks for; taking the likeliest whose GPUs are free",
				"resource", q.resource, "size", q.size, "candidates", len(open))
		}
		for _, c := range open {
			if a.fitsAvailable(c, q) {
				return c, nil
			}
		}
		if len(open) > 0 {
			return open[0], nil
		}
	}
	return candidate{}, nobody(q)
}

// hasDevices says whether the kubelet has recorded devices for the container.
func (a *Assigner) hasDevices(ctx context.Context, c candidate, resource string) (bool, error) {
	recorded, err := a.devices.Devices(ctx, c.pod.Namespace, c.pod.Name)
	if err != nil {
		return false, err
	}
	// Of ordinary init containers the kubelet's answers say nothing.
	return len(recorded[c.container][resource]) > 0, nil
}

// fitsAvailable says whether the candidate's plan can be served from q. Without
// a list of free devices, in Allocate, everything can.
func (a *Assigner) fitsAvailable(c candidate, q question) bool {
	if a.planFits(c, q.size, q.resource) != nil {
		return false
	}
	if len(q.available) == 0 {
		return true
	}
	_, shortage := slice.Choose(gpusOf(c.pod.Plan[c.container]), q.available, q.must, q.size)
	return shortage == nil
}

// planFits checks a candidate's plan against what the kubelet asks for.
func (a *Assigner) planFits(c candidate, size int, resource string) *Refusal {
	if c.pod.Problem != "" {
		return refuse(ReasonUnplanned, "pod %s/%s %s", c.pod.Namespace, c.pod.Name, c.pod.Problem)
	}
	grants := c.pod.Plan[c.container]
	whole := resource == string(a.opts.Resources.GPU)
	switch {
	case len(grants) == 0:
		return refuse(ReasonUnplanned, "%s asks for %s, but its plan does not mention it. Delete the pod and create it anew", c.pod.label(c.container), resource)
	case size%len(grants) != 0, whole && size != len(grants):
		return refuse(ReasonUnplanned, "%s asks for %d of %s, which does not divide over the %d GPUs of its plan. Delete the pod and create it anew",
			c.pod.label(c.container), size, resource, len(grants))
	case whole && slices.ContainsFunc(grants, func(g contract.Grant) bool { return g.Shares != a.opts.Resources.PerGPU }):
		return refuse(ReasonUnplanned, "%s asks for whole GPUs, but its plan has parts of GPUs. Delete the pod and create it anew", c.pod.label(c.container))
	}
	return nil
}

// Allocate settles which container gets these devices and returns the CDI
// devices to give to it. It is in the ledger before Allocate returns.
func (a *Assigner) Allocate(ctx context.Context, resource string, devices []string) ([]string, *Refusal) {
	log := klog.FromContext(ctx).WithValues("resource", resource)
	if err := a.take(ctx); err != nil {
		return nil, refuse(ReasonInternal, "the node plugin is stopping; create the pod again")
	}
	defer a.release()
	c, grants, refusal := a.allocate(ctx, resource, devices)
	if refusal != nil {
		a.reject(c)
		a.metrics.refused(resource, refusal.Reason)
		log.Info("Refused devices", "reason", refusal.Reason, "message", refusal.Message)
		return nil, refusal
	}
	a.metrics.allocated(resource)
	log.V(2).Info("Gave devices", "pod", klog.KRef(c.pod.Namespace, c.pod.Name), "podUID", c.pod.UID,
		"containerName", c.container, "gpus", gpusOf(grants))
	return a.cdi.Names(grants), nil
}

// reject remembers that the kubelet will fail c's pod. It may have been another
// one that it asked for, so c only comes last from now on.
func (a *Assigner) reject(c candidate) {
	now := a.opts.Clock.Now()
	maps.DeleteFunc(a.rejected, func(_ types.UID, at time.Time) bool { return now.Sub(at) >= rejectedFor })
	if c.pod != nil {
		a.rejected[c.pod.UID] = now
	}
}

// allocate returns the candidate also with a refusal, where it is known.
func (a *Assigner) allocate(ctx context.Context, resource string, devices []string) (candidate, []contract.Grant, *Refusal) {
	var c candidate
	none := func(r *Refusal) (candidate, []contract.Grant, *Refusal) { return c, nil, r }
	// 1. The devices must be ours, each once, on GPUs that work.
	ids, err := slice.Parse(devices)
	if err != nil {
		return none(refuse(ReasonUnknownDevice, "the kubelet gave devices that this plugin does not offer: %v. Another device plugin offers %s too; "+
			"remove it from this node", err, resource))
	}
	if r := a.checkGPUs(ids); r != nil {
		return none(r)
	}
	// 2. Whose are they?
	c, v, r := a.settle(ctx, resource, ids)
	if r != nil {
		return c, nil, r
	}
	// 3. May that container have them? If not, because of somebody who may have
	// gone in the meantime, look again before saying so.
	grants := ledger.GrantsFor(ids, c.pod.Plan[c.container], a.sharesPerDevice(resource))
	if r := a.check(c, resource, ids, grants, v.st); r != nil {
		if v, err = a.look(ctx); err != nil {
			return none(r)
		}
		if r = a.check(c, resource, ids, grants, v.st); r != nil {
			return none(r)
		}
	}
	// 4. Write down, then answer. The CDI file comes first: a device too many
	// in it is harmless.
	record := ledger.Container{
		Resource: resource, IDs: slice.Strings(ids), Grants: grants, Since: a.opts.Clock.Now().UTC().Format(time.RFC3339),
	}
	if !a.cdi.Has(grants) {
		if err := a.writeCDI(v.st, grants); err != nil {
			return none(cannotSave(c, err))
		}
	}
	err = a.store.Update(func(st *ledger.State) bool {
		for _, uid := range v.gone {
			if st.Release(uid) {
				a.metrics.released.Inc()
			}
		}
		// Once more, now that nobody else can write: the reconciler may have
		// learnt of a holder in between.
		if r = a.check(c, resource, ids, grants, *st); r != nil {
			return len(v.gone) > 0
		}
		st.Put(c.pod.record(), c.container, record)
		return true
	})
	if err != nil {
		return none(cannotSave(c, err))
	}
	return c, grants, r
}

func (a *Assigner) sharesPerDevice(resource string) units.Shares {
	if resource == string(a.opts.Resources.GPU) {
		return a.opts.Resources.PerGPU
	}
	return 1
}

// checkGPUs refuses devices of GPUs that are unknown or unfit.
func (a *Assigner) checkGPUs(ids []contract.DeviceID) *Refusal {
	gpus := a.opts.GPUs()
	for _, id := range ids {
		g, ok := gpus[id.GPU]
		if !ok {
			return refuse(ReasonUnknownDevice, "the kubelet gave GPU %s, which this node does not have. Create the pod again", id.GPU)
		}
		if !g.Healthy {
			return refuse(ReasonUnhealthyGPU, "GPU %s is not fit for work (%s). Create the pod again; it will be placed on another GPU", id.GPU, g.Reason)
		}
	}
	return nil
}

// settle finds out for which container ids are.
func (a *Assigner) settle(ctx context.Context, resource string, ids []contract.DeviceID) (candidate, view, *Refusal) {
	q := question{resource: resource, size: len(ids)}
	asked, preferredElse := a.claim(resource, ids)
	// 1. What was preferred is what came: the normal case. It was decided
	// milliseconds ago, so the kubelet is not asked once more: it answers a
	// hundred questions a second at most.
	if asked != nil && asked.refusal == nil {
		return asked.candidate, asked.view, nil
	}
	v, err := a.look(ctx)
	if err != nil {
		return candidate{}, view{}, noPods(err)
	}
	// 2. Devices that an init container hands on come without being asked for.
	holders := v.st.Holders(resource)
	for _, id := range ids {
		h, held := holders[id.String()]
		if !held {
			continue
		}
		for i := range v.pods {
			p := &v.pods[i]
			name, r, more := p.next(v.st, a.resources())
			if p.UID == h.Pod.UID && more && r == resource && p.Wants[name][r] == len(ids) && mayShare(h, p, name) {
				return candidate{pod: p, container: name}, v, nil
			}
		}
	}
	// 3. Somebody whose plan these devices fulfil.
	q.available = ids // so that what the kubelet has forgotten is found
	cs := candidates(v.pods, v.st, q, a.resources())
	fits := slices.DeleteFunc(slices.Clone(cs), func(c candidate) bool {
		return a.planFits(c, q.size, resource) != nil || !onPlan(ids, c.pod.Plan[c.container])
	})
	c, r := a.decide(ctx, fits, q, v.fromKubelet)
	if r == nil {
		if preferredElse {
			a.metrics.swapped(resource)
		}
		return c, v, nil
	}
	// 4. Nobody: say why of whoever was asked for, else of whoever waits.
	switch {
	case asked != nil:
		c, r = asked.candidate, asked.refusal
	case len(likeliest(cs)) == 1:
		c = cs[0]
		if r = a.planFits(c, q.size, resource); r == nil {
			r = wrongGPU(c, ids)
		}
	}
	return c, v, r
}

// claim takes the pending preference that ids answer. asked is the one with
// exactly these ids, else one of the same size that was refused; otherPreferred
// says whether some other devices of that size were preferred.
func (a *Assigner) claim(resource string, ids []contract.DeviceID) (asked *pending, otherPreferred bool) {
	now := a.opts.Clock.Now()
	at := -1
	for i, p := range a.pending {
		if p.resource != resource || p.size != len(ids) || now.Sub(p.at) > pendingFor {
			continue
		}
		switch {
		case p.refusal != nil:
			if at < 0 || a.pending[at].refusal != nil {
				at = i
			}
		case slices.Equal(p.ids, ids):
			at = i
		default:
			otherPreferred = true
		}
	}
	if at < 0 {
		return nil, otherPreferred
	}
	p := a.pending[at]
	a.pending = slices.Delete(a.pending, at, at+1)
	return &p, otherPreferred
}

// onPlan says whether ids lie on exactly the GPUs of grants, equally many on
// each.
func onPlan(ids []contract.DeviceID, grants []contract.Grant) bool {
	count := slice.CountByGPU(ids)
	if len(count) != len(grants) {
		return false
	}
	for _, g := range grants {
		if count[g.GPU]*len(grants) != len(ids) {
			return false
		}
	}
	return true
}

// check says why the container may not have the devices.
func (a *Assigner) check(c candidate, resource string, ids []contract.DeviceID, grants []contract.Grant, st ledger.State) *Refusal {
	if r := a.planFits(c, len(ids), resource); r != nil {
		return r
	}
	if !onPlan(ids, c.pod.Plan[c.container]) {
		return wrongGPU(c, ids)
	}
	if r := a.checkCapacity(c, grants, st); r != nil {
		return r
	}
	holders := st.Holders(resource)
	for _, id := range ids {
		if h, held := holders[id.String()]; held && !mayShare(h, c.pod, c.container) {
			return refuse(ReasonDuplicateDevice, "%s would get device %s, which container %s of pod %s/%s holds and has not given back. Create the pod again",
				c.pod.label(c.container), id, h.Container, h.Pod.Namespace, h.Pod.Name)
		}
	}
	return nil
}

// checkCapacity refuses what would charge a GPU beyond its shares. The kubelet
// cannot see that: to it a whole GPU and its shares are different things, and
// of a request in memory it knows a lower bound.
func (a *Assigner) checkCapacity(c candidate, grants []contract.Grant, st ledger.State) *Refusal {
	others := st.Charged(c.pod.UID)
	with := st.Clone()
	with.Put(c.pod.record(), c.container, ledger.Container{Grants: grants})
	mine := with.Pod(c.pod.UID).Charges()
	for _, g := range grants {
		if others[g.GPU]+mine[g.GPU] > a.opts.Resources.PerGPU {
			return refuse(ReasonOverCapacity, "%s needs %d of %d shares of GPU %s, and %d are in use by %s. Create the pod again; it will be placed where there is room",
				c.pod.label(c.container), mine[g.GPU], a.opts.Resources.PerGPU, g.GPU, others[g.GPU], users(st, g.GPU, c.pod.UID))
		}
	}
	return nil
}

// users names the pods that are charged for a GPU.
func users(st ledger.State, gpu contract.GPUUUID, except types.UID) string {
	const most = 5
	var names []string
	for _, p := range st.Pods() {
		if p.UID != except && p.Charges()[gpu] > 0 {
			names = append(names, p.Namespace+"/"+p.Name)
		}
	}
	if len(names) > most {
		names = append(names[:most], fmt.Sprintf("%d others", len(names)-most))
	}
	return strings.Join(names, ", ")
}

// WriteCDI makes the CDI file hold what the GPUs and the ledger need.
func (a *Assigner) WriteCDI() error { return a.writeCDI(a.store.State(), nil) }

func (a *Assigner) writeCDI(st ledger.State, also []contract.Grant) error {
	var c cdi.Content
	sizes := map[units.MiB]bool{}
	for gpu, g := range a.opts.GPUs() {
		c.GPUs = append(c.GPUs, gpu)
		if g.Memory > 0 && !sizes[g.Memory] {
			sizes[g.Memory] = true
			for s := range a.opts.Resources.PerGPU {
				c.Memory = append(c.Memory, units.MemoryForShares(s+1, g.Memory, a.opts.Resources.PerGPU))
			}
		}
	}
	for _, p := range st.Pods() {
		for _, name := range slices.Sorted(maps.Keys(p.Containers)) {
			c.Add(p.Containers[name].Grants)
		}
	}
	if len(also) > 0 {
		c.Add(also)
	}
	return a.cdi.Write(c)
}

// summary shows devices in a log line: how many of each GPU.
func summary(ids []contract.DeviceID) string {
	count := slice.CountByGPU(ids)
	parts := make([]string, 0, len(count))
	for _, gpu := range slices.Sorted(maps.Keys(count)) {
		parts = append(parts, fmt.Sprintf("%s×%d", gpu, count[gpu]))
	}
	return strings.Join(parts, " ")
}
