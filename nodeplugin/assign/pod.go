package assign

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/nodeplugin/ledger"
	"github.com/tranche-dev/tranche/pkg/contract"
)

// Pod is what assignment needs to know of a pod.
type Pod struct {
	UID             types.UID
	Namespace, Name string
	Created         time.Time
	// Roles are all containers in the order in which the kubelet gives them
	// devices.
	Roles []contract.ContainerRole
	// Wants holds, per container, how much it asks of our resources.
	Wants map[string]map[string]int
	// Plan is what the extender planned. Without a usable one, Problem says
	// why and what to do, as the end of a sentence about the pod.
	Plan    map[string][]contract.Grant
	Problem string
	// Started is set once the kubelet has reported on the pod's containers:
	// then the pod has been admitted, and its containers got their devices.
	Started bool
	// Deleting is set when the pod is to be deleted: then the kubelet may never
	// begin with it.
	Deleting bool
	// Rejected is set when it was refused devices not long ago: then the kubelet
	// has failed it, though a list may not say so yet.
	Rejected bool
	// Ended is set when no container runs any more, nor will.
	Ended        bool
	GraceSeconds int64
}

// PodOf returns the view of a pod on the node of that name; false if the pod
// asks for none of our resources.
func PodOf(p *corev1.Pod, node string, res contract.Resources) (Pod, bool) {
	v := Pod{
		UID: p.UID, Namespace: p.Namespace, Name: p.Name, Created: p.CreationTimestamp.Time,
		Roles: contract.Roles(&p.Spec), Wants: map[string]map[string]int{},
		Started: len(p.Status.ContainerStatuses)+len(p.Status.InitContainerStatuses) > 0, Ended: Ended(p),
		Deleting: p.DeletionTimestamp != nil,
	}
	if p.Spec.TerminationGracePeriodSeconds != nil {
		v.GraceSeconds = *p.Spec.TerminationGracePeriodSeconds
	}
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			for _, name := range []corev1.ResourceName{res.Share, res.GPU} {
				if q, ok := list[i].Resources.Limits[name]; ok && q.Value() > 0 {
					if v.Wants[list[i].Name] == nil {
						v.Wants[list[i].Name] = map[string]int{}
					}
					v.Wants[list[i].Name][string(name)] = int(q.Value())
				}
			}
		}
	}
	if len(v.Wants) == 0 {
		return Pod{}, false
	}
	v.readPlan(p, node)
	return v, true
}

func (v *Pod) readPlan(p *corev1.Pod, node string) {
	text, ok := p.Annotations[contract.PlanAnnotation]
	if !ok {
		v.Problem = "has no plan: it was not placed by kube-scheduler with Tranche's extender. " +
			"Create it without spec.nodeName and without a schedulerName of its own"
		return
	}
	plan, err := contract.ParsePlan(text)
	switch {
	case err != nil:
		v.Problem = fmt.Sprintf("has a plan that cannot be read (%v). Delete it and create it anew; "+
			"if it happens again, the extender and the node plugin are of different releases", err)
	case plan.Node != node:
		v.Problem = fmt.Sprintf("has a plan for node %s, but it is on node %s. Delete it and create it anew without spec.nodeName", plan.Node, node)
	default:
		v.Plan = plan.Containers
	}
}

// Ended says whether none of the pod's containers runs, or will run. The phase
// alone does not do: of an evicted pod it is Failed while containers still run.
func Ended(p *corev1.Pod) bool {
	if p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
		return false
	}
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses, p.Status.EphemeralContainerStatuses} {
		if slices.ContainsFunc(list, func(s corev1.ContainerStatus) bool { return s.State.Running != nil }) {
			return false
		}
	}
	return true
}

// record is the pod as the ledger keeps it.
func (v *Pod) record() ledger.Pod {
	return ledger.Pod{
		UID: v.UID, Namespace: v.Namespace, Name: v.Name,
		Roles: v.Roles, Planned: v.Plan, GraceSeconds: v.GraceSeconds,
	}
}

func (v *Pod) role(container string) contract.Role {
	for _, r := range v.Roles {
		if r.Name == container {
			return r.Role
		}
	}
	return contract.RoleApp
}

// next returns the first container that still lacks devices by the ledger,
// with the resource that it lacks.
func (v *Pod) next(st ledger.State, resources []string) (container, resource string, ok bool) {
	for _, c := range v.Roles {
		for _, r := range resources {
			if v.Wants[c.Name][r] > 0 && !st.Holds(v.UID, c.Name, r) {
				return c.Name, r, true
			}
		}
	}
	return "", "", false
}

// label names a container in a sentence.
func (v *Pod) label(container string) string {
	return fmt.Sprintf("container %s of pod %s/%s", container, v.Namespace, v.Name)
}

// other names another pod in a sentence about v. A StatefulSet, or a user who
// does not wait, creates a pod of the same name while the one before still ends:
// without a word about that, v would seem to stand in its own way.
func (v *Pod) other(p *ledger.Pod, noun string) string {
	if p.Namespace == v.Namespace && p.Name == v.Name {
		return "an earlier pod of this name that is still ending"
	}
	return noun + p.Namespace + "/" + p.Name
}
