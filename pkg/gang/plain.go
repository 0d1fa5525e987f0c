package gang

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/placement"
)

// plain says that the pods use no GPU: any node will do that has the rest of
// what they request, whatever is known of its GPUs.
func (s *shape) plain() bool { return len(s.request.Demands) == 0 }

// check says whether one copy of s finds GPUs on a site, and if not, why.
func (s *shape) check(st *site) placement.Reason {
	if s.plain() {
		return ""
	}
	return s.packing.Check(st.gpus)
}

// pack plans copies of s on a site, nil if there is no room for all.
func (s *shape) pack(st *site, copies int) []contract.Plan {
	if !s.plain() {
		return s.packing.Pack(st.gpus, copies)
	}
	plans := make([]contract.Plan, copies)
	for i := range plans {
		plans[i] = plainPlan(st.node.Name)
	}
	return plans
}

// plainPlan is the plan of a pod without GPUs.
func plainPlan(node string) contract.Plan {
	return contract.Plan{Version: contract.PlanVersion, Node: node, Containers: map[string][]contract.Grant{}}
}

// plainScore rates a site for a pod without GPUs; the pod fits. Nodes without
// GPUs come first: on the others its processors may be what a GPU waits for.
// Then Spread wants the most processors left, all other policies the fewest.
func plainScore(st *site, policy placement.Policy) int64 {
	left := min(st.free.MilliCPU, most)
	if policy != placement.Spread {
		left = -left
	}
	if len(st.gpus.GPUs()) == 0 {
		left += 3 * most // more than any two differ by otherwise
	}
	return left
}

// describePlain says in words what a pod without GPUs asks for.
func describePlain(needs Resources) string {
	var parts []string
	add := func(q *resource.Quantity, name corev1.ResourceName) {
		if !q.IsZero() {
			parts = append(parts, q.String()+" "+string(name))
		}
	}
	add(resource.NewMilliQuantity(needs.MilliCPU, resource.DecimalSI), corev1.ResourceCPU)
	add(resource.NewQuantity(needs.Memory, resource.BinarySI), corev1.ResourceMemory)
	add(resource.NewQuantity(needs.Ephemeral, resource.BinarySI), corev1.ResourceEphemeralStorage)
	for _, s := range needs.Scalars {
		add(resource.NewQuantity(s.Value, resource.DecimalSI), s.Name)
	}
	switch len(parts) {
	case 0:
		return "a pod that requests nothing"
	case 1:
		return parts[0]
	}
	return "(" + strings.Join(parts, ", ") + ")"
}
