// Package validate has the last word on pods: after every mutating webhook has
// run, it checks that a new pod is as package mutate wants it, and later that
// nobody changes what was settled then. It is pure.
package validate

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/webhook/mutate"
)

// Create decides about a pod that no webhook will change any more. Nothing that
// mutation would still have to add may be missing where it guards GPUs; a
// toleration or a queue label that somebody removed is that somebody's will.
func Create(in mutate.Input) []mutate.Refusal {
	out := mutate.Pod(in)
	if len(out.Refusals) > 0 {
		return out.Refusals
	}
	refusals := unhidden(in.Pod.Spec.InitContainers, out.Pod.Spec.InitContainers)
	refusals = append(refusals, unhidden(in.Pod.Spec.Containers, out.Pod.Spec.Containers)...)
	refusals = append(refusals, unlimited(in.Pod.Spec.InitContainers, out.Pod.Spec.InitContainers, in.Defaults.Resources)...)
	return append(refusals, unlimited(in.Pod.Spec.Containers, out.Pod.Spec.Containers, in.Defaults.Resources)...)
}

// unlimited finds containers that lack a limit which the scheduler and the
// kubelet count, or by which the scheduler knows the pod for Tranche's.
func unlimited(was, shall []corev1.Container, res contract.Resources) []mutate.Refusal {
	var refusals []mutate.Refusal
	for i := range was {
		for _, name := range []corev1.ResourceName{res.Share, res.GPU, contract.MemberResource} {
			_, has := was[i].Resources.Limits[name]
			q, needs := shall[i].Resources.Limits[name]
			switch {
			case !needs || has:
			case name == contract.MemberResource:
				refusals = append(refusals, mutate.Refuse(mutate.ReasonUntranslated,
					"the pod is in a gang, but the limits of its container %s lack %s: 0, so that the scheduler would start it without the other members; write that limit, or find out which admission webhook removes it or keeps Tranche's from adding it",
					was[i].Name, name))
			default:
				refusals = append(refusals, mutate.Refuse(mutate.ReasonUntranslated,
					"container %s asks for part of a GPU, but its limits lack %s: %s, so that it would get none; write that limit, or find out which admission webhook removes it or keeps Tranche's from adding it",
					was[i].Name, name, q.String()))
			}
		}
	}
	return refusals
}

// unhidden finds containers that could see GPUs of others, those beside them or
// the whole node's, usually since another webhook added them after Tranche's had
// run.
func unhidden(was, shall []corev1.Container) []mutate.Refusal {
	var refusals []mutate.Refusal
	for i := range was {
		if mutate.HidesGPUs(shall[i].Env) && !mutate.HidesGPUs(was[i].Env) {
			refusals = append(refusals, mutate.Refuse(mutate.ReasonUntranslated,
				"container %s asks for no GPU but could see those of other containers; set %s=%s in its env, where it is written or in the webhook that injects it",
				was[i].Name, contract.VisibleDevicesEnv, contract.VisibleDevicesVoid))
		}
	}
	return refusals
}

// EphemeralContainers decides about debugging containers added to a pod.
func EphemeralContainers(old *corev1.Pod, in mutate.Input) []mutate.Refusal {
	out := mutate.EphemeralContainers(old, in)
	if len(out.Refusals) > 0 {
		return out.Refusals
	}
	was, shall := in.Pod.Spec.EphemeralContainers, out.Pod.Spec.EphemeralContainers
	var refusals []mutate.Refusal
	for i := range was {
		refusals = append(refusals, unhidden(
			[]corev1.Container{corev1.Container(was[i].EphemeralContainerCommon)},
			[]corev1.Container{corev1.Container(shall[i].EphemeralContainerCommon)})...)
	}
	return refusals
}

// asked are the annotations that the ledger, the planner and the node plugin
// read again and again while a pod lives; with the two that take a container's
// name appended.
var asked = []string{
	contract.FractionAnnotation, contract.MemoryAnnotation, contract.CountAnnotation, contract.ContainerAnnotation,
	contract.ModelAnnotation, contract.PlacementAnnotation, contract.IsolationAnnotation,
}

// written are the annotations that only Tranche itself writes.
var written = []string{contract.PlanAnnotation, contract.RetryAnnotation, contract.TranslatedFromAnnotation}

// Update decides about a change of a pod by a user who is not one of Tranche's
// own service accounts. It looks at the frozen annotations, the gang and the queue
// only, whatever the state of the pod: kubelet and controllers must get through with
// all else, and a pod that is being deleted keeps its GPUs, and so its plan, to
// the end.
//
// Scheduling gates are not looked at. The API server lets nobody add one to a
// pod that exists; and whoever removes Tranche's lets the scheduler ask the
// extender, which places no member before its gang and no pod with GPUs that its
// queue has no room for.
func Update(old, pod *corev1.Pod) []mutate.Refusal {
	refusals := append(gang(old, pod), queue(old, pod)...)
	keys := maps.Clone(old.Annotations)
	if keys == nil {
		keys = map[string]string{}
	}
	maps.Copy(keys, pod.Annotations)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		before, had := old.Annotations[key]
		after, has := pod.Annotations[key]
		if had == has && before == after {
			continue
		}
		switch {
		case slices.Contains(written, key):
			refusals = append(refusals, mutate.Refuse(mutate.ReasonFrozen,
				"annotation %s is for Tranche alone to write; leave it as it is", key))
		case slices.Contains(asked, key) ||
			strings.HasPrefix(key, contract.FractionAnnotation+".") || strings.HasPrefix(key, contract.MemoryAnnotation+"."):
			refusals = append(refusals, mutate.Refuse(mutate.ReasonFrozen,
				"annotation %s cannot be changed, added or removed once the pod exists; create a new pod with what it shall ask for, or change the template that pods are made from", key))
		}
	}
	return refusals
}

// gang keeps a pod in its gang: places are held for whole gangs, and a member
// that walked over to another would leave one that started without it. How many
// members make the gang whole may change, for gangs grow and shrink.
func gang(old, pod *corev1.Pod) []mutate.Refusal {
	var refusals []mutate.Refusal
	before, had := old.Labels[contract.GangLabel]
	after, has := pod.Labels[contract.GangLabel]
	if had != has || before != after {
		refusals = append(refusals, mutate.Refuse(mutate.ReasonFrozen,
			"label %s cannot be changed, added or removed once the pod exists, since its gang counts on it; create a new pod with the label that it shall have, or change the template that pods are made from", contract.GangLabel))
	}
	was, sized := old.Annotations[contract.GangMinCountAnnotation]
	is, stays := pod.Annotations[contract.GangMinCountAnnotation]
	if stays && (!sized || was != is) {
		if _, _, _, err := contract.GangOf(pod); err != nil {
			refusals = append(refusals, mutate.RefuseGang("", err))
		}
	}
	return refusals
}

// queue keeps a pod in its queue, which is charged for it: that of a pod without
// the label as well, since nobody has asked for it to be in any.
func queue(old, pod *corev1.Pod) []mutate.Refusal {
	before, had := old.Labels[contract.QueueLabel]
	after, has := pod.Labels[contract.QueueLabel]
	if had == has && before == after {
		return nil
	}
	return []mutate.Refusal{mutate.Refuse(mutate.ReasonFrozen,
		"label %s cannot be changed, added or removed once the pod exists; to move a pod to another queue delete it and create it with the other label, or change the template that pods are made from", contract.QueueLabel)}
}
