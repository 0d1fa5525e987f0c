package assign

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/tranche-dev/tranche/nodeplugin/ledger"
	"github.com/tranche-dev/tranche/nodeplugin/slice"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

const (
	// settleFor gathers changes that come together, such as the status updates
	// of a starting pod, into one pass.
	settleFor = 100 * time.Millisecond
	// retryEvery and passEvery are the time to the next pass after one that
	// failed or left something to do, and after one that did not.
	retryEvery = time.Second
	passEvery  = 30 * time.Second
	// verifyEvery is how often all pods are compared with the kubelet's
	// records once more.
	verifyEvery = 5 * time.Minute
	// getsPerPass and getPause keep the kubelet's limit, 100 a second in bursts
	// of 10, from being used up here: an admission that comes in between needs
	// some of it.
	getsPerPass = 20
	getPause    = 20 * time.Millisecond
)

// Reconciler keeps the ledger true to what the kubelet does: it releases pods
// that are gone, learns of pods that hold devices and are not in the ledger
// (because the file was lost), and adopts what the kubelet recorded otherwise.
// It asks about one pod at a time, outside of admissions: a List of pod-resources
// in the middle of one makes the kubelet lose devices
// (kubernetes/kubernetes#137534).
type Reconciler struct {
	a     *Assigner
	clock clock.WithTicker
	// verified pods have been compared with the kubelet's records. Only Pass
	// uses it.
	verified map[types.UID]bool
	since    time.Time
	done     chan struct{} // closed after the first complete pass
}

// NewReconciler returns a Reconciler of a's ledger.
func NewReconciler(a *Assigner, c clock.WithTicker) *Reconciler {
	return &Reconciler{a: a, clock: c, verified: map[types.UID]bool{}, done: make(chan struct{})}
}

// Done is closed once the ledger has been compared with the kubelet for the
// first time.
func (r *Reconciler) Done() <-chan struct{} { return r.done }

// Run makes a pass whenever changed says so, and now and then, until ctx ends.
func (r *Reconciler) Run(ctx context.Context, changed <-chan struct{}) error {
	log := klog.FromContext(ctx)
	complained := ""
	for {
		wait := passEvery
		switch again, err := r.Pass(ctx); {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // asked to stop
		case err != nil:
			wait = retryEvery
			if err.Error() != complained {
				complained = err.Error()
				log.Info("Ledger not compared with the kubelet yet; trying again", "reason", complained)
			}
		case again:
			wait = retryEvery
		default:
			complained = ""
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.clock.After(wait):
		case <-changed:
			select {
			case <-ctx.Done():
				return nil
			case <-r.clock.After(settleFor):
			}
		}
	}
}

// learnt is what the kubelet has recorded for a pod: by container and resource.
type learnt struct {
	pod     *Pod
	devices map[string]map[string][]string
}

// Pass compares the ledger with the kubelet once. again says that there was
// more to compare than one pass may ask for.
func (r *Reconciler) Pass(ctx context.Context) (again bool, err error) {
	if now := r.clock.Now(); now.Sub(r.since) > verifyEvery {
		r.since = now
		clear(r.verified)
	}
	// The book first: a pod that is admitted after it was read may be missing
	// in the list, but is not in the book either.
	st := r.a.store.State()
	list, err := r.a.pods.Pods(ctx)
	if err != nil {
		return true, fmt.Errorf("list of pods: %w", err)
	}
	pods := views(list.Pods, r.a.opts.Node, r.a.opts.Resources)
	gone := departed(pods, st, r.a.liveness, list.FromKubelet)
	records, again, recordErr := r.records(ctx, pods, st)
	if ctx.Err() != nil {
		return true, ctx.Err()
	}
	err = r.a.store.Update(func(st *ledger.State) bool {
		changed := r.releaseDeparted(ctx, gone, st)
		told := make(map[types.UID]map[string]map[string][]string, len(records))
		for _, l := range records {
			told[l.pod.UID] = l.devices
		}
		for _, l := range records {
			changed = r.adopt(ctx, l, told, st) || changed
		}
		return changed
	})
	if err != nil {
		clear(r.verified) // nothing of it was written
	}
	r.report(ctx, r.a.store.State())
	err = errors.Join(recordErr, err, r.a.WriteCDI())
	if err == nil && !again {
		select {
		case <-r.done:
		default:
			close(r.done)
		}
	}
	return again, err
}

// records asks the kubelet about pods that have not been compared yet.
func (r *Reconciler) records(ctx context.Context, pods []Pod, st ledger.State) (got []learnt, again bool, err error) {
	listed := make(map[types.UID]bool, len(pods))
	asked := 0
	for i := range pods {
		p := &pods[i]
		listed[p.UID] = true
		// Pods that the kubelet has not begun with are being admitted, or will
		// be; the Assigner writes them down.
		if p.Ended || r.verified[p.UID] || (!p.Started && st.Pod(p.UID) == nil) {
			continue
		}
		if asked == getsPerPass {
			again = true
			break
		}
		if asked > 0 {
			select {
			case <-ctx.Done():
				return nil, true, ctx.Err()
			case <-r.clock.After(getPause):
			}
		}
		asked++
		devices, err := r.a.devices.Devices(ctx, p.Namespace, p.Name)
		if errors.Is(err, ErrPodUnknown) {
			continue // the API server's list is ahead of the kubelet
		}
		if err != nil {
			return got, true, fmt.Errorf("kubelet's record of pod %s/%s: %w", p.Namespace, p.Name, err)
		}
		got = append(got, learnt{p, devices})
	}
	maps.DeleteFunc(r.verified, func(uid types.UID, _ bool) bool { return !again && !listed[uid] })
	return got, again, nil
}

