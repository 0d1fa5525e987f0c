package view

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/gang"
)

// Pod is a pod that uses GPUs, or that is counted in a queue. It is never
// changed after PodOf made it, so all holders may share it.
type Pod struct {
	UID                              types.UID
	Namespace, Name, ResourceVersion string
	Created                          time.Time
	// Node is empty until the pod is bound.
	Node string
	// Deleting says that somebody asked for its deletion; its containers may
	// still run. Ended says that none of them runs any more, nor will.
	Deleting, Ended bool
	// UsesGPU says that it asks for some part of a GPU. One that does not is known
	// for its queue, and perhaps for its gang.
	UsesGPU  bool
	Priority int32
	// Unbound is what counts until it is bound; empty, and shared by all, since.
	*Unbound
	// Grace is how long its containers may go on after a kubelet was told to
	// end them.
	Grace time.Duration

	// Queue is the queue that its label names, empty if it has none.
	Queue string
	// Started is when a bound pod began to use its node.
	Started time.Time
	// Controller is the kind of its controller, which makes another in its place;
	// empty if it has none.
	Controller string
	// MilliCPU and Memory, in bytes, are what a queue is charged beside GPUs.
	MilliCPU, Memory int64

	// Request is what it asks for; Problem, if not empty, the sentence that
	// says why that cannot be understood.
	Request contract.Request
	Problem string
	Roles   []contract.ContainerRole

	// Member is nil if the pod is in no gang.
	Member *Member

	// Plan is what was written into it when it was bound, empty if nothing that
	// can be read; Planned puts it together again. PlanProblem says why an existing
	// one cannot be read.
	Plan        []Grant
	PlanProblem string
	// Devices are what the kubelet says it gave to each container that it has
	// reported so far. Nil: nothing reported, or nothing in our form.
	Devices map[string]Devices
}

// Unbound is what the extender needs of a pod that has no node yet. Most pods of
// a cluster have one, so it is kept apart.
type Unbound struct {
	// Nominated is the node that the scheduler has made room on for it, or a
	// planner's.
	Nominated string
	// Unschedulable says that the scheduler found no node. If it refused all of
	// them before it asked the extender, nobody else tells of it.
	Unschedulable bool
	// Refusal is what the scheduler said then, empty if it found a node or has
	// not tried.
	Refusal string
	// Gated says that it has our scheduling gate; ForeignGates are others.
	Gated        bool
	ForeignGates []string
	// Free says that nothing the planner cannot judge, such as pod affinity or
	// topology spread, bears on the choice among nodes.
	Free bool
	// Nonpreempting says that its priority class lets nobody be evicted for it.
	Nonpreempting bool
	// Needs and Constraints are what the scheduler goes by besides GPUs.
	Needs       gang.Resources
	Constraints *gang.Constraints
}

// bound is what pods have in place of that once they are bound. Nobody writes to
// it, as to all that PodOf returns.
var bound = &Unbound{}

// Devices are the devices of one container.
type Devices struct {
	// Whole says that they are of the whole-GPU resource.
	Whole bool
	// Count is the number of devices per GPU.
	Count map[contract.GPUUUID]int
}

// PodOf returns what the extender needs of pod, nil if it uses no GPU and is in
// no queue.
func PodOf(pod *corev1.Pod, res contract.Resources) *Pod {
	if !contract.InterestsExtender(&pod.Spec, res) && pod.Labels[contract.QueueLabel] == "" {
		return nil
	}
	p := &Pod{
		UID: pod.UID, Namespace: Once(pod.Namespace), Name: pod.Name, ResourceVersion: pod.ResourceVersion,
		Created:  pod.CreationTimestamp.Time,
		Node:     Once(pod.Spec.NodeName),
		Deleting: pod.DeletionTimestamp != nil,
		Ended:    ended(&pod.Status),
		Unbound:  bound,
	}
	p.Grace = graceOf(pod)
	if c := metav1.GetControllerOfNoCopy(pod); c != nil {
		p.Controller = Once(c.Kind)
	}
	if pod.Spec.Priority != nil {
		p.Priority = *pod.Spec.Priority
	}
	needs := gang.RequestsOf(pod)
	p.Queue, p.MilliCPU, p.Memory = Once(pod.Labels[contract.QueueLabel]), needs.MilliCPU, needs.Memory
	switch {
	case p.Node == "":
		p.Unbound = unboundOf(pod, needs)
	case !p.Ended:
		p.Started = startedAt(pod)
	}
	p.UsesGPU = contract.UsesGPU(&pod.Spec, res)
	req, err := contract.ParsePod(pod, res)
	if err != nil {
		p.Problem = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	if p.Member, err = memberOf(pod); err != nil && p.Problem == "" {
		p.Problem = err.Error()
	}
	for i := range req.Demands {
		req.Demands[i].Name = Once(req.Demands[i].Name)
	}
	p.Request = req
	p.Roles = gpuRoles(contract.Roles(&pod.Spec), req)
	if p.Node == "" || p.Ended {
		return p
	}
	if text, ok := pod.Annotations[contract.PlanAnnotation]; ok {
		plan, err := contract.ParsePlan(text)
		switch {
		case err != nil:
			p.PlanProblem = err.Error()
		case plan.Node != p.Node:
			p.PlanProblem = "the plan is for another node"
		default:
			p.Plan = grantsOf(plan)
		}
	}
	p.Devices = devicesOf(&pod.Status, res)
	return p
}

func unboundOf(pod *corev1.Pod, needs gang.Resources) *Unbound {
	u := &Unbound{
		Nominated: pod.Status.NominatedNodeName, Free: free(&pod.Spec), Needs: needs, Constraints: gang.ConstraintsOf(pod),
		Nonpreempting: pod.Spec.PreemptionPolicy != nil && *pod.Spec.PreemptionPolicy == corev1.PreemptNever,
	}
	u.Gated, u.ForeignGates = gatesOf(pod)
	u.Unschedulable, u.Refusal = unschedulable(&pod.Status)
	return u
}

// ended says whether no container runs, or will run. The phase alone does not do:
// whoever may write it can say Failed while containers still run, with the GPUs
// in their hands; the node plugin looks at the same.
func ended(status *corev1.PodStatus) bool {
	if status.Phase != corev1.PodSucceeded && status.Phase != corev1.PodFailed {
		return false
	}
	for _, list := range [][]corev1.ContainerStatus{status.InitContainerStatuses, status.ContainerStatuses, status.EphemeralContainerStatuses} {
		if slices.ContainsFunc(list, func(s corev1.ContainerStatus) bool { return s.State.Running != nil }) {
			return false
		}
	}
	return true
}

// unschedulable says whether the scheduler found no node, and its words.
func unschedulable(status *corev1.PodStatus) (yes bool, message string) {
	for i := range status.Conditions {
		c := &status.Conditions[i]
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
			return true, c.Message
		}
	}
	return false, ""
}

