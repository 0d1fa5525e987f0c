package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Gang is a set of pods that start together or not at all. A user writes one,
// or the system does for every owner whose pods belong together.
//
// In this release gangs are checked and stored; nothing acts on them yet.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Namespaced,shortName=tg,categories=tranche
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Queue",type=string,JSONPath=`.spec.queue`
// +kubebuilder:printcolumn:name="Min",type=integer,JSONPath=`.spec.minCount`
// +kubebuilder:printcolumn:name="Members",type=integer,JSONPath=`.status.members`
// +kubebuilder:printcolumn:name="Running",type=integer,JSONPath=`.status.running`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Why",type=string,JSONPath=`.status.reasons[0].message`,description="what the gang waits for"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
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
	// beyond it start as room appears. It may be changed at any time.
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

	// disruptionMode says what an eviction takes: Single pods, or All of the
	// gang, for work that cannot go on without a member. Default Single.
	//
	// +optional
	// +kubebuilder:default=Single
	DisruptionMode DisruptionMode `json:"disruptionMode,omitempty"`

	// topology keeps the members close to each other. Absent: anywhere.
	//
	// +optional
	Topology *GangTopology `json:"topology,omitempty"`
}

// GangTopology keeps a gang's members within one part of the cluster.
type GangTopology struct {
	// nodeLabel is the key of a node label; all members go to nodes with the
	// same value of it, such as "topology.kubernetes.io/zone".
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	NodeLabel string `json:"nodeLabel"`
}

// DisruptionMode says what an eviction takes of a gang.
//
// +kubebuilder:validation:Enum=Single;All
type DisruptionMode string

// The values of DisruptionMode.
const (
	DisruptSingle DisruptionMode = "Single"
	DisruptAll    DisruptionMode = "All"
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

// GangStatus is what the extender last saw of a gang.
type GangStatus struct {
	// +optional
	Phase GangPhase `json:"phase,omitempty"`

	// members counts the gang's pods that exist, held those with a planned
	// place, bound those with a node, running those whose containers run.
	// Each count includes the ones after it.
	//
	// +optional
	Members int32 `json:"members"`
	// +optional
	Held int32 `json:"held"`
	// +optional
	Bound int32 `json:"bound"`
	// +optional
	Running int32 `json:"running"`

	// reasons say what the gang waits for, the first being the most important.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Reasons []GangReason `json:"reasons,omitempty"`

	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// GangReason is one thing that a gang waits for.
type GangReason struct {
	// type is a word for programs, in CamelCase, such as "QueueOverLimit".
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
