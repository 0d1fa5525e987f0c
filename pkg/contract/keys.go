package contract

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/tranche-dev/tranche/pkg/units"
)

// Prefix is common to all of Tranche's labels and annotations.
const Prefix = "tranche.dev/"

// What users write.
const (
	// InjectLabel, with the value InjectEnabled, opts a namespace in.
	InjectLabel   = Prefix + "inject"
	InjectEnabled = "enabled"
	// QueueLabel names the queue, on pods, their owners and namespaces.
	QueueLabel = Prefix + "queue"
	// GangLabel names an explicit gang; GangMinCountAnnotation is its size.
	GangLabel              = Prefix + "gang"
	GangMinCountAnnotation = Prefix + "gang-min-count"
	// DefaultFractionAnnotation, on a namespace, replaces a lone
	// nvidia.com/gpu: 1 by that fraction.
	DefaultFractionAnnotation = Prefix + "default-gpu-fraction"

	// FractionAnnotation and MemoryAnnotation ask for part of a GPU. With
	// ".NAME" appended they mean the container NAME.
	FractionAnnotation = Prefix + "gpu-fraction"
	MemoryAnnotation   = Prefix + "gpu-memory"
	// CountAnnotation asks for that part on each of several GPUs.
	CountAnnotation = Prefix + "gpu-count"
	// ContainerAnnotation says which container the pod's annotations mean.
	ContainerAnnotation = Prefix + "container"
	// ModelAnnotation lists the allowed GPU models, separated by commas.
	ModelAnnotation = Prefix + "gpu-model"
	// PlacementAnnotation is one of Placements.
	PlacementAnnotation = Prefix + "placement"
	// IsolationAnnotation is IsolationRequired or absent.
	IsolationAnnotation = Prefix + "isolation"
	IsolationRequired   = "required"
)

// What the system writes.
const (
	// InventoryAnnotation is on nodes, by the node plugin: see Inventory.
	InventoryAnnotation = Prefix + "gpus"
	// NodeLabel, with the value "true", is put on nodes by an administrator
	// and selects where the node plugin runs.
	NodeLabel = Prefix + "node"
	// PlanAnnotation is on bound pods, by the extender: see Plan.
	PlanAnnotation = Prefix + "plan"
	// RetryAnnotation is patched onto a refused pod when room for it appeared:
	// any change of a pod makes the scheduler try it again.
	RetryAnnotation = Prefix + "retry"
	// AdmissionGate holds a pod back until the planner admits it.
	AdmissionGate = Prefix + "admission"
	// TranslatedFromAnnotation records what the webhook rewrote.
	TranslatedFromAnnotation = Prefix + "translated-from"
	// SimRunForAnnotation makes a pod on a simulated node of the local cluster
	// succeed after that long.
	SimRunForAnnotation = Prefix + "sim-run-for"
)

// VisibleDevicesEnv is what NVIDIA's container runtime reads. Users may set it
// to VisibleDevicesVoid only.
const (
	VisibleDevicesEnv  = "NVIDIA_VISIBLE_DEVICES"
	VisibleDevicesVoid = "void"
)

// MemberResource is an extended resource of which members of gangs that use no GPU
// ask for 0, so that kube-scheduler sends them to the extender: it does so for any
// pod that names a resource which the extender manages, whatever the amount. No
// node offers it and no device plugin registers it, so that scheduler and kubelet
// pass over the 0. They would not do so with 0 of Resources.Share: a kubelet looks
// whether a known plugin is there and healthy before it looks at the amount
// (devicesToAllocate, as of 1.37), and would fail the pod on a node whose plugin
// is away.
const MemberResource corev1.ResourceName = Prefix + "member"

// CPUOnlyResource is an extended resource of which pods that ask for cpu and no GPU
// ask for 0, so that kube-scheduler asks the extender which nodes suit them, and
// nothing else: see the second extender of its configuration. As with
// MemberResource, no node has it and all pass over the 0.
const CPUOnlyResource corev1.ResourceName = Prefix + "cpu-only"

// GPUTaint is the taint that GPU nodes conventionally carry.
const GPUTaint = "nvidia.com/gpu"

// Placement policies that a pod may ask for.
type Placement string

// The empty Placement leaves the choice to the queue or the cluster.
const (
	PlacementLeastWaste Placement = "least-waste"
	PlacementBinpack    Placement = "binpack"
	PlacementSpread     Placement = "spread"
)

// Placements lists them.
func Placements() []Placement {
	return []Placement{PlacementLeastWaste, PlacementBinpack, PlacementSpread}
}

// PlacementWords names them in a sentence that says what to write.
const PlacementWords = `"least-waste", "binpack" or "spread"`

// Resources names the two extended resources and the grain of the first.
type Resources struct {
	// Share counts shares of GPUs, GPU whole ones.
	Share, GPU corev1.ResourceName
	// PerGPU is how many shares one GPU is cut into; between 1 and
	// units.MaxSharesPerGPU.
	PerGPU units.Shares
}

// DefaultResources are the names that the documentation uses.
func DefaultResources() Resources {
	return Resources{Share: "nvidia.com/gpu-share", GPU: "nvidia.com/gpu", PerGPU: units.DefaultSharesPerGPU}
}
