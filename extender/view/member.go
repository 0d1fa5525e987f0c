package view

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/gang"
)

// Member is what counts of a pod as a member of a gang.
type Member struct {
	// Gang is the gang's name, in the pod's namespace. Native says that it is a
	// PodGroup of Kubernetes, not a label, that names it.
	Gang   string
	Native bool
	// MinCount is what the pod says of the gang's size, 0 if nothing.
	MinCount int32
	// Gated says that the pod has our scheduling gate; ForeignGates are others.
	Gated        bool
	ForeignGates []string
	// Owner is the pod's controller, nil if it has none.
	Owner    *metav1.OwnerReference
	Priority int32
	Queue    string
	// Running, Ready and Succeeded are what the kubelet reports; a member that
	// has Succeeded has also ended.
	Running, Ready, Succeeded bool
	// Nominated is the node in the pod's status, before it is bound.
	Nominated string
}

// memberOf returns nil if the pod is in no gang.
func memberOf(pod *corev1.Pod) (*Member, error) {
	name, minCount, native, err := contract.GangOf(pod)
	if err != nil || name == "" {
		return nil, err
	}
	m := &Member{
		Gang: name, Native: native, MinCount: minCount,
		Owner: metav1.GetControllerOf(pod), Queue: pod.Labels[contract.QueueLabel],
		Running:   pod.Status.Phase == corev1.PodRunning,
		Succeeded: pod.Status.Phase == corev1.PodSucceeded && ended(&pod.Status),
	}
	if pod.Spec.Priority != nil {
		m.Priority = *pod.Spec.Priority
	}
	for _, c := range pod.Status.Conditions {
		m.Ready = m.Ready || c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	}
	if pod.Spec.NodeName != "" {
		return m, nil
	}
	m.Gated, m.ForeignGates = gatesOf(pod)
	m.Nominated = pod.Status.NominatedNodeName
	return m, nil
}

// sameMember says whether two views of a pod's membership are equal, as far as
// pods may change.
func sameMember(a, b *Member) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Gang == b.Gang && a.Native == b.Native && a.MinCount == b.MinCount && a.Gated == b.Gated &&
		slices.Equal(a.ForeignGates, b.ForeignGates) && a.Queue == b.Queue && a.Priority == b.Priority &&
		a.Running == b.Running && a.Ready == b.Ready && a.Succeeded == b.Succeeded &&
		a.Nominated == b.Nominated
}

// Usage is what a bound pod, with or without GPUs, requests of its node.
type Usage struct {
	UID   types.UID
	Node  string
	Needs gang.Resources
}

// UsageOf returns nil for a pod that takes nothing of a node: it is not bound
// yet, or has ended.
func UsageOf(pod *corev1.Pod) *Usage {
	if pod.Spec.NodeName == "" || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return nil
	}
	return &Usage{UID: pod.UID, Node: Once(pod.Spec.NodeName), Needs: gang.RequestsOf(pod)}
}

// Same says whether two usages are equal; either may be nil.
func (u *Usage) Same(o *Usage) bool {
	if u == nil || o == nil {
		return u == o
	}
	return u.UID == o.UID && u.Node == o.Node && u.Needs.Equal(o.Needs)
}
