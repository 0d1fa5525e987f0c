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

// WantsOwner says whether a decision about pod depends on its owner: only for
// pods that use GPUs, and only if they do not name their gang themselves, so
// that neither a pod without GPUs nor one that is decided about for the second
// time costs a read.
func WantsOwner(pod *corev1.Pod, res contract.Resources) bool {
	if _, labelled := pod.Labels[contract.GangLabel]; labelled {
		return false
	}
	request, err := contract.ParsePod(pod, res)
	return err == nil && len(request.Demands) > 0
}

// inherit writes on the pod what its owner declares for all of its pods, where
// the pod does not say otherwise: gang, its size and queue. What is wrong with
// the owner's gang is for checkGang to say.
func (r *review) inherit() {
	owner := r.in.Owner
	if owner == nil || len(r.request.Demands) == 0 {
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

// checkGang reads which gang the pod is in. On pods without GPUs the
// declaration has no effect, which is a hint and no refusal.
func (r *review) checkGang() {
	if len(r.request.Demands) == 0 && !r.unclear {
		return
	}
	if owner := r.in.Owner; owner != nil {
		if _, _, err := contract.ParseGang(owner); err != nil {
			r.gangUnclear = true
			r.refusals = append(r.refusals, RefuseGang("in "+owner.Kind+" "+owner.Name+", which makes the pod, ", err))
			return // what it should have given to the pod is missing there
		}
	}
	name, _, _, err := contract.GangOf(r.pod)
	if err != nil {
		r.gangUnclear = true
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

// checkGate refuses the gate on pods that are no members: nobody would ever lift
// it. Removed without a word, it would let a pod start that somebody meant to
// hold back.
func (r *review) checkGate() {
	if r.gang != "" || r.unclear || r.gangUnclear || !gated(r.in.Pod) {
		return
	}
	because := "is in no gang"
	if len(r.request.Demands) == 0 {
		because = "uses no GPU"
	}
	r.refuse(ReasonGate,
		"the pod has the scheduling gate %s but %s, so that nobody would ever lift it; remove the gate, which Tranche adds where it is needed, or name a gang with the label %s on a pod that uses GPUs, and to hold the pod back yourself use a gate of your own name",
		contract.AdmissionGate, because, contract.GangLabel)
}

func gated(pod *corev1.Pod) bool {
	return slices.Contains(pod.Spec.SchedulingGates, gate)
}

var gate = corev1.PodSchedulingGate{Name: contract.AdmissionGate}

// setGate holds a member back until the extender has places for its whole gang.
// A gate is put on pods only as they are created: the API server takes no other.
func (r *review) setGate() {
	if r.in.Defaults.GangGate && r.gang != "" && !gated(r.pod) {
		spec := &r.edit().Spec
		spec.SchedulingGates = append(spec.SchedulingGates, gate)
	}
}

// hintIdleGang finds pods that name a gang and cannot be members.
func (r *review) hintIdleGang() {
	if len(r.request.Demands) > 0 || r.unclear {
		return
	}
	key := "label " + contract.GangLabel
	if _, named := r.in.Pod.Labels[contract.GangLabel]; !named {
		if _, sized := r.in.Pod.Annotations[contract.GangMinCountAnnotation]; !sized {
			return
		}
		key = "annotation " + contract.GangMinCountAnnotation
	}
	r.hint("%s has no effect: only pods that use GPUs are members of gangs, and no container of this one asks for a GPU", key)
}

// hintUnreadOwner tells that the pod may miss something: it is created all the
// same, for nothing that its user could do would change the answer.
func (r *review) hintUnreadOwner() {
	if owner := r.in.Owner; owner != nil && owner.Unread != "" {
		r.hint("%s %s makes the pod but %s: if it names a gang or a queue, the pod does not know; write that on the pod template", owner.Kind, owner.Name, owner.Unread)
	}
}
