package planner

import (
	"cmp"
	"slices"
	"strings"

	"github.com/tranche-dev/tranche/pkg/placement"
)

// Reason says why a pod may not go to a node; empty: it may. Reasons are the
// fixed texts of package placement and the ones below. The scheduler writes
// them into the pod's status, where a changing text would make it try the pod
// again for ever.
type Reason = placement.Reason

// The planner's own reasons.
const (
	// Invalid: view.Pod.Problem is set; the pod's event tells the details.
	Invalid Reason = "the pod's GPU request is invalid, see the pod's events"
	// Deleting: GPUs for a pod that is on its way out would be wasted.
	Deleting Reason = "the pod is being deleted"
	// Decided: a Binding to another node is done or on its way.
	Decided Reason = "the pod already has its GPUs on another node"
	// NotOffered: other nodes would do, but the scheduler's own filters refuse
	// them. It is for events only: Filter judges the nodes that it is asked about.
	NotOffered Reason = "the nodes that have such GPUs are closed to the pod by the scheduler's own filters"
	// GangWaits: not all of the gang's members have a place.
	GangWaits Reason = "the pod's gang is not admitted yet, see the pod's events and its Gang"
	// NoResources: nodes have the GPUs, but not the cpu, memory or other resources
	// that the pod asks for beside them. It is for events only.
	NoResources Reason = "nodes that have such GPUs free have not enough cpu, memory or other resources beside them"
	// QueueWaits: the pod's queue, or one above it, is full, stopped or above its
	// share; the numbers are in the pod's events.
	QueueWaits Reason = "the pod's queue does not admit it yet, see the pod's events and its Queue"
	// GangElsewhere: the gang's plan has the pod on another node.
	GangElsewhere Reason = "the pod's gang has its place for it on another node"
)

// reasonText is what is known of a reason besides its text.
type reasonText struct {
	reason Reason
	// label stands for it in metrics. advice stands after it in the pod's event,
	// summary in its place, where it is about all nodes.
	label, advice, summary string
}

const (
	comesFree = "It is tried again as soon as enough becomes free."
	cannotBe  = "Waiting will not help: "
)

// reasons are in the order of hope: a pod that nodes refuse for different
// reasons waits for the last of them.
var reasons = []reasonText{
	{Invalid, "Invalid", "", ""},
	{Deleting, "Deleting", "", ""},
	{Decided, "Decided", "", ""},
	{GangElsewhere, "GangElsewhere", "", ""},
	{GangWaits, "GangWaits", "", ""},
	{QueueWaits, "QueueWaits", "", ""},
	{placement.Malformed, "Malformed", cannotBe + "correct the pod's limits and tranche.dev annotations.", ""},
	{placement.NoInventory, "NoInventory", "None of the nodes that the scheduler offered has GPUs under Tranche; label GPU nodes with tranche.dev/node=true, and look at the node plugin's pods.", "none has a GPU inventory from Tranche's node plugin"},
	{placement.OtherGrain, "OtherGrain", "An administrator must set the same number of shares per GPU for extender and node plugin.", "those with GPUs cut them into another number of shares than the cluster's setting"},
	{placement.NoGPUs, "NoGPUs", "Look at the node plugin's log on the nodes that should have GPUs.", "none has GPUs"},
	{placement.NoSuchModel, "NoSuchModel", cannotBe + "compare the annotation tranche.dev/gpu-model with the models in the nodes' annotation tranche.dev/gpus.", "none has a GPU of the asked model"},
	{placement.NoIsolation, "NoIsolation", cannotBe + "remove the annotation tranche.dev/isolation, or use nodes that enforce GPU memory limits.", "none enforces the GPU memory limit that the pod requires"},
	{placement.TooBig, "TooBig", cannotBe + "ask for less GPU memory, or for several GPUs with the annotation tranche.dev/gpu-count.", "it asks for more memory than any of their GPUs has"},
	{placement.TooFewGPUs, "TooFewGPUs", cannotBe + "ask for fewer GPUs.", "it asks for more GPUs than any of them has of the asked kind"},
	{placement.TooBigTogether, "TooBigTogether", cannotBe + "let the pod's containers ask for less.", "the pod's containers together ask for more than the GPUs of any of them have"},
	{NotOffered, "NotOffered", "See kube-scheduler's event FailedScheduling for what they refuse, such as a taint, a node selector, cpu or memory; it is tried again when that changes.", ""},
	{placement.Unhealthy, "Unhealthy", "It is tried again as soon as a GPU recovers.", "the GPUs that would do are unhealthy"},
	{placement.NoWholeGPU, "NoWholeGPU", comesFree, "none has a GPU that is wholly free"},
	{placement.NotEnoughFree, "NotEnoughFree", comesFree, "none has a GPU with enough free shares"},
	{placement.NotEnoughGPUs, "NotEnoughGPUs", comesFree, "none has enough GPUs with enough free shares for the asked count"},
	{placement.NotTogether, "NotTogether", comesFree, "on none do the pod's containers fit together into the free shares"},
	{NoResources, "NoResources", comesFree, ""},
}

// hope ranks a reason; unknown ones last, so that a new one is not hidden.
func hope(r Reason) int {
	i := slices.IndexFunc(reasons, func(t reasonText) bool { return t.reason == r })
	if i < 0 {
		return len(reasons)
	}
	return i
}

// final says that waiting for room does not help a pod that all nodes refuse
// for r.
func final(r Reason) bool {
	i := hope(r)
	return i < len(reasons) && strings.HasPrefix(reasons[i].advice, cannotBe) || r == placement.NoInventory || r == placement.NoGPUs
}

// Label returns the word for r in metrics.
func Label(r Reason) string {
	if i := hope(r); i < len(reasons) {
		return reasons[i].label
	}
	return "Other"
}

// Message returns the sentence about r for the pod's event; like r, it is the
// same for all pods.
func Message(r Reason) string {
	text, advice := string(r), ""
	if i := hope(r); i < len(reasons) {
		text, advice = cmp.Or(reasons[i].summary, text), reasons[i].advice
	}
	return strings.TrimSpace("No node can take the pod: " + text + ". " + advice)
}

// tally finds out for which reason a pod waits, among those of many nodes.
type tally struct {
	// seen remembers ranks, since thousands of nodes share a few reasons.
	seen map[Reason]int
	best Reason
	rank int
}

func (t *tally) add(r Reason) {
	if r == t.best {
		return
	}
	rank, ok := t.seen[r]
	if !ok {
		if t.seen == nil {
			t.seen = map[Reason]int{}
		}
		rank = hope(r)
		t.seen[r] = rank
	}
	if t.best == "" || rank > t.rank {
		t.best, t.rank = r, rank
	}
}
