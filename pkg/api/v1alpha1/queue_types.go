package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Queue is a share of the cluster that pods wait in. Queues form a tree: only
// leaves take pods, the inner ones divide what they have among their children.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=tq,categories=tranche
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Parent",type=string,JSONPath=`.spec.parent`
// +kubebuilder:printcolumn:name="Weight",type=integer,JSONPath=`.spec.weight`
// +kubebuilder:printcolumn:name="Deserved",type=string,JSONPath=`.spec.deserved.gpu`,description="GPUs guaranteed against siblings"
// +kubebuilder:printcolumn:name="Limit",type=string,JSONPath=`.status.effectiveLimit.gpu`,description="most GPUs, ancestors' limits included"
// +kubebuilder:printcolumn:name="Allocated",type=string,JSONPath=`.status.allocated.gpu`,description="GPUs of bound pods"
// +kubebuilder:printcolumn:name="Held",type=string,JSONPath=`.status.held.gpu`,description="GPUs planned for pods that are not bound yet",priority=1
// +kubebuilder:printcolumn:name="Demand",type=string,JSONPath=`.status.demand.gpu`,description="GPUs that pods have and wait for",priority=1
// +kubebuilder:printcolumn:name="FairShare",type=string,JSONPath=`.status.fairShare.gpu`,description="GPUs that the queue is entitled to at present"
// +kubebuilder:printcolumn:name="Pending",type=integer,JSONPath=`.status.pendingGangs`,description="gangs that wait, single pods included"
// +kubebuilder:printcolumn:name="Open",type=boolean,JSONPath=`.status.open`,priority=1
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,description="Ready, or why nothing starts"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="pods name their queue in a label, so use at most 63 characters"
// +kubebuilder:validation:XValidation:rule="!has(self.spec) || !has(self.spec.parent) || self.spec.parent != self.metadata.name",message="a queue cannot be its own parent"
type Queue struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +kubebuilder:default={}
	Spec   QueueSpec   `json:"spec,omitempty"`
	Status QueueStatus `json:"status,omitempty"`
}

