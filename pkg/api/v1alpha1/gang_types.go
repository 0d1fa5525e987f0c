package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Gang is a set of pods that start together or not at all. A user writes one,
// or the system does for pods that name a gang which nobody has written.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Namespaced,shortName=tg,categories=tranche
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.ready`,description="members that are ready or have succeeded, of minCount"
// +kubebuilder:printcolumn:name="Members",type=integer,JSONPath=`.status.members`
// +kubebuilder:printcolumn:name="Held",type=integer,JSONPath=`.status.held`,priority=1
// +kubebuilder:printcolumn:name="Bound",type=integer,JSONPath=`.status.bound`,priority=1
// +kubebuilder:printcolumn:name="Running",type=integer,JSONPath=`.status.running`,priority=1
// +kubebuilder:printcolumn:name="Min",type=integer,JSONPath=`.spec.minCount`,priority=1
// +kubebuilder:printcolumn:name="Queue",type=string,JSONPath=`.spec.queue`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.reasons[0].message`,description="what the gang waits for"
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="pods name their gang in a label, so use at most 63 characters"
type Gang struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   GangSpec   `json:"spec"`
	Status GangStatus `json:"status,omitempty"`
}

// GangSpec says how many pods make a gang whole and what it needs.
type GangSpec struct {
	// minCount is how many pods must be placed before any of them starts. Pods
	// beyond it start as room appears. It may be changed at any time, also
	// while the gang runs.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	MinCount int32 `json:"minCount"`

	// queue is the queue that all members wait in. Absent: the one that the
	// members' labels, or their namespace's, name.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Queue string `json:"queue,omitempty"`

	// disruptionMode says what the loss of members takes: Single pods, or All
	// of the gang, for work that cannot go on without a member. Default Single.
	//
	// +optional
	// +kubebuilder:default=Single
	DisruptionMode DisruptionMode `json:"disruptionMode,omitempty"`

	// stalenessGracePeriod is for disruptionMode All: how long a gang that has
	// started may have fewer than minCount members before the rest is evicted.
	// Zero means never. Absent: what the extender's flag
	// --gang-staleness-grace-period says, which is never by default.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="write a duration that is not negative, such as \"60s\""
	StalenessGracePeriod *metav1.Duration `json:"stalenessGracePeriod,omitempty"`

	// topology keeps the members close to each other. Absent: anywhere.
	//
	// +optional
	Topology *GangTopology `json:"topology,omitempty"`
}

// GangTopology keeps a gang's members close to each other.
type GangTopology struct {
	// nodeLabel is the key of a node label, such as
	// "topology.kubernetes.io/zone". Nodes with the same value of it are one
	// domain; nodes without the label are in none.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="!format.qualifiedName().validate(self).hasValue()",message="write the key of a node label, such as \"topology.kubernetes.io/zone\""
	NodeLabel string `json:"nodeLabel"`

	// mode says how strictly: Required places all members in one domain or
	// none of them; Preferred takes one domain if it can, and else as few as
	// it finds.
	//
	// +optional
	// +kubebuilder:default=Preferred
	Mode TopologyMode `json:"mode,omitempty"`
}

// TopologyMode says how strictly a gang is kept together.
//
// +kubebuilder:validation:Enum=Required;Preferred
type TopologyMode string

// The values of TopologyMode.
const (
	// TopologyRequired gangs wait rather than leave a domain.
	TopologyRequired TopologyMode = "Required"
	// TopologyPreferred gangs leave it if they must.
	TopologyPreferred TopologyMode = "Preferred"
)

// DisruptionMode says what the loss of members takes of a gang.
//
// +kubebuilder:validation:Enum=Single;All
type DisruptionMode string

// The values of DisruptionMode.
const (
	// DisruptSingle gangs go on with the members that they have.
	DisruptSingle DisruptionMode = "Single"
	// DisruptAll gangs are worth nothing below minCount.
	DisruptAll DisruptionMode = "All"
)

// GangPhase is where a gang is on its way.
//
// +kubebuilder:validation:Enum=Pending;Held;Bound;Running;Finished
type GangPhase string

// The values of GangPhase.
const (
	// GangPending gangs wait: for members, for quota or for GPUs.
	GangPending GangPhase = "Pending"
	// GangHeld gangs have a place planned for minCount members.
	GangHeld GangPhase = "Held"
	// GangBound gangs have at least minCount members bound to nodes.
	GangBound GangPhase = "Bound"
	// GangRunning gangs have at least minCount members running.
	GangRunning GangPhase = "Running"
	// GangFinished gangs have no member left that will run.
	GangFinished GangPhase = "Finished"
)

// Types of a Gang's conditions.
const (
	// GangAdmitted is true while all of minCount hold places or nodes.
	GangAdmitted = "Admitted"
	// GangStarted is true once all of minCount were bound, and stays so: what
	// is lost later is repaired.
	GangStarted = "Started"
)

