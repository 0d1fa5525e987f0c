package mutate

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

// Input is all that a decision depends on.
type Input struct {
	// Pod is the pod as the API server shows it. It is read only.
	Pod       *corev1.Pod
	Namespace Namespace
	// Owner is the object that controls the pod. Nil: there is none, or
	// WantsOwner says that it does not matter.
	Owner *Owner
	Fleet Fleet
	// Queues is read only.
	Queues   Queues
	Defaults Defaults
}

// Namespace is what counts of the pod's namespace.
type Namespace struct {
	Name string
	// Queue is its label contract.QueueLabel, empty if it has none.
	Queue string
	// DefaultFraction is its annotation contract.DefaultFractionAnnotation as
	// written, empty if it has none.
	DefaultFraction string
}

// Fleet summarises the GPUs that the cluster's nodes report, healthy or not.
type Fleet struct {
	// Models are sorted by name. Empty: no node has reported a GPU yet.
	Models []Model
}

// Model is a GPU model in the cluster. One name may stand for cards of several
// sizes: Memory is that of the largest.
type Model struct {
	Name   string
	Memory units.MiB
}

// largest returns the model with the most memory, the first by name among
// equals; the zero Model if the fleet is empty.
func (f Fleet) largest() Model {
	var top Model
	for _, m := range f.Models {
		if m.Memory > top.Memory {
			top = m
		}
	}
	return top
}

// Defaults are the operator's settings.
type Defaults struct {
	Resources contract.Resources
	// Queue is for pods whose namespace names none.
	Queue string
	// GangGate holds the members of gangs back until the extender admits them,
	// QueueGate single pods where their queue wants it.
	GangGate, QueueGate bool
	// RateCPUOnly has nodes rated for pods that ask for cpu and no GPU.
	RateCPUOnly bool
}

// Outcome is a decision.
type Outcome struct {
	// Pod is what the pod shall become. It is Input.Pod itself if nothing is
	// to change or the pod is refused, else a copy.
	Pod *corev1.Pod
	// Refusals are all reasons against the pod; none: it may be created.
	Refusals []Refusal
	// Warnings are shown to whoever creates the pod, refused or not.
	Warnings []string
}

// review is a decision in the making.
type review struct {
	in Input
	// pod is in.Pod until the first edit, then a copy of it.
	pod *corev1.Pod
	// request is what pod asks for; empty, with unclear set, if that cannot be
	// said.
	request contract.Request
	unclear bool
	// gang names the pod's gang; empty if it is in none, or if that cannot be said.
	gang string
	// gpu names the containers that ask for a GPU in any way.
	gpu      map[string]bool
	refusals []Refusal
	warnings []string
}

// checks look for reasons to refuse a pod. All of them run, so that a user
// learns of all problems at once.
var checks = []func(*review){
	(*review).checkForgery,        // what only Tranche may write
	(*review).checkVisibleDevices, // GPUs taken past Tranche
	(*review).checkGPUEnvironment, // limits loosened from inside
	(*review).checkNodeName,       // past the scheduler nobody picks a GPU
	(*review).checkMemory,         // more than any GPU of the cluster has
	(*review).checkGang,           // a gang that cannot be
	(*review).checkMember,         // what no node has
	(*review).checkGate,           // a gate that nobody would lift
}

// gpuChanges make a pod that uses GPUs ready for scheduler and kubelet. These
// and the following do nothing where their work is already done.
var gpuChanges = []func(*review){
	(*review).setLimits,
	(*review).setToleration,
	(*review).hideGPUs,
}

// plainChanges are for pods that use none.
var plainChanges = []func(*review){
	(*review).hideFromEnvFrom,
	(*review).setMember,
	(*review).setCPUOnly,
}

// queueChanges put a pod into its queue.
var queueChanges = []func(*review){
	(*review).setQueue,
	(*review).setGate,
}

// hints find what is allowed but probably not meant.
var hints = []func(*review){
	(*review).hintUnknownKeys,
	(*review).hintIdleWishes,
	(*review).hintIdleContainer,
	(*review).hintIdleGang,
	(*review).hintUnreadOwner,
	(*review).hintModels,
	(*review).hintNoInventory,
	(*review).hintWeakIsolation,
	(*review).hintInitContainer,
}

// Pod decides about a pod that is being created.
func Pod(in Input) Outcome {
	r := &review{in: in, pod: in.Pod}
	r.parse()
	r.inherit()
	for _, check := range checks {
		check(r)
	}
	for _, hint := range hints {
		hint(r)
	}
	if len(r.refusals) > 0 {
		return Outcome{Pod: in.Pod, Refusals: r.refusals, Warnings: r.warnings}
	}
	kind := gpuChanges
	if len(r.request.Demands) == 0 {
		kind = plainChanges
	}
	for _, change := range kind {
		change(r)
	}
	if r.outside() == "" {
		for _, change := range queueChanges {
			change(r)
		}
	}
	return Outcome{Pod: r.pod, Warnings: r.warnings}
}

// edit returns the pod to write to. Pointers into the pod taken before the
// first call point into the original and are for reading only.
func (r *review) edit() *corev1.Pod {
	if r.pod == r.in.Pod {
		r.pod = r.in.Pod.DeepCopy()
	}
	return r.pod
}

// parse reads the request, with the namespace's default in place of whole GPUs.
func (r *review) parse() {
	res := r.in.Defaults.Resources
	r.gpu = map[string]bool{}
	for _, c := range containers(&r.pod.Spec) {
		if contract.AsksGPU(c, res) {
			r.gpu[c.Name] = true
		}
	}
	request, err := contract.ParsePod(r.pod, res)
	if err != nil {
		r.unclear = true
		r.refuseRequest(err)
		return
	}
	for _, d := range request.Demands {
		r.gpu[d.Name] = true
	}
	r.request = r.applyDefaultFraction(request)
}

// containers lists pointers to the spec's init and app containers, in the order
// of contract.Roles.
func containers(spec *corev1.PodSpec) []*corev1.Container {
	all := make([]*corev1.Container, 0, len(spec.InitContainers)+len(spec.Containers))
	for i := range spec.InitContainers {
		all = append(all, &spec.InitContainers[i])
	}
	for i := range spec.Containers {
		all = append(all, &spec.Containers[i])
	}
	return all
}

// container finds one by name, which ParsePod has checked to exist.
func container(spec *corev1.PodSpec, name string) *corev1.Container {
	all := containers(spec)
	return all[slices.IndexFunc(all, func(c *corev1.Container) bool { return c.Name == name })]
}
