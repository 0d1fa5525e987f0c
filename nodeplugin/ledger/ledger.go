// Package ledger is the node plugin's own book of who holds which devices. The
// kubelet keeps one too, but it does not know that shares and whole GPUs are
// the same hardware, what a pod planned in memory really takes, or, for a
// moment, what it has just handed out (kubernetes/kubernetes#137534).
//
// State is the book: plain values, no I/O, owned by one goroutine at a time.
// Store keeps it in a file, so that it survives kill -9: whoever was answered
// is in the file before the answer left.
package ledger

import (
	"cmp"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/nodeplugin/slice"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

// Container is what one container of a pod holds.
type Container struct {
	// Resource is the one that the kubelet counts.
	Resource string `json:"resource"`
	// IDs are sorted by GPU and number.
	IDs []string `json:"ids"`
	// Grants say what the container may use, one Grant per GPU of its IDs.
	Grants []contract.Grant `json:"grants"`
	// Since is when it was written, in RFC 3339, for people who read the file.
	Since string `json:"since,omitempty"`
}

// Pod is a pod of which at least one container holds devices.
type Pod struct {
	UID       types.UID `json:"uid"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	// Roles and Planned are the pod's containers and its whole plan. They make
	// the charge of the containers that the kubelet has not come to yet.
	Roles   []contract.ContainerRole    `json:"roles"`
	Planned map[string][]contract.Grant `json:"planned,omitempty"`
	// Containers hold devices.
	Containers map[string]Container `json:"containers"`
	// GraceSeconds is how long the pod may take to stop.
	GraceSeconds int64 `json:"graceSeconds,omitempty"`
}

// Charges returns what the pod costs on each GPU: what its containers hold,
// and for the others what is planned.
func (p *Pod) Charges() map[contract.GPUUUID]units.Shares {
	plan := contract.Plan{Containers: maps.Clone(p.Planned)}
	if plan.Containers == nil {
		plan.Containers = map[string][]contract.Grant{}
	}
	for name, c := range p.Containers {
		plan.Containers[name] = c.Grants
	}
	return plan.Charges(p.Roles)
}

// Role returns a container's role; RoleApp if it is not known.
func (p *Pod) Role(container string) contract.Role {
	for _, r := range p.Roles {
		if r.Name == container {
			return r.Role
		}
	}
	return contract.RoleApp
}

// clone copies p so deeply that Put and Release on the copy leave p alone.
// Containers and Grants are never changed in place, so they are shared.
func (p *Pod) clone() *Pod {
	c := *p
	c.Containers = maps.Clone(p.Containers)
	return &c
}

// State is the book. The zero State is empty.
type State struct {
	pods map[types.UID]*Pod
	// gpus are all that this node's plugin has ever advertised.
	gpus map[contract.GPUUUID]bool
}

// Clone returns a copy; changing it leaves s alone.
func (s State) Clone() State {
	c := State{pods: make(map[types.UID]*Pod, len(s.pods)), gpus: maps.Clone(s.gpus)}
	for uid, p := range s.pods {
		c.pods[uid] = p.clone()
	}
	return c
}

// Pods returns all pods, sorted by namespace, name and UID. They must not be
// changed.
func (s State) Pods() []*Pod {
	return slices.SortedFunc(maps.Values(s.pods), func(a, b *Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
}

// Pod returns one pod, nil if it holds nothing. It must not be changed.
func (s State) Pod(uid types.UID) *Pod { return s.pods[uid] }

// Holds says whether the container of the pod holds devices of the resource.
func (s State) Holds(uid types.UID, container, resource string) bool {
	p := s.pods[uid]
	if p == nil {
		return false
	}
	c, ok := p.Containers[container]
	return ok && c.Resource == resource
}

// Holder is a container that holds a device.
type Holder struct {
	Pod       *Pod
	Container string
}

// Holders finds who holds devices of a resource. A device that an init
// container passed on to a later container of its pod has both; the last one
// in the pod's order is returned.
func (s State) Holders(resource string) map[string]Holder {
	holders := map[string]Holder{}
	for _, p := range s.Pods() {
		for _, name := range p.order() {
			if c := p.Containers[name]; c.Resource == resource {
				for _, id := range c.IDs {
					holders[id] = Holder{p, name}
				}
			}
		}
	}
	return holders
}

// order lists the containers that hold something in the pod's order.
func (p *Pod) order() []string {
	names := slices.Sorted(maps.Keys(p.Containers))
	at := func(name string) int {
		return slices.IndexFunc(p.Roles, func(r contract.ContainerRole) bool { return r.Name == name })
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(at(a), at(b)) })
	return names
}

// Charged sums the charges of all pods but one on each GPU.
func (s State) Charged(except types.UID) map[contract.GPUUUID]units.Shares {
	sum := map[contract.GPUUUID]units.Shares{}
	for uid, p := range s.pods {
		if uid == except {
			continue
		}
		for gpu, shares := range p.Charges() {
			sum[gpu] += shares
		}
	}
	return sum
}

// Put records that a container holds devices, in place of what was recorded of
// it before. about says what is known of its pod; its Containers are ignored.
func (s *State) Put(about Pod, container string, c Container) {
	p := s.pods[about.UID]
	if p == nil {
		about.Containers = map[string]Container{}
		p = &about
	} else {
		about.Containers = maps.Clone(p.Containers)
		p = &about
	}
	p.Containers[container] = c
	if s.pods == nil {
		s.pods = map[types.UID]*Pod{}
	}
	s.pods[about.UID] = p
}

// Drop forgets what a container holds. A pod of which no container holds
// anything is forgotten as a whole: it is charged again when it is served.
func (s *State) Drop(uid types.UID, container string) {
	p := s.pods[uid]
	if p == nil {
		return
	}
	p = p.clone()
	delete(p.Containers, container)
	s.pods[uid] = p
	if len(p.Containers) == 0 {
		delete(s.pods, uid)
	}
}

// Release forgets a pod and says whether it was known.
func (s *State) Release(uid types.UID) bool {
	_, known := s.pods[uid]
	delete(s.pods, uid)
	return known
}

// Advertised records GPUs and says whether any was new.
func (s *State) Advertised(gpus ...contract.GPUUUID) bool {
	news := false
	for _, g := range gpus {
		if !s.gpus[g] {
			if s.gpus == nil {
				s.gpus = map[contract.GPUUUID]bool{}
			}
			s.gpus[g], news = true, true
		}
	}
	return news
}

// WasAdvertised says whether the plugin has ever advertised the GPU here.
func (s State) WasAdvertised(gpu contract.GPUUUID) bool { return s.gpus[gpu] }

// GrantsFor makes the Grants of a container that holds ids, from its plan: each
// device's GPU with the plan's shares, but never less than the devices that
// lie on it. A GPU that is not in the plan gets its devices only: the kubelet
// gave them, so they are used.
func GrantsFor(ids []contract.DeviceID, planned []contract.Grant, sharesPerDevice units.Shares) []contract.Grant {
	count := slice.CountByGPU(ids)
	grants := make([]contract.Grant, 0, len(count))
	for _, gpu := range slices.Sorted(maps.Keys(count)) {
		g := contract.Grant{GPU: gpu}
		for _, p := range planned {
			if p.GPU == gpu {
				g = p
			}
		}
		g.Shares = max(g.Shares, units.Shares(count[gpu])*sharesPerDevice)
		grants = append(grants, g)
	}
	return grants
}
