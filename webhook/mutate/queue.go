package mutate

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/contract"
)

// Queues are the Queue objects by name. Nil: the API server does not serve any,
// so that no single pod is held for its queue.
type Queues map[string]Queue

// Queue is what counts of a Queue object.
type Queue struct {
	// Parent is empty for a queue at the top.
	Parent string
	// Admission is empty for the default.
	Admission v1alpha1.AdmissionMode
	// Open says that the extender admits whatever comes.
	Open bool
	// Stopped: the queue admits nobody, for it is stopped or being deleted.
	Stopped bool
	// Compute: it deserves, or is limited to, amounts of cpu or memory.
	Compute bool
}

// maxAncestors bounds the way to the top, which may lead round in a circle:
// edits of queues arrive in any order.
const maxAncestors = 16

// holds says whether a single pod of the queue waits for the extender to admit
// it. There is no arithmetic in this: the extender says by Open whether it has
// a say about pods with GPUs, and what it would do with a held pod is its own
// affair. A queue without an object is open if it is the implicit one.
//
// Pods without GPUs go past the extender unless they are held, so they are held
// wherever their cpu and memory are counted, be the queue open or not.
func (q Queues) holds(name, implicit string, usesGPU bool) bool {
	if q == nil {
		return false
	}
	queue, exists := q[name]
	if !exists {
		return name != implicit
	}
	switch queue.Admission {
	case v1alpha1.AdmissionDirect:
		return false
	case v1alpha1.AdmissionGated:
		return true
	case v1alpha1.AdmissionAuto, "":
	}
	if usesGPU && !queue.Open {
		return true
	}
	for range maxAncestors + 1 {
		if queue.Stopped || queue.Compute && !usesGPU {
			return true
		}
		if queue, exists = q[queue.Parent]; !exists {
			return false
		}
	}
	return false
}

// setQueue makes the pod's queue visible on the pod: its own, else its owner's,
// which inherit has copied, else its namespace's, else the configured default.
func (r *review) setQueue() {
	if r.pod.Labels[contract.QueueLabel] != "" {
		return
	}
	queue := r.in.Namespace.Queue
	if queue == "" {
		queue = r.in.Defaults.Queue
	}
	setKey(&r.edit().Labels, contract.QueueLabel, queue)
}

// outside says why a pod without GPUs is in no queue and no gang, "" if it may
// be in them. Such a pod goes to its node whatever any queue says: nobody could
// hold it back, or should.
func outside(pod *corev1.Pod) string {
	switch _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; {
	case mirror:
		return "comes from a file on its node"
	case pod.Spec.NodeName != "":
		return "names its node"
	}
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil && owner.Kind == "DaemonSet" {
		if gv, err := schema.ParseGroupVersion(owner.APIVersion); err == nil && gv.Group == appsv1.GroupName {
			return "is made by a DaemonSet"
		}
	}
	return ""
}

// outside is that function for the pod under review; a pod that uses GPUs, or
// might, never is.
func (r *review) outside() string {
	if r.unclear || len(r.request.Demands) > 0 {
		return ""
	}
	return outside(r.in.Pod)
}