func (r *Reconciler) releaseDeparted(ctx context.Context, gone []types.UID, st *ledger.State) bool {
	changed := false
	for _, uid := range gone {
		p := st.Pod(uid)
		if p == nil {
			continue // the Assigner was faster
		}
		klog.FromContext(ctx).V(2).Info("Released devices", "pod", klog.KRef(p.Namespace, p.Name), "podUID", uid)
		st.Release(uid)
		r.a.metrics.released.Inc()
		changed = true
	}
	return changed
}

// adopt writes what the kubelet recorded of a pod into the ledger. told is what
// it recorded of all pods that this pass asked about.
func (r *Reconciler) adopt(ctx context.Context, l learnt, told map[types.UID]map[string]map[string][]string, st *ledger.State) bool {
	log := klog.FromContext(ctx).WithValues("pod", klog.KRef(l.pod.Namespace, l.pod.Name), "podUID", l.pod.UID)
	changed, complete := false, true
	for _, role := range l.pod.Roles {
		for _, resource := range r.a.resources() {
			if l.pod.Wants[role.Name][resource] == 0 {
				continue
			}
			planned := l.pod.Plan[role.Name]
			if role.Role == contract.RoleInit {
				// The kubelet does not say; a pod that has been admitted has its
				// plan's, of which only the charge matters.
				if l.pod.Started && !st.Holds(l.pod.UID, role.Name, resource) && len(planned) > 0 {
					st.Put(l.pod.record(), role.Name, ledger.Container{Resource: resource, Grants: planned})
					changed = true
				}
				continue
			}
			ids, err := slice.Parse(l.devices[role.Name][resource])
			if err != nil {
				log.Error(err, "Kubelet has recorded devices that are not ours", "containerName", role.Name, "resource", resource)
				continue
			}
			if len(ids) == 0 {
				complete = false
				continue
			}
			if p := st.Pod(l.pod.UID); p != nil && st.Holds(l.pod.UID, role.Name, resource) && slices.Equal(p.Containers[role.Name].IDs, slice.Strings(ids)) {
				continue
			}
			r.evict(ctx, l.pod, resource, slice.Strings(ids), told, st)
			st.Put(l.pod.record(), role.Name, ledger.Container{
				Resource: resource, IDs: slice.Strings(ids), Since: r.clock.Now().UTC().Format(time.RFC3339),
				Grants: ledger.GrantsFor(ids, planned, r.a.sharesPerDevice(resource)),
			})
			changed = true
			r.a.metrics.relearnt.Inc()
			if onPlan(ids, planned) {
				log.Info("Learnt from the kubelet who holds devices", "containerName", role.Name, "resource", resource, "devices", summary(ids))
				continue
			}
			r.a.metrics.mismatches.Inc()
			log.Info("Kubelet gave other GPUs than planned; adopted", "containerName", role.Name, "resource", resource,
				"planned", gpusOf(planned), "devices", summary(ids))
		}
	}
	if complete {
		r.verified[l.pod.UID] = true
	}
	return changed
}

// evict drops entries of devices which the kubelet recorded for pod, of other
// pods that it recorded nothing for: it asked for pod when we took it for the
// other, which waits still and would be charged twice. Where the kubelet itself
// recorded devices for both, both stay, and report complains.
func (r *Reconciler) evict(ctx context.Context, pod *Pod, resource string, ids []string, told map[types.UID]map[string]map[string][]string, st *ledger.State) {
	for _, p := range st.Pods() {
		if p.UID == pod.UID || r.verified[p.UID] {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(p.Containers)) {
			c := p.Containers[name]
			if len(told[p.UID][name][resource]) > 0 {
				continue // corrected in its own turn, if need be
			}
			if c.Resource == resource && slices.ContainsFunc(c.IDs, func(id string) bool { return slices.Contains(ids, id) }) {
				klog.FromContext(ctx).Info("Kubelet gave devices to another pod than we thought", "resource", resource,
					"thought", klog.KRef(p.Namespace, p.Name), "pod", klog.KRef(pod.Namespace, pod.Name))
				st.Drop(p.UID, name)
			}
		}
	}
}

// report says whether any GPU is charged beyond its shares.
func (r *Reconciler) report(ctx context.Context, st ledger.State) {
	var over units.Shares
	for gpu, charged := range st.Charged("") {
		if excess := charged - r.a.opts.Resources.PerGPU; excess > 0 {
			over += excess
			klog.FromContext(ctx).Error(nil, "GPU is charged beyond its shares", "gpu", gpu, "charged", charged, "users", users(st, gpu, &Pod{}))
		}
	}
	r.a.metrics.overcommitted.Set(float64(over))
}
