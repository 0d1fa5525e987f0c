package assign

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tranche-dev/tranche/nodeplugin/ledger"
	"github.com/tranche-dev/tranche/nodeplugin/slice"
	"github.com/tranche-dev/tranche/pkg/contract"
)

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
			return refuse(ReasonDuplicateDevice, "%s would get device %s, which container %s of %s holds and has not given back. Create the pod again",
				c.pod.label(c.container), id, h.Container, c.pod.other(h.Pod, "pod "))
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
				c.pod.label(c.container), mine[g.GPU], a.opts.Resources.PerGPU, g.GPU, others[g.GPU], users(st, g.GPU, c.pod))
		}
	}
	return nil
}

// users names the pods that are charged for a GPU, as seen from pod, which is
// left out.
func users(st ledger.State, gpu contract.GPUUUID, pod *Pod) string {
	const most = 5
	var names []string
	for _, p := range st.Pods() {
		if p.UID != pod.UID && p.Charges()[gpu] > 0 {
			names = append(names, pod.other(p, ""))
		}
	}
	if len(names) > most {
		names = append(names[:most], fmt.Sprintf("%d others", len(names)-most))
	}
	return strings.Join(names, ", ")
}
