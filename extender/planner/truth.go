package planner

import (
	"maps"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/units"
)

// This file follows the kubelet, which publishes the devices that it really
// gave to a pod's containers.

// shares are charges per GPU.
type shares = map[contract.GPUUUID]units.Shares

// swap is what the kubelet gave to pods of one node and the ledger has not
// adopted yet.
type swap struct {
	pods  map[types.UID]shares
	since time.Time
}

// swapWithin is how long the second half of a swap may stay out before the
// first is believed alone. A kubelet reports new containers every few seconds.
const swapWithin = 15 * time.Second

// observeDevices compares what the kubelet gave with what is charged.
func (s *state) observeDevices(log logr.Logger, pod *view.Pod, now time.Time) {
	n := s.ledger.Node(pod.Node)
	record, ok := s.ledger.Get(pod.UID)
	if !ok {
		return
	}
	if !n.Known() {
		if s.early[pod.Node] == nil {
			s.early[pod.Node] = map[types.UID]*view.Pod{}
		}
		s.early[pod.Node][pod.UID] = pod
		return
	}
	plan, legal := given(pod, n)
	if !legal {
		log.Error(nil, "Kubelet reports devices that its node does not have; the plan stays in force", "pod", klog.KRef(pod.Namespace, pod.Name), "node", pod.Node)
		return
	}
	charge := plan.Charges(pod.Roles)
	if maps.Equal(charge, sharesOf(record)) {
		s.forgetSwap(pod.Node, pod.UID)
		return
	}
	if s.swaps[pod.Node] == nil {
		s.swaps[pod.Node] = &swap{pods: map[types.UID]shares{}, since: now}
	}
	s.swaps[pod.Node].pods[pod.UID] = charge
	s.adopt(log, pod.Node, now, false)
}

// forgetEarly ends what a pod's kubelet has told before its node's inventory.
func (s *state) forgetEarly(uid types.UID) {
	r, ok := s.ledger.Get(uid)
	if !ok || s.early[r.Node] == nil {
		return
	}
	delete(s.early[r.Node], uid)
	if len(s.early[r.Node]) == 0 {
		delete(s.early, r.Node)
	}
}

// adopt makes the ledger follow the kubelet for all pods of a node at once.
// When two pods have got each other's GPUs, following one alone would count
// both on one GPU; so unless forced, it waits for a state that can be.
func (s *state) adopt(log logr.Logger, node string, now time.Time, forced bool) {
	w := s.swaps[node]
	if !forced && !s.possible(node, w) {
		return
	}
	delete(s.swaps, node)
	for _, uid := range slices.Sorted(maps.Keys(w.pods)) {
		if !s.ledger.Adopt(uid, w.pods[uid]) {
			continue
		}
		s.gain(node, now)
		record, _ := s.ledger.Get(uid)
		if record.Adopted() {
			s.p.metrics.PlanMismatches.Inc()
			log.Info("Kubelet gave a pod other GPUs than planned; the ledger follows", "pod", klog.KRef(record.Pod.Namespace, record.Pod.Name), "node", node)
		}
	}
	s.displace(log, node, now)
}

// possible says whether adopting all of w takes no GPU further beyond its
// shares than it is. Holds do not count: they give way.
func (s *state) possible(node string, w *swap) bool {
	n := s.ledger.Node(node)
	gpus := n.GPUs()
	for i := range gpus {
		g := &gpus[i]
		after := g.Allocated
		for uid, charge := range w.pods {
			if r, ok := s.ledger.Get(uid); ok {
				after += charge[g.Facts.UUID] - r.On(g.Facts.UUID)
			}
		}
		if after > max(n.SharesPerGPU(), g.Allocated) {
			return false
		}
	}
	return true
}

// settleSwaps believes what has waited for its other half too long.
func (s *state) settleSwaps(log logr.Logger, now time.Time) {
	for node, w := range s.swaps {
		if now.Sub(w.since) >= swapWithin {
			s.adopt(log, node, now, true)
		}
	}
}

func (s *state) forgetSwap(node string, uid types.UID) {
	if w := s.swaps[node]; w != nil {
		delete(w.pods, uid)
		if len(w.pods) == 0 {
			delete(s.swaps, node)
		}
	}
}

// displace ends holds on GPUs that turned out to be fuller than was known.
// Their pods are planned anew when they are bound.
func (s *state) displace(log logr.Logger, node string, now time.Time) {
	n := s.ledger.Node(node)
	gpus := n.GPUs()
	for i := range gpus {
		over := -gpus[i].Free
		if over <= 0 || gpus[i].Held == 0 {
			continue
		}
		for _, r := range n.Claims() {
			on := r.On(gpus[i].Facts.UUID)
			if r.State != ledger.Held || on == 0 || over <= 0 {
				continue
			}
			over -= on
			if _, held := s.ledger.Get(r.Pod.UID); held {
				s.endVacancy(r.Pod.UID)
				s.release(r.Pod.UID, now)
				s.p.metrics.HoldReleases.WithLabelValues("displaced").Inc()
				log.V(2).Info("Hold displaced", "pod", klog.KRef(r.Pod.Namespace, r.Pod.Name), "node", node)
			}
		}
	}
}

// given is the pod's plan with what the kubelet reports in the place of what
// was planned. It is legal if all devices are GPUs of the node.
func given(pod *view.Pod, n *ledger.NodeView) (plan contract.Plan, legal bool) {
	plan = pod.Planned()
	for name, d := range pod.Devices {
		if samePlaces(plan.Containers[name], d) {
			continue
		}
		grants, ok := grantsOf(pod, name, d, n)
		if !ok {
			return contract.Plan{}, false
		}
		plan.Containers[name] = grants
	}
	return plan, true
}

// samePlaces says whether the devices are on the planned GPUs.
func samePlaces(grants []contract.Grant, d view.Devices) bool {
	for _, g := range grants {
		if d.Count[g.GPU] == 0 {
			return false
		}
	}
	return len(grants) == len(d.Count)
}

// grantsOf says what a container's devices stand for. Shares asked for as
// memory differ from GPU to GPU, and the kubelet counts only a lower bound.
func grantsOf(pod *view.Pod, container string, d view.Devices, n *ledger.NodeView) ([]contract.Grant, bool) {
	demand, known := pod.Demand(container)
	var grants []contract.Grant
	for _, uuid := range slices.Sorted(maps.Keys(d.Count)) {
		gpus := n.GPUs()
		i := slices.IndexFunc(gpus, func(g ledger.GPUView) bool { return g.Facts.UUID == uuid })
		if i < 0 {
			return nil, false
		}
		g := contract.Grant{GPU: uuid, Shares: units.Shares(d.Count[uuid])}
		switch {
		case d.Whole:
			g.Shares = n.SharesPerGPU()
		case known && demand.Count == len(d.Count):
			g.Shares = max(g.Shares, demand.SharesOn(gpus[i].Facts.MemoryMiB, n.SharesPerGPU()))
		}
		grants = append(grants, g)
	}
	return grants, true
}

func sharesOf(r *ledger.Record) shares {
	m := make(shares, len(r.Charges))
	for _, c := range r.Charges {
		m[c.GPU] = c.Shares
	}
	return m
}