// Types of a Gang's reasons. The set is fixed; the messages may have numbers.
const (
	// ReasonWaitingForMembers: fewer pods than minCount exist.
	ReasonWaitingForMembers = "WaitingForMembers"
	// ReasonMinCountUnknown: neither object nor annotation says minCount.
	ReasonMinCountUnknown = "MinCountUnknown"
	// ReasonMembersDisagree: members name several queues or priorities.
	ReasonMembersDisagree = "MembersDisagree"
	// ReasonNoPlace: there is no room for all of minCount at once.
	ReasonNoPlace = "NoPlace"
	// ReasonNoDomain: there is room, but not within one topology domain.
	ReasonNoDomain = "NoDomain"
	// ReasonSchedulerRefuses: kube-scheduler's own filters refused the places.
	ReasonSchedulerRefuses = "SchedulerRefuses"
	// ReasonBindFailed: binding failed and is tried again.
	ReasonBindFailed = "BindFailed"
	// ReasonInvalidMember: a member's request or declaration makes no sense.
	ReasonInvalidMember = "InvalidMember"
	// ReasonForeignGate: a scheduling gate of somebody else holds a member back.
	ReasonForeignGate = "ForeignGate"
	// ReasonBelowMinCount: the gang has started and lost members since.
	ReasonBelowMinCount = "BelowMinCount"
	// ReasonQueueUnknown: there is no queue of that name, or none above it.
	ReasonQueueUnknown = "QueueUnknown"
	// ReasonQueueStopped: stopPolicy, or the end, of the queue or one above it.
	ReasonQueueStopped = "QueueStopped"
	// ReasonQueueNotLeaf: the queue has children, so it takes no pods.
	ReasonQueueNotLeaf = "QueueHasChildren"
	// ReasonQueueForbidden: the queue's namespaceSelector leaves out the
	// gang's namespace.
	ReasonQueueForbidden = "QueueForbidden"
	// ReasonQueueLimit: the gang would exceed a limit; once others of the queue
	// have ended it will not.
	ReasonQueueLimit = "QueueLimitReached"
	// ReasonQueueTooSmall: the gang alone exceeds a limit, so it will wait for
	// ever.
	ReasonQueueTooSmall = "QueueLimitTooLow"
	// ReasonReclaiming: pods of other queues are being evicted for the gang.
	ReasonReclaiming = "Reclaiming"
)

// Limits of GangStatus, which the API server enforces. Who writes a status cuts
// what exceeds them: an object must stay well below etcd's 1.5 MiB.
const (
	MaxGangReasons       = 16
	MaxGangReasonMessage = 1024
	MaxGangPlacements    = 512
	MaxGangPlacementPods = 256
)

// GangStatus is what the extender last saw of a gang.
type GangStatus struct {
	// observedGeneration is the generation of the spec that this status is
	// about.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// +optional
	Phase GangPhase `json:"phase,omitempty"`

	// ready is, for people, how many members are ready or have succeeded, and
	// minCount, such as "3/4".
	//
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Ready string `json:"ready,omitempty"`

	// members counts the gang's pods: those that exist, and those that have
	// succeeded since. Each of the counts includes the next, in the order
	// members, held, bound, running.
	//
	// +optional
	Members int32 `json:"members"`

	// held counts the members that have a place, planned or taken.
	//
	// +optional
	Held int32 `json:"held"`

	// bound counts the members that have a node.
	//
	// +optional
	Bound int32 `json:"bound"`

	// running counts the members that run or have succeeded.
	//
	// +optional
	Running int32 `json:"running"`

	// reasons say what the gang waits for, the first being the most important.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Reasons []GangReason `json:"reasons,omitempty"`

	// placement says which members are on which node, planned or bound, in
	// order of the nodes' names. Of a very large gang it holds the first nodes.
	//
	// +optional
	// +listType=map
	// +listMapKey=node
	// +kubebuilder:validation:MaxItems=512
	Placement []GangPlacement `json:"placement,omitempty"`

	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// GangPlacement is what a node has of a gang.
type GangPlacement struct {
	// node is the node's name.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node"`

	// pods are the names of the members there, in order.
	//
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=253
	Pods []string `json:"pods"`
}

// GangReason is one thing that a gang waits for.
type GangReason struct {
	// type is a word for programs, in CamelCase, such as "NoPlace".
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Type string `json:"type"`

	// message is a sentence for people that says what to do.
	//
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message"`

	// members is how many pods this holds back; 0 if it is the whole gang.
	//
	// +optional
	Members int32 `json:"members,omitempty"`
}

// GangList is a list of gangs.
//
// +kubebuilder:object:root=true
type GangList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Gang `json:"items"`
}
