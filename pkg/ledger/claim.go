package ledger

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

// Pod says who is charged. Only UID identifies; the names are for people.
type Pod struct {
	UID             types.UID
	Namespace, Name string
}

// Claim is what a pod takes, or is to take, of one node.
type Claim struct {
	Pod  Pod
	Node string
	// Charges are the shares per GPU, as contract.Plan.Charges gives them. The
	// ledger copies the map. A pod that uses no GPU has none: its claim counts
	// nothing, and needs no inventory of the node.
	Charges map[contract.GPUUUID]units.Shares
	// Plan is what Bind writes. The ledger keeps it until the claim is
	// confirmed and never looks inside; it must not be changed.
	Plan contract.Plan
}

// State says how firm a claim is.
type State int

const (
	// Held claims are planned and expire.
	Held State = iota
	// Allocated claims stay until they are released.
	Allocated
)

// String returns the word that GET /v1/state uses.
func (s State) String() string {
	if s == Allocated {
		return "allocated"
	}
	return "held"
}

// Charge is a number of shares of one GPU.
type Charge struct {
	GPU    contract.GPUUUID
	Shares units.Shares
}

// Record is a claim as the ledger keeps it. Records are never changed after
// they are made, so all holders may share them and their slices.
type Record struct {
	Pod   Pod
	Node  string
	State State
	// Charges are sorted by GPU and count now: Planned, unless the kubelet's
	// choice was adopted.
	Charges []Charge
	// Planned are the charges of the plan, sorted by GPU.
	Planned []Charge
	// Plan is set while the claim is held, and from Commit until Allocate or
	// Adopt confirms it.
	Plan contract.Plan
	// Expires is when a held claim ends; zero if allocated.
	Expires time.Time
}

// Adopted says whether the kubelet gave other GPUs than planned.
func (r *Record) Adopted() bool { return !slices.Equal(r.Charges, r.Planned) }

// On returns r's shares of one GPU.
func (r *Record) On(gpu contract.GPUUUID) units.Shares {
	for _, c := range r.Charges {
		if c.GPU == gpu {
			return c.Shares
		}
	}
	return 0
}

// Refusal says why Hold did not take a claim; empty means that it did. The
// texts are fixed, since they reach a pod's status by way of the scheduler.
type Refusal string

const (
	// NodeUnknown: no inventory of the node is known.
	NodeUnknown Refusal = "the node has no GPU inventory from Tranche's node plugin"
	// GPUUnknown: the inventory does not list a GPU of the claim.
	GPUUnknown Refusal = "a planned GPU is gone from the node"
	// GPUUnhealthy: the node plugin reports a GPU of the claim as unhealthy.
	GPUUnhealthy Refusal = "a planned GPU is unhealthy"
	// GPUFull: a GPU of the claim has fewer free shares than it charges.
	GPUFull Refusal = "a planned GPU has no longer enough free shares"
	// PodAllocated: the pod is bound, so its GPUs are decided.
	PodAllocated Refusal = "the pod already has its GPUs"
	// ClaimInvalid: no UID, no node, or a charge that is not positive.
	ClaimInvalid Refusal = "the claim names no pod, no node, or a charge of nothing"
)

// maxCharge bounds one pod's charge of one GPU, so that sums over any number
// of pods that fits in memory (below 2^30) stay below 2^63. Real charges are
// at most units.MaxSharesPerGPU times the number of containers.
const maxCharge units.Shares = 1 << 32

// sortedCharges copies charges in the order of GPUs, each within 1 and
// maxCharge; others are left out or cut: nothing is less than nothing.
func sortedCharges(charges map[contract.GPUUUID]units.Shares) []Charge {
	if len(charges) == 0 {
		return nil
	}
	sorted := make([]Charge, 0, len(charges))
	for gpu, s := range charges {
		if s > 0 {
			sorted = append(sorted, Charge{gpu, min(s, maxCharge)})
		}
	}
	slices.SortFunc(sorted, func(a, b Charge) int { return strings.Compare(string(a.GPU), string(b.GPU)) })
	return sorted
}

func byUID(r *Record, uid types.UID) int { return cmp.Compare(r.Pod.UID, uid) }
