package view

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/tranche-dev/tranche/pkg/contract"
)

// gatesOf says whether the pod has our scheduling gate, and names the others.
func gatesOf(pod *corev1.Pod) (ours bool, foreign []string) {
	for _, g := range pod.Spec.SchedulingGates {
		if g.Name == contract.AdmissionGate {
			ours = true
		} else {
			foreign = append(foreign, g.Name)
		}
	}
	return ours, foreign
}

// free says that the scheduler goes by nothing but what the planner judges as
// well when it chooses among the nodes that fit.
func free(spec *corev1.PodSpec) bool {
	if len(spec.TopologySpreadConstraints) > 0 || len(spec.ResourceClaims) > 0 {
		return false
	}
	if a := spec.Affinity; a != nil {
		if a.PodAffinity != nil || a.PodAntiAffinity != nil {
			return false
		}
		if a.NodeAffinity != nil && len(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution) > 0 {
			return false
		}
	}
	for i := range spec.Volumes {
		// A volume may be tied to a zone or a node.
		if v := &spec.Volumes[i]; v.PersistentVolumeClaim != nil || v.Ephemeral != nil || v.CSI != nil {
			return false
		}
	}
	return true
}

// startedAt is when a bound pod began to take its node: as the kubelet says,
// else when the scheduler bound it, else when it was made.
func startedAt(pod *corev1.Pod) time.Time {
	if t := pod.Status.StartTime; t != nil {
		return t.Time
	}
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Time
		}
	}
	return pod.CreationTimestamp.Time
}
