package view

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Gang is what the extender keeps of a Gang object.
type Gang struct {
	Namespace, Name string
	UID             types.UID
	Generation      int64
	// Managed says that the system made it, so that its size follows its
	// members.
	Managed  bool
	MinCount int32
	// DisruptAll says that the gang cannot go on without a member.
	DisruptAll bool
	// Staleness is how long it may stay below its minimum, nil if it leaves
	// that to the setting.
	Staleness *time.Duration
	// NodeLabel, if not empty, names the domains that its members keep to;
	// Required says whether they must.
	NodeLabel string
	Required  bool
	// Queue is the queue of its members, empty if it leaves that to them.
	Queue string
	// Started says that all of its minimum were bound once.
	Started bool
}

// Group is what the extender keeps of a PodGroup of Kubernetes.
type Group struct {
	Namespace, Name string
	// MinCount is 0 for a group that is no gang.
	MinCount int32
}
