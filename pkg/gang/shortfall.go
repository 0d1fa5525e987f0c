package gang

import (
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/units"
)

// Reason says in one word why no plan was found. The words are constants, for
// machines; Shortfall.Message is for people.
type Reason string

const (
	// NoPlace: the cluster has fewer places now than the gang needs.
	NoPlace Reason = "NoPlace"
	// NoDomain: it may have enough, but no topology domain alone has.
	NoDomain Reason = "NoDomain"
	// InvalidMember: a member's request cannot be planned at all.
	InvalidMember Reason = "InvalidMember"
	// NoVictims: evicting pods might make room, but none may be evicted whose
	// absence would. Plan never says so; package reclaim does.
	NoVictims Reason = "NoVictims"
)

// Shortfall says why Plan found no places.
type Shortfall struct {
	Reason Reason
	// Asks are what the members without a place ask for, one per shape, those
	// with too few places first. All numbers are for one shape alone.
	Asks []Ask
	// Together is the most members for which places were found at once, of all
	// shapes, where each shape alone finds enough.
	Together int
	// Evicted is how many running pods were counted as gone. Plan leaves it 0;
	// package reclaim sets it.
	Evicted int
	// Nodes is how many nodes were looked at: all, or those of Domain.
	Nodes int
	// Label and Domain are set for NoDomain: the topology's label, and the
	// domain where the members must go or, if Chosen, where most find room.
	Label, Domain string
	Chosen        bool
	// Torn: pinned members are in several domains or outside all.
	Torn bool
	// Member is the position of the invalid member, Pod who it is and Problem
	// what is wrong.
	Member  int
	Pod     ledger.Pod
	Problem string
}

// Ask is what the members of one shape ask for, and how far that is there.
type Ask struct {
	// What is one pod's request in words, Count how many pods ask for it.
	What  string
	Count int
	// Places is how many find room now, on PlaceNodes nodes.
	Places, PlaceNodes int
	// Piece is the biggest part of one GPU that is left over once the places
	// are taken, in shares and, if the request is for memory, in MiB; zero if
	// that tells nothing.
	Piece     units.Shares
	PieceMiB  units.MiB
	PieceNode string
	// Refusals say what refuses one more pod on each node, by the number of
	// nodes and then by text.
	Refusals []Refusal
	// Ever is how many would find room if the pod's gang had the nodes to
	// itself; no more than Count is counted.
	Ever int
}

// Refusal is a constant reason, or the lack of a resource, and the number of
// nodes which it is true of.
type Refusal struct {
	Why   string
	Nodes int
}

// lacking says that at least one more is needed.
func (a *Ask) lacking() bool { return a.Places < a.Count }

// needed is how many more places the shape needs.
func (a *Ask) needed() int { return max(a.Count-a.Places, 0) }
