package assign

import (
	"cmp"
	"slices"

	"github.com/tranche-dev/tranche/nodeplugin/ledger"
	"github.com/tranche-dev/tranche/nodeplugin/slice"
	"github.com/tranche-dev/tranche/pkg/contract"
)

// candidate is a container for which the kubelet may be asking.
type candidate struct {
	pod       *Pod
	container string
	// forgotten: the ledger has devices for it, but the kubelet offers them as
	// free. It was killed after we answered and before it wrote that down.
	forgotten bool
}

// question is what the kubelet asks: so many devices of a resource.
type question struct {
	resource string
	size     int
	// available are free in the kubelet's eyes, must included; must were
	// handed on by an init container of the same pod. Both sorted.
	available, must []contract.DeviceID
}

// candidates returns the containers for which the kubelet may be asking, the
// likeliest first: of pods that it has not begun with, of those that it has or
// never may, then what it has forgotten, at last those that were refused;
// within each the oldest pod first, which is the kubelet's own order.
func candidates(pods []Pod, st ledger.State, q question, resources []string) []candidate {
	if len(q.must) > 0 {
		pods = owners(pods, st, q)
	}
	var cs []candidate
	for i := range pods {
		p := &pods[i]
		if p.Ended {
			continue
		}
		if name, resource, ok := p.next(st, resources); ok && resource == q.resource && p.Wants[name][resource] == q.size {
			cs = append(cs, candidate{pod: p, container: name})
		}
		if name, ok := forgotten(p, st, q); ok {
			cs = append(cs, candidate{pod: p, container: name, forgotten: true})
		}
	}
	slices.SortStableFunc(cs, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.rank(), b.rank()), a.pod.Created.Compare(b.pod.Created),
			cmp.Compare(a.pod.Namespace, b.pod.Namespace), cmp.Compare(a.pod.Name, b.pod.Name))
	})
	return cs
}

func (c candidate) rank() int {
	switch {
	case c.pod.Rejected:
		return 3
	case c.forgotten:
		return 2
	case c.pod.Started, c.pod.Deleting:
		return 1
	default:
		return 0
	}
}

// owners returns the pods that hold what the answer must include.
func owners(pods []Pod, st ledger.State, q question) []Pod {
	holders := st.Holders(q.resource)
	var mine []Pod
	for _, p := range pods {
		if slices.ContainsFunc(q.must, func(id contract.DeviceID) bool {
			h, held := holders[id.String()]
			return held && h.Pod.UID == p.UID
		}) {
			mine = append(mine, p)
		}
	}
	return mine
}

// forgotten returns the first container of the pod whose devices the kubelet
// offers as free. Later ones it has forgotten too, but it asks in order.
func forgotten(p *Pod, st ledger.State, q question) (string, bool) {
	held := st.Pod(p.UID)
	if held == nil {
		return "", false
	}
	for _, r := range p.Roles {
		c, ok := held.Containers[r.Name]
		if !ok || c.Resource != q.resource || len(c.IDs) != q.size || p.Wants[r.Name][q.resource] != q.size {
			continue
		}
		ids, err := slice.Parse(c.IDs)
		if err == nil && !slices.ContainsFunc(ids, func(id contract.DeviceID) bool {
			_, free := slices.BinarySearchFunc(q.available, id, slice.Compare)
			return !free
		}) {
			return r.Name, true
		}
	}
	return "", false
}

// likeliest returns the candidates of the best rank.
func likeliest(cs []candidate) []candidate {
	n := 0
	for n < len(cs) && cs[n].rank() == cs[0].rank() {
		n++
	}
	return cs[:n]
}

// gpusOf returns the GPUs of grants, sorted.
func gpusOf(grants []contract.Grant) []contract.GPUUUID {
	gpus := make([]contract.GPUUUID, 0, len(grants))
	for _, g := range grants {
		gpus = append(gpus, g.GPU)
	}
	slices.Sort(gpus)
	return gpus
}

// free returns which of q's available devices the candidate may have: not those
// that somebody else holds, by the ledger, nor another container of its own pod
// that keeps them.
func free(c candidate, st ledger.State, q question) []contract.DeviceID {
	holders := st.Holders(q.resource)
	var ids []contract.DeviceID
	for _, id := range q.available {
		if h, held := holders[id.String()]; !held || mayShare(h, c.pod, c.container) {
			ids = append(ids, id)
		}
	}
	return ids
}

// mayShare says whether a container may get a device that h holds: the
// container itself, once more, or one that follows an init container of its
// pod, which has ended by then.
func mayShare(h ledger.Holder, pod *Pod, container string) bool {
	return h.Pod.UID == pod.UID && (h.Container == container || pod.role(h.Container) == contract.RoleInit)
}
