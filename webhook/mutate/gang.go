package mutate

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/tranche-dev/tranche/pkg/contract"
)

// Owner is what counts of the object that controls a pod.
type Owner struct {
	// Kind and Name are what users call it: "Job", "train".
	Kind, Name string
	// Labels and Annotations have at least those under contract.Prefix.
	Labels, Annotations map[string]string
	// Unread, if not empty, says why the owner could not be read: "tranche-webhook
	// may not read it". Labels and Annotations are then unknown.
	Unread string
}

var _ contract.Declarer = (*Owner)(nil)

// GetLabels returns Labels.
func (o *Owner) GetLabels() map[string]string { return o.Labels }

// GetAnnotations returns Annotations.
func (o *Owner) GetAnnotations() map[string]string { return o.Annotations }

// WantsOwner says whether a decision about pod depends on its owner: unless it
// names gang and queue itself, as every member does that is decided about for
// the second time, or is outside of both.
func WantsOwner(pod *corev1.Pod, res contract.Resources) bool {
	if _, labelled := pod.Labels[contract.GangLabel]; labelled && pod.Labels[contract.QueueLabel] != "" {
		return false
	}
	request, err := contract.ParsePod(pod, res)
	return err == nil && (len(request.Demands) > 0 || outside(pod) == "")
}

// inherit writes on the pod what its owner declares for all of its pods, where
// the pod does not say otherwise: gang, its size and queue. What is wrong with
// the owner's gang is for checkGang to say.
func (r *review) inherit() {
	owner := r.in.Owner
	if owner == nil || r.unclear || r.outside() != "" {
		return
	}
	name, _, err := contract.ParseGang(owner)
	_, own := r.pod.Labels[contract.GangLabel]
	if err == nil && name != "" && !own {
		setKey(&r.edit().Labels, contract.GangLabel, name)
		size, declared := owner.Annotations[contract.GangMinCountAnnotation]
		if _, own := r.pod.Annotations[contract.GangMinCountAnnotation]; declared && !own {
			setKey(&r.edit().Annotations, contract.GangMinCountAnnotation, size)
		}
	}
	if queue := owner.Labels[contract.QueueLabel]; queue != "" && r.pod.Labels[contract.QueueLabel] == "" {
		setKey(&r.edit().Labels, contract.QueueLabel, queue)
	}
}

func setKey(to *map[string]string, key, value string) {
	if *to == nil {
		*to = map[string]string{}
	}
	(*to)[key] = value
}

// checkGang reads which gang the pod is in. On pods outside of gangs the
// declaration has no effect, which is a hint and no refusal.
func (r *review) checkGang() {
	if r.outside() != "" {
		return
	}
	if owner := r.in.Owner; owner != nil {
		if _, _, err := contract.ParseGang(owner); err != nil {
			r.refusals = append(r.refusals, RefuseGang("in "+owner.Kind+" "+owner.Name+", which makes the pod, ", err))
			return // what it should have given to the pod is missing there
		}
	}
	name, _, _, err := contract.GangOf(r.pod)
	if err != nil {
		r.refusals = append(r.refusals, RefuseGang("", err))
		return
	}
	r.gang = name
}

// RefuseGang makes a Refusal of an error of contract.ParseGang or GangOf; where
// is put in front of the sentence.
func RefuseGang(where string, err error) Refusal {
	return Refuse(ReasonGang, "%s%s", where, strings.TrimPrefix(err.Error(), contract.ErrGang.Error()+": "))
}

// checkMember refuses to ask for more than 0 of a resource that no node has: the
// pod would never be scheduled.
func (r *review) checkMember() {
	for _, c := range containers(&r.pod.Spec) {
		for _, list := range []corev1.ResourceList{c.Resources.Limits, c.Resources.Requests} {
			if q, ok := list[contract.MemberResource]; ok && !q.IsZero() {
				r.refuse(ReasonRequest,
					"container %s asks for %s: %s, of which no node has any; write 0, or leave it out: Tranche adds it to members of gangs that use no GPU",
					c.Name, contract.MemberResource, q.String())
				break // once for limit and request
			}
			if q, ok := list[contract.CPUOnlyResource]; ok && !q.IsZero() {
				r.refuse(ReasonRequest,
					"container %s asks for %s: %s, of which no node has any; write 0, or leave it out: Tranche adds it to pods that use no GPU",
					c.Name, contract.CPUOnlyResource, q.String())
				break
			}
		}
	}
}

