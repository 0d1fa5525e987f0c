package planner

import (
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/tranche-dev/tranche/extender/view"
)

// unplanned is a bound GPU pod that carries no plan for its node: another
// scheduler bound it, or a person wrote spec.nodeName. On a node without
// inventory that is as it should be.
type unplanned struct {
	pod *view.Pod
	// reported says that it was counted and warned of; charged that the ledger
	// has what the kubelet gave it.
	reported, charged bool
}

const unplannedMessage = "This pod uses GPUs on a node of Tranche, but was not placed by kube-scheduler with Tranche's extender, so no GPU was planned for it and the node will refuse to start it. " +
	"Remove spec.nodeName, or use the scheduler profile that is configured with the extender."

func (s *state) observeUnplanned(log logr.Logger, pod *view.Pod, now time.Time) {
	pods := s.unplanned[pod.Node]
	if pods == nil {
		pods = map[types.UID]*unplanned{}
		s.unplanned[pod.Node] = pods
	}
	u := pods[pod.UID]
	if u == nil {
		u = &unplanned{}
		pods[pod.UID] = u
		s.unplannedOn[pod.UID] = pod.Node
	}
	u.pod = pod
	s.chargeUnplanned(log, u, now)
}

// chargeUnplanned charges the pod for what the kubelet says that it has.
func (s *state) chargeUnplanned(log logr.Logger, u *unplanned, now time.Time) {
	if !u.charged {
		// Whatever was planned for it was planned in vain.
		s.release(u.pod.UID, now)
	}
	n := s.ledger.Node(u.pod.Node)
	if !n.Known() {
		return
	}
	if !u.reported {
		u.reported = true
		s.p.metrics.UnplannedPods.Inc()
		s.p.effects.Warn(ref(u.pod), eventUnplanned, unplannedMessage)
		log.Info("Pod was bound without a plan", "pod", klog.KRef(u.pod.Namespace, u.pod.Name), "node", u.pod.Node, "problem", u.pod.PlanProblem)
	}
	plan, legal := given(u.pod, n)
	if !legal || len(plan.Containers) == 0 {
		return
	}
	u.charged = true
	before, had := s.ledger.Get(u.pod.UID)
	s.ledger.Allocate(charges(plan, u.pod))
	if had {
		s.moveFrom(before, now)
	}
	s.displace(log, u.pod.Node, now)
}

func (s *state) forgetUnplanned(uid types.UID) {
	node, ok := s.unplannedOn[uid]
	if !ok {
		return
	}
	delete(s.unplannedOn, uid)
	delete(s.unplanned[node], uid)
	if len(s.unplanned[node]) == 0 {
		delete(s.unplanned, node)
	}
}
