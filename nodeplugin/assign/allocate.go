package assign

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/tranche-dev/tranche/nodeplugin/cdi"
	"github.com/tranche-dev/tranche/nodeplugin/ledger"
	"github.com/tranche-dev/tranche/nodeplugin/slice"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

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