// setMember lets a member without GPUs come to the extender, which binds it
// together with the others; see contract.MemberResource.
func (r *review) setMember() {
	if r.gang == "" || len(r.pod.Spec.Containers) == 0 || contract.InterestsExtender(&r.pod.Spec, r.in.Defaults.Resources) {
		return
	}
	setResource(&r.edit().Spec.Containers[0].Resources, contract.MemberResource, 0)
}

// setCPUOnly has the scheduler ask the extender where a pod without GPUs keeps the
// least processors from those with GPUs; see contract.CPUOnlyResource. Members come
// to the extender anyway, and whoever is outside of all queues has its node.
func (r *review) setCPUOnly() {
	spec := &r.pod.Spec
	if !r.in.Defaults.RateCPUOnly || r.outside() != "" || len(spec.Containers) == 0 || !asksCPU(spec) || contract.InterestsExtender(spec, r.in.Defaults.Resources) {
		return
	}
	if has := &spec.Containers[0].Resources; holds(has.Limits, contract.CPUOnlyResource, 0) && holds(has.Requests, contract.CPUOnlyResource, 0) {
		return
	}
	setResource(&r.edit().Spec.Containers[0].Resources, contract.CPUOnlyResource, 0)
}

// asksCPU says whether the scheduler counts processors for a pod.
func asksCPU(spec *corev1.PodSpec) bool {
	if all := spec.Resources; all != nil && !all.Requests.Cpu().IsZero() {
		return true
	}
	return slices.ContainsFunc(containers(spec), func(c *corev1.Container) bool { return !c.Resources.Requests.Cpu().IsZero() })
}

// checkGate refuses the gate on pods that are in no queue: nobody would ever lift
// it. Removed without a word, it would let a pod start that somebody meant to
// hold back.
func (r *review) checkGate() {
	if because := r.outside(); because != "" && gated(r.in.Pod) {
		r.refuse(ReasonGate,
			"the pod has the scheduling gate %s but uses no GPU and %s, so that it is in no queue and nobody would ever lift the gate; remove it, and to hold the pod back yourself use a gate of your own name",
			contract.AdmissionGate, because)
	}
}

func gated(pod *corev1.Pod) bool {
	return slices.Contains(pod.Spec.SchedulingGates, gate)
}

var gate = corev1.PodSchedulingGate{Name: contract.AdmissionGate}

// setGate holds a pod back until the extender admits it: a member of a gang until
// there are places for all of it, a single pod until its queue lets it in. A gate
// is put on pods only as they are created: the API server takes no other. Nor is
// one taken away that is there, which may be ours from a moment ago, when the
// queue was not open yet: the extender lifts it.
func (r *review) setGate() {
	if gated(r.pod) || !r.held() {
		return
	}
	spec := &r.edit().Spec
	spec.SchedulingGates = append(spec.SchedulingGates, gate)
}

// held says whether the pod must wait for the extender.
func (r *review) held() bool {
	if r.gang != "" {
		return r.in.Defaults.GangGate
	}
	return r.in.Defaults.QueueGate &&
		r.in.Queues.holds(r.pod.Labels[contract.QueueLabel], r.in.Defaults.Queue, len(r.request.Demands) > 0)
}

// hintIdleGang finds pods that name a gang and cannot be members.
func (r *review) hintIdleGang() {
	because := r.outside()
	if because == "" {
		return
	}
	key := "label " + contract.GangLabel
	if _, named := r.in.Pod.Labels[contract.GangLabel]; !named {
		if _, sized := r.in.Pod.Annotations[contract.GangMinCountAnnotation]; !sized {
			return
		}
		key = "annotation " + contract.GangMinCountAnnotation
	}
	r.hint("%s has no effect: the pod uses no GPU and %s, and such pods are in no gang", key, because)
}

// hintUnreadOwner tells that the pod may miss something: it is created all the
// same, for nothing that its user could do would change the answer.
func (r *review) hintUnreadOwner() {
	if owner := r.in.Owner; owner != nil && owner.Unread != "" {
		r.hint("%s %s makes the pod but %s: if it names a gang or a queue, the pod does not know; write that on the pod template", owner.Kind, owner.Name, owner.Unread)
	}
}
