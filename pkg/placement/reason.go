package placement

// Reason says why a pod does not fit on a node; empty means that it does. The
// texts are fixed: the scheduler writes them into the pod's status, where a
// text that changes makes it try the pod again for ever.
type Reason string

// The reasons, in the order in which they are tested. What waiting will not
// cure comes first, so that a person reads first what only a person can change.
const (
	// Malformed requests never fit. contract.ParsePod makes none.
	Malformed Reason = "the pod's GPU request is malformed"
	// NoInventory: nothing is known of the node's GPUs.
	NoInventory Reason = "the node has no GPU inventory from Tranche's node plugin"
	// OtherGrain: a share would mean another part of a GPU than the pod asked.
	OtherGrain Reason = "the node cuts its GPUs into another number of shares than the cluster's setting"
	// NoGPUs: the inventory is empty.
	NoGPUs Reason = "the node has no GPUs"
	// NoSuchModel: none of the allowed models is there.
	NoSuchModel Reason = "no GPU of the asked model on this node"
	// NoIsolation: too few GPUs on which a memory limit is enforced.
	NoIsolation Reason = "the node does not enforce the GPU memory limit that the pod requires"
	// TooBig: every GPU is smaller than the memory asked for.
	TooBig Reason = "asks for more memory than any GPU of this node has"
	// TooFewGPUs: not even empty would the node have as many as asked.
	TooFewGPUs Reason = "asks for more GPUs than this node has of the asked kind"
	// TooBigTogether: each container would fit an empty node, not all at once.
	TooBigTogether Reason = "the pod's containers together ask for more than this node's GPUs have"
	// Unhealthy: there would be enough GPUs if all were healthy.
	Unhealthy Reason = "the node's GPUs are unhealthy"
	// NoWholeGPU: one whole GPU is asked for and none is unused.
	NoWholeGPU Reason = "no GPU of this node is wholly free"
	// NotEnoughFree: one GPU is asked for and none has the room.
	NotEnoughFree Reason = "no single GPU has enough free shares"
	// NotEnoughGPUs: several GPUs are asked for and too few have the room.
	NotEnoughGPUs Reason = "not enough GPUs with enough free shares for the asked count"
	// NotTogether: each container would find room alone, not all at once.
	NotTogether Reason = "the pod's containers do not fit together into the free shares"
)

// reasons holds all of them in order.
var reasons = []Reason{
	Malformed, NoInventory, OtherGrain, NoGPUs, NoSuchModel, NoIsolation, TooBig, TooFewGPUs, TooBigTogether,
	Unhealthy, NoWholeGPU, NotEnoughFree, NotEnoughGPUs, NotTogether,
}

// Reasons lists all reasons, for documentation and metrics.
func Reasons() []Reason { return append([]Reason(nil), reasons...) }
