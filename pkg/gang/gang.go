package gang

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/placement"
)

// Node is a node as the planner sees it. Plan reads it and changes nothing.
type Node struct {
	Name          string
	Labels        map[string]string
	Taints        []corev1.Taint
	Unschedulable bool
	// Free is what the scheduler would let further pods request: allocatable
	// minus the requests of all pods that are bound, or have a place, there. It
	// must not count the pods in Options.Without and no member of the gang that
	// is being planned: Plan knows what their GPUs are, not what else they took.
	Free Resources
	// Allocatable is what it offers empty, so that Shortfall can say whether
	// waiting may help. Without it (Pods 0) only GPUs are looked at for that.
	Allocatable Resources
	// GPUs are the node's GPUs with all charges, Options.Without included: they
	// are taken out by Plan. Nil: nothing is known of them, and only members
	// that use none fit.
	GPUs *ledger.NodeView
}

// Member is a pod of a gang that needs a place.
type Member struct {
	Pod ledger.Pod
	// Request is for GPUs. Without Demands the member uses none, and goes where
	// Needs and Constraints let it.
	Request contract.Request
	Policy  placement.Policy
	// Needs is what the pod requests, one pod included.
	Needs Resources
	// Constraints are the pod's own; nil: none.
	Constraints *Constraints
	// Shape is equal for members of which all of the above but Pod is equal;
	// see ShapeOf. If empty, Plan computes it.
	Shape string
	// Avoid are nodes that the scheduler does not want for this pod.
	Avoid map[string]bool
	// Pinned, if not empty, is the node that the member keeps, with the plan
	// that it has there: the scheduler has accepted it already. It takes what
	// it takes even where that is not free, and whether or not Plan is given
	// the node.
	Pinned string
	Plan   contract.Plan
}

// Topology keeps members together.
type Topology struct {
	// NodeLabel is the label whose values are the domains.
	NodeLabel string
	// Required says that all members must be in one domain; otherwise they use
	// as few domains as the planner can manage.
	Required bool
	// Domain, if not empty, is where members of the gang sit already. Required,
	// the others go there or nowhere; else there first. If it is empty the
	// nodes of pinned members say it.
	Domain string
}

// Place is where a member goes.
type Place struct {
	Node string
	Plan contract.Plan
}

// Options are the cluster's settings.
type Options struct {
	Resources contract.Resources
	// Without are pods whose GPUs do not count: the gang's own earlier holds.
	Without map[types.UID]bool
}
