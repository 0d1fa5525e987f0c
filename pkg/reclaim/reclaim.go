package reclaim

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/gang"
	"github.com/tranche-dev/tranche/pkg/queue"
)

// Pod is a bound pod. What it is charged for GPUs is in its node's view, under
// its UID; Needs is what its node has more of once it is gone.
type Pod struct {
	UID   types.UID
	Node  string
	Needs gang.Resources
}

// Unit is what is evicted as a whole or not at all.
type Unit struct {
	// ID is unique among the units of a Problem.
	ID       string
	Queue    string
	Priority int32
	Started  time.Time
	Pods     []Pod
	// Charge is what its queue has more of once it is gone. Only Rules use it.
	Charge queue.Amounts
}

// Rules say which units may be taken. They know those that are taken already.
type Rules interface {
	// MayTake says whether u may go, besides all that are taken.
	MayTake(u *Unit) bool
	// Take and Return note that u is taken, or not any more.
	Take(u *Unit)
	Return(u *Unit)
	// Final says whether the units that are taken will do: that the claimant
	// is entitled and stays below all limits once they are gone.
	Final() bool
}

// Problem is all that Select looks at. It changes none of it but Rules.
type Problem struct {
	// Nodes, Members, Topology and Options are what gang.Plan takes. The units'
	// pods count in the nodes' Free and GPUs.
	Nodes    []*gang.Node
	Members  []gang.Member
	Topology *gang.Topology
	Options  gang.Options

	Units []*Unit
	Rules Rules
	// MostVictims bounds the number of pods that are evicted; 0: no bound.
	MostVictims int
}

// Result is what Select found: places[i] belongs to Problem.Members[i].
type Result struct {
	Victims []*Unit
	Places  []gang.Place
}