// QueueSpec says what a queue is entitled to and how it treats its pods.
type QueueSpec struct {
	// parent is the name of the queue above this one. Absent: a queue at the
	// top, which divides the whole cluster with its siblings.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Parent string `json:"parent,omitempty"`

	// weight is this queue's part of what is left when every queue has what it
	// deserves, relative to its siblings of the same priority. Default 1.
	//
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	Weight int32 `json:"weight,omitempty"`

	// priority orders siblings: what is left goes to the highest first, by
	// weight within one priority. Default 0.
	//
	// +optional
	Priority int32 `json:"priority,omitempty"`

	// deserved is guaranteed to this queue against its siblings. A resource
	// that is absent is deserved nothing of.
	//
	// +optional
	Deserved QueueResources `json:"deserved,omitempty,omitzero"`

	// limit is the most that this queue may ever have. A resource that is
	// absent has no limit of its own; ancestors' limits hold all the same.
	//
	// +optional
	Limit QueueResources `json:"limit,omitempty,omitzero"`

	// +optional
	// +kubebuilder:default={}
	Reclaim ReclaimPolicy `json:"reclaim,omitempty,omitzero"`

	// stopPolicy stops the queue: Hold admits nobody new, HoldAndDrain also
	// evicts what is running. Default None.
	//
	// +optional
	// +kubebuilder:default=None
	StopPolicy StopPolicy `json:"stopPolicy,omitempty"`

	// placement is how pods of this queue that do not say themselves are put
	// on GPUs. Absent: as the extender is configured.
	//
	// +optional
	Placement PlacementPolicy `json:"placement,omitempty"`

	// admission says whether single pods get a scheduling gate: Gated always,
	// Direct never, Auto only while the queue has a backlog or is above its
	// share. Default Auto. Members of gangs always get one.
	//
	// +optional
	// +kubebuilder:default=Auto
	Admission AdmissionMode `json:"admission,omitempty"`

	// whenFull says what happens to the head of the queue when only free GPUs
	// are lacking: Hold keeps its gate, Expose lifts it, so that a cluster
	// autoscaler sees a pod that cannot be scheduled. Default Hold.
	//
	// +optional
	// +kubebuilder:default=Hold
	WhenFull WhenFullPolicy `json:"whenFull,omitempty"`

	// namespaceSelector selects the namespaces whose pods may use the queue.
	// Absent or empty: all of them.
	//
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`

	// gang holds defaults for the gangs of this queue.
	//
	// +optional
	Gang QueueGangDefaults `json:"gang,omitempty,omitzero"`
}

// QueueResources is an amount of each resource that queues divide, as a user
// writes it.
//
// Exponents of three digits and more are refused, and first: to read one such
// as "1e-999999999" takes a program minutes and gigabytes.
type QueueResources struct {
	// gpu is a decimal number of GPUs, such as "3.5". What is not a whole number
	// of shares of a GPU is rounded: up if it is deserved, down if it is a limit.
	//
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="!string(self).matches('[eE][+-]?[0-9]{3}') && sign(quantity(string(self))) >= 0",message="write a number of GPUs that is not negative, such as \"3.5\""
	GPU *resource.Quantity `json:"gpu,omitempty"`

	// gpuModels are numbers of GPUs by model, as the node's inventory names
	// the model. They are part of gpu, not in addition to it.
	//
	// +optional
	// +kubebuilder:validation:MaxProperties=12
	// +kubebuilder:validation:XValidation:rule="self.all(model, type(self[model]) == int ? self[model] >= 0 : !self[model].matches('[-eE]'))",message="write numbers of GPUs that are not negative and have no exponent, such as \"3.5\""
	GPUModels map[string]resource.Quantity `json:"gpuModels,omitempty"`

	// cpu is a number of cores, such as "16" or "500m".
	//
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="!string(self).matches('[eE][+-]?[0-9]{3}') && sign(quantity(string(self))) >= 0",message="write a number of cores that is not negative, such as \"16\""
	CPU *resource.Quantity `json:"cpu,omitempty"`

	// memory is an amount of main memory, such as "64Gi".
	//
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="!string(self).matches('[eE][+-]?[0-9]{3}') && sign(quantity(string(self))) >= 0",message="write an amount of memory that is not negative, such as \"64Gi\""
	Memory *resource.Quantity `json:"memory,omitempty"`
}

// GPUs is a decimal number of GPUs as people write it, "3.5" and not "3500m".
// At most three decimals, the finest grain that a GPU can be cut into.
type GPUs string

// QueueUsage is an amount of each resource that queues divide, as the system
// reports it.
type QueueUsage struct {
	// gpu is a decimal number of GPUs, such as "3.5".
	//
	// +optional
	GPU GPUs `json:"gpu,omitempty"`

	// gpuModels are numbers of GPUs by model; they are part of gpu.
	//
	// +optional
	GPUModels map[string]GPUs `json:"gpuModels,omitempty"`

	// cpu is a number of cores.
	//
	// +optional
	CPU *resource.Quantity `json:"cpu,omitempty"`

	// memory is an amount of main memory.
	//
	// +optional
	Memory *resource.Quantity `json:"memory,omitempty"`
}

// ReclaimPolicy says what a queue below its share may take back from siblings
// above theirs, and how soon they may take from it.
type ReclaimPolicy struct {
	// policy is whose pods may be evicted for this queue: Never anybody's,
	// LowerPriority only those of lower pod priority, Any everybody's.
	// Default Any.
	//
	// +optional
	// +kubebuilder:default=Any
	Policy ReclaimMode `json:"policy,omitempty"`

	// delay is how long the queue waits for GPUs to become free by themselves
	// before it takes them back, such as "30s". Default 0s.
	//
	// +optional
	// +kubebuilder:default="0s"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="write a duration that is not negative, such as \"30s\""
	Delay metav1.Duration `json:"delay,omitempty,omitzero"`

	// minRuntime is how long pods of this queue run before they may be evicted
	// for other queues, such as "10m", so that work is not thrown away that has
	// just begun. Default 0s.
	//
	// +optional
	// +kubebuilder:default="0s"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="write a duration that is not negative, such as \"10m\""
	MinRuntime metav1.Duration `json:"minRuntime,omitempty,omitzero"`
}

// QueueGangDefaults are a queue's defaults for its gangs. Absent fields leave
// the choice to the extender's configuration.
type QueueGangDefaults struct {
	// holdTimeout is how long planned GPUs are kept for a gang whose members
	// have not all been bound, such as "30s".
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s')",message="write a duration above zero, such as \"30s\""
	HoldTimeout *metav1.Duration `json:"holdTimeout,omitempty"`

	// stalenessGracePeriod is how long a started gang may be below its minimum
	// before the rest of it is evicted, such as "60s".
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="write a duration that is not negative, such as \"60s\""
	StalenessGracePeriod *metav1.Duration `json:"stalenessGracePeriod,omitempty"`
}

// ReclaimMode is whose pods may be evicted for a queue below its share.
//
// +kubebuilder:validation:Enum=Never;LowerPriority;Any
type ReclaimMode string

// The values of ReclaimMode.
const (
	ReclaimNever         ReclaimMode = "Never"
	ReclaimLowerPriority ReclaimMode = "LowerPriority"
	ReclaimAny           ReclaimMode = "Any"
)

// StopPolicy stops a queue.
//
// +kubebuilder:validation:Enum=None;Hold;HoldAndDrain
type StopPolicy string

// The values of StopPolicy.
const (
	StopNone         StopPolicy = "None"
	StopHold         StopPolicy = "Hold"
	StopHoldAndDrain StopPolicy = "HoldAndDrain"
)

// PlacementPolicy is how pods are put on GPUs; the pod annotation
// tranche.dev/placement takes the same words.
//
// +kubebuilder:validation:Enum=least-waste;binpack;spread
type PlacementPolicy string

// The values of PlacementPolicy: leave what the pods that usually come can use,
// fill GPUs that are in use first, or use the emptiest first.
const (
	PlacementLeastWaste PlacementPolicy = "least-waste"
	PlacementBinpack    PlacementPolicy = "binpack"
	PlacementSpread     PlacementPolicy = "spread"
)

// AdmissionMode says which single pods of a queue get a scheduling gate.
//
// +kubebuilder:validation:Enum=Auto;Gated;Direct
type AdmissionMode string

// The values of AdmissionMode.
const (
	AdmissionAuto   AdmissionMode = "Auto"
	AdmissionGated  AdmissionMode = "Gated"
	AdmissionDirect AdmissionMode = "Direct"
)

// WhenFullPolicy says what a queue's head does when only free GPUs lack.
//
// +kubebuilder:validation:Enum=Hold;Expose
type WhenFullPolicy string

// The values of WhenFullPolicy.
const (
	WhenFullHold   WhenFullPolicy = "Hold"
	WhenFullExpose WhenFullPolicy = "Expose"
)

// QueueFinalizer is on queues that pods are charged to or wait in, and on those
// that have children: their end waits for that of the pods.
const QueueFinalizer = "tranche.dev/queue-in-use"

// Types of a Queue's conditions.
const (
	// QueueReady is true while the queue admits pods, as far as its settings
	// and its place in the tree go. Its reason is the column Status.
	QueueReady = "Ready"
	// QueueDeservedScaled is true while the queues below this one deserve more
	// than it does, so that what they deserve is cut in proportion.
	QueueDeservedScaled = "DeservedScaled"
	// QueueOverLimit is true while the queue has more than its limit, as after
	// the limit was lowered.
	QueueOverLimit = "OverLimit"
)

// Reasons of the condition Ready.
const (
	// ReasonReady: pods are admitted as there is room.
	ReasonReady = "Ready"
	// ReasonParentUnknown: there is no queue of the parent's name.
	ReasonParentUnknown = "ParentUnknown"
	// ReasonParentCycle: the queue is above itself.
	ReasonParentCycle = "ParentCycle"
	// ReasonStopped: stopPolicy of the queue, or of one above it.
	ReasonStopped = "Stopped"
	// ReasonDeleting: the queue is gone once its pods are.
	ReasonDeleting = "Deleting"
	// ReasonInvalidQueue: something in its spec cannot be understood.
	ReasonInvalidQueue = "InvalidQueue"
	// ReasonHasChildren: pods name it, but it divides what it has among its
	// children and admits none itself.
	ReasonHasChildren = "HasChildren"
)

// Reasons of the conditions DeservedScaled and OverLimit.
const (
	// ReasonDeservedTooMuch: the children deserve more than the queue does.
	ReasonDeservedTooMuch = "DeservedTooMuch"
	// ReasonDeservedFits: they do not.
	ReasonDeservedFits = "DeservedFits"
	// ReasonLimitExceeded: the queue has more than its limit.
	ReasonLimitExceeded = "LimitExceeded"
	// ReasonWithinLimit: it has not.
	ReasonWithinLimit = "WithinLimit"
)

// QueueStatus is what the extender last saw of a queue, its descendants
// included.
type QueueStatus struct {
	// allocated is what bound pods have.
	//
	// +optional
	Allocated QueueUsage `json:"allocated,omitempty,omitzero"`

	// held is what is planned for pods that are not bound yet.
	//
	// +optional
	Held QueueUsage `json:"held,omitempty,omitzero"`

	// demand is what pods have, held and wait for, together.
	//
	// +optional
	Demand QueueUsage `json:"demand,omitempty,omitzero"`

	// fairShare is what this queue is entitled to at present: what it deserves,
	// and its part of what siblings leave.
	//
	// +optional
	FairShare QueueUsage `json:"fairShare,omitempty,omitzero"`

	// effectiveLimit is the lowest limit of this queue and its ancestors.
	//
	// +optional
	EffectiveLimit QueueUsage `json:"effectiveLimit,omitempty,omitzero"`

	// pendingGangs counts gangs that wait, single pods included.
	//
	// +optional
	PendingGangs int32 `json:"pendingGangs"`

	// open says that the queue has no backlog and is within its share, so that
	// single pods need no gate.
	//
	// +optional
	Open bool `json:"open"`

	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// QueueList is a list of queues.
//
// +kubebuilder:object:root=true
type QueueList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Queue `json:"items"`
}
