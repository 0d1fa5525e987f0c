package view

import (
	"unique"

	corev1 "k8s.io/api/core/v1"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/gang"
)

// Node is what the extender keeps of a node.
type Node struct {
	Name string
	// Inventory is nil if the node has none that can be read; Problem then
	// says why, or is empty if there is no annotation at all.
	Inventory *contract.Inventory
	Problem   string
	// OffersGPU says that some device plugin advertises whole GPUs.
	OffersGPU bool

	// What the scheduler goes by when it places any pod.
	Labels        map[string]string
	Taints        []corev1.Taint
	Unschedulable bool
	Allocatable   gang.Resources

	// name keeps the node's name for the pods that have it: see Once.
	name unique.Handle[string]
}

// NodeOf parses node.
func NodeOf(node *corev1.Node, res contract.Resources) *Node {
	name := unique.Make(node.Name)
	n := &Node{
		Name: name.Value(), name: name, Labels: node.Labels, Taints: node.Spec.Taints, Unschedulable: node.Spec.Unschedulable,
		Allocatable: gang.AllocatableOf(node.Status.Allocatable),
	}
	if q, ok := node.Status.Allocatable[res.GPU]; ok {
		n.OffersGPU = q.Sign() > 0
	}
	text, ok := node.Annotations[contract.InventoryAnnotation]
	if !ok {
		return n
	}
	inv, err := contract.ParseInventory(text)
	if err != nil {
		n.Problem = err.Error()
		return n
	}
	n.Inventory = &inv
	return n
}

// Foreign says whether the node's GPUs are another device plugin's business.
// A node with an inventory annotation that cannot be read is ours and broken.
func (n *Node) Foreign() bool { return n.Inventory == nil && n.Problem == "" && n.OffersGPU }