// graceOf is what a kubelet gives the pod's containers: what the deletion
// allows if it came first, else what the pod asks for. A deletion by force
// allows nothing, but reaches the kubelet only as the pod's absence.
func graceOf(pod *corev1.Pod) time.Duration {
	seconds := int64(corev1.DefaultTerminationGracePeriodSeconds)
	if s := pod.Spec.TerminationGracePeriodSeconds; s != nil {
		seconds = *s
	}
	if s := pod.DeletionGracePeriodSeconds; s != nil && *s > 0 {
		seconds = *s
	}
	return time.Duration(max(seconds, 1)) * time.Second
}

// gpuRoles leaves out the containers that use no GPU: they change no charge,
// and a pod's sidecars are many. Of a pod whose request cannot be read, all
// stay.
func gpuRoles(roles []contract.ContainerRole, req contract.Request) []contract.ContainerRole {
	if len(req.Demands) == 0 {
		return roles
	}
	kept := make([]contract.ContainerRole, 0, len(req.Demands))
	for _, d := range req.Demands {
		kept = append(kept, d.ContainerRole)
	}
	return kept
}

// devicesOf reads the device IDs that the kubelet publishes. A container with
// any ID that is not in our form belongs to another device plugin, of which
// nothing can be said.
func devicesOf(status *corev1.PodStatus, res contract.Resources) map[string]Devices {
	var devices map[string]Devices
	for _, list := range [][]corev1.ContainerStatus{status.InitContainerStatuses, status.ContainerStatuses} {
		for i := range list {
			d, ok := containerDevices(&list[i], res)
			if !ok {
				continue
			}
			if devices == nil {
				devices = map[string]Devices{}
			}
			devices[list[i].Name] = d
		}
	}
	return devices
}

func containerDevices(status *corev1.ContainerStatus, res contract.Resources) (Devices, bool) {
	d := Devices{}
	for _, r := range status.AllocatedResourcesStatus {
		if r.Name != res.Share && r.Name != res.GPU || len(r.Resources) == 0 {
			continue
		}
		d.Whole = r.Name == res.GPU
		for _, health := range r.Resources {
			id, err := contract.ParseDeviceID(string(health.ResourceID))
			if err != nil {
				return Devices{}, false
			}
			if d.Count == nil {
				d.Count = map[contract.GPUUUID]int{}
			}
			d.Count[id.GPU]++
		}
	}
	return d, len(d.Count) > 0
}

// WholeOnly says whether the pod asks for nothing but whole GPUs of any kind,
// which a device plugin other than ours can give it as well.
func (p *Pod) WholeOnly() bool {
	if p.Problem != "" || len(p.Request.Models) > 0 || p.Request.RequireIsolation {
		return false
	}
	for _, d := range p.Request.Demands {
		if !d.Whole {
			return false
		}
	}
	return len(p.Request.Demands) > 0
}

// Demand returns what a container asks for.
func (p *Pod) Demand(container string) (contract.Demand, bool) {
	for _, d := range p.Request.Demands {
		if d.Name == container {
			return d, true
		}
	}
	return contract.Demand{}, false
}

// SameDecision says whether nothing that the planner looks at differs from o,
// an earlier or later view of the same pod. Most updates of a running pod are
// of that kind: conditions, restart counts, readiness.
func (p *Pod) SameDecision(o *Pod) bool {
	if p.Queue != o.Queue || p.Gated != o.Gated || !slices.Equal(p.ForeignGates, o.ForeignGates) || !p.Started.Equal(o.Started) || p.MilliCPU != o.MilliCPU || p.Memory != o.Memory {
		return false
	}
	if p.UID != o.UID || p.Node != o.Node || p.Deleting != o.Deleting || p.Ended != o.Ended || p.Unschedulable != o.Unschedulable || p.Refusal != o.Refusal || p.Nominated != o.Nominated || p.Problem != o.Problem || p.PlanProblem != o.PlanProblem {
		return false
	}
	if p.Constraints.Key() != o.Constraints.Key() || !p.Needs.Equal(o.Needs) {
		return false
	}
	return sameMember(p.Member, o.Member) && sameRequest(p.Request, o.Request) && slices.Equal(p.Plan, o.Plan) && sameDevices(p.Devices, o.Devices)
}
