package gang

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// What Constraints.Match says of a node that it refuses.
const (
	NodeUnschedulable = "the node is marked unschedulable"
	NodeTainted       = "the node has a taint that the pod does not tolerate"
	NodeNotSelected   = "the node does not match the pod's node selector or required node affinity"
)

// Constraints are a pod's own conditions on nodes, prepared for asking many
// nodes. They never change. Nil is a pod that has none and tolerates nothing.
type Constraints struct {
	affinity    nodeaffinity.RequiredNodeAffinity
	selects     bool
	tolerations []corev1.Toleration
	key         string
}

// ConstraintsOf prepares what pod's spec says of nodes; nil if that is nothing.
// It keeps parts of pod, which must not be changed afterwards.
func ConstraintsOf(pod *corev1.Pod) *Constraints {
	c := &Constraints{tolerations: pod.Spec.Tolerations}
	var required *corev1.NodeSelector
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		required = a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	c.selects = len(pod.Spec.NodeSelector) > 0 || required != nil
	if !c.selects && len(c.tolerations) == 0 {
		return nil
	}
	if c.selects {
		c.affinity = nodeaffinity.GetRequiredNodeAffinity(pod)
	}
	c.key = constraintsKey(pod.Spec.NodeSelector, required, c.tolerations)
	return c
}

// constraintsKey is equal for constraints that are written the same way, but
// for the order of tolerations and how long they last.
func constraintsKey(selector map[string]string, required *corev1.NodeSelector, tolerations []corev1.Toleration) string {
	sorted := slices.Clone(tolerations)
	for i := range sorted {
		sorted[i].TolerationSeconds = nil
	}
	slices.SortFunc(sorted, func(a, b corev1.Toleration) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Operator, b.Operator), cmp.Compare(a.Value, b.Value), cmp.Compare(a.Effect, b.Effect))
	})
	// JSON sorts the keys of maps. These types have nothing that it refuses.
	text, _ := json.Marshal(struct {
		Selector    map[string]string    `json:",omitempty"`
		Required    *corev1.NodeSelector `json:",omitempty"`
		Tolerations []corev1.Toleration  `json:",omitempty"`
	}{selector, required, slices.Compact(sorted)})
	return string(text)
}

// Key is equal for equal constraints; empty for none.
func (c *Constraints) Key() string {
	if c == nil {
		return ""
	}
	return c.key
}

// Match says whether kube-scheduler's NodeUnschedulable, TaintToleration and
// NodeAffinity would let the pod onto n, and if not, one of the constants
// above.
func (c *Constraints) Match(n *Node) (ok bool, why string) {
	if n.Unschedulable && !c.tolerates(&corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}) {
		return false, NodeUnschedulable
	}
	for i := range n.Taints {
		t := &n.Taints[i]
		if t.Effect != corev1.TaintEffectPreferNoSchedule && !c.tolerates(t) {
			return false, NodeTainted
		}
	}
	if c == nil || !c.selects {
		return true, ""
	}
	node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels}}
	// An error means that a term cannot be read and no other matches.
	if ok, err := c.affinity.Match(&node); err != nil || !ok {
		return false, NodeNotSelected
	}
	return true, ""
}

func (c *Constraints) tolerates(taint *corev1.Taint) bool {
	return c != nil && slices.ContainsFunc(c.tolerations, func(t corev1.Toleration) bool { return tolerates(&t, taint) })
}

// tolerates is Kubernetes' rule. Its own function wants a logger, which pure
// packages do without. The operators Gt and Lt count although a scheduler may
// have that feature off: a node that it then refuses ends up in Member.Avoid,
// whereas a node left out here would never be tried.
func tolerates(t *corev1.Toleration, taint *corev1.Taint) bool {
	if t.Effect != "" && t.Effect != taint.Effect || t.Key != "" && t.Key != taint.Key {
		return false
	}
	switch t.Operator {
	case "", corev1.TolerationOpEqual:
		return t.Value == taint.Value
	case corev1.TolerationOpExists:
		return true
	case corev1.TolerationOpGt, corev1.TolerationOpLt:
		asked, err := strconv.ParseInt(t.Value, 10, 64)
		has, err2 := strconv.ParseInt(taint.Value, 10, 64)
		if err != nil || err2 != nil {
			return false
		}
		return t.Operator == corev1.TolerationOpGt && has > asked || t.Operator == corev1.TolerationOpLt && has < asked
	default:
		return false
	}
}
