package gang

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/placement"
	"github.com/tranche-dev/tranche/pkg/units"
)

// Message returns one sentence for people. Equal shortfalls give equal text.
func (s *Shortfall) Message() string {
	if s.Reason == InvalidMember {
		return fmt.Sprintf("member %s/%s cannot be planned: %s", s.Pod.Namespace, s.Pod.Name, s.Problem)
	}
	if len(s.Asks) == 0 { // only package reclaim says so
		return "there is room, but not within the limits of the queues, and no pods may be evicted that would change that"
	}
	var parts []string
	parts = append(parts, "needs "+s.asks()+s.where())
	if s.Evicted > 0 {
		parts = append(parts, "even with "+plural(s.Evicted, "pod", "pods")+" evicted")
	}
	switch {
	case s.Torn:
		parts = append(parts, "members that run already are in several of these domains, or in none")
	case s.Label != "" && s.Nodes == 0 && s.Domain != "":
		parts = append(parts, "no node there takes any of them")
	case s.Label != "" && s.Nodes == 0:
		parts = append(parts, "no node with that label takes any of them")
	case s.Nodes == 0:
		parts = append(parts, "the cluster has no nodes")
	default:
		parts = append(parts, s.account()...)
	}
	if s.Reason == NoVictims {
		parts = append(parts, "no pods may be evicted that would make room")
	}
	return strings.Join(parts, "; ")
}

// asks lists what is asked for, those that lack most first.
func (s *Shortfall) asks() string {
	const tell = 3
	var asks []string
	for i := range s.Asks[:min(tell, len(s.Asks))] {
		asks = append(asks, fmt.Sprintf("%d × %s", s.Asks[i].Count, s.Asks[i].What))
	}
	if more := len(s.Asks) - tell; more > 0 {
		asks = append(asks, plural(more, "other kind", "other kinds"))
	}
	return join(asks)
}

// where says which nodes the numbers are about.
func (s *Shortfall) where() string {
	switch {
	case s.Label == "":
		return ""
	case s.Domain == "" || s.Torn:
		return " in one domain of " + s.Label
	case s.Chosen:
		return fmt.Sprintf(" in one domain of %s, of which %q comes nearest", s.Label, s.Domain)
	default:
		return fmt.Sprintf(" in the domain %q of %s, where other members are", s.Domain, s.Label)
	}
}

// account tells of the first ask, which lacks most; of all if each alone would
// find its places.
func (s *Shortfall) account() []string {
	a := &s.Asks[0]
	if !a.lacking() {
		if len(s.Asks) == 1 {
			return []string{"there is room, but not on nodes that the scheduler accepts for each of them"}
		}
		all := 0
		for i := range s.Asks {
			all += s.Asks[i].Count
		}
		return []string{fmt.Sprintf("each kind alone would find room, but places were found for only %d of %d together", s.Together, all)}
	}
	parts := []string{a.places(s)}
	if piece := a.pieceText(); piece != "" {
		parts = append(parts, piece)
	}
	parts = append(parts, plural(a.needed(), "more place is needed", "more places are needed"))
	const tell = 2 // the rest is noise
	for _, r := range a.Refusals[:min(tell, len(a.Refusals))] {
		parts = append(parts, plural(r.Nodes, "node: ", "nodes: ")+r.Why)
	}
	if hint := a.hint(); hint != "" {
		parts = append(parts, hint)
	}
	return parts
}

// hint says what to do if waiting for other pods to end does not help. It is
// silent where somebody may be about to put a node right.
func (a *Ask) hint() string {
	passing := func(r Refusal) bool {
		return r.Why == NodeUnschedulable || r.Why == nodeAvoided || r.Why == string(placement.Unhealthy)
	}
	switch {
	case a.Ever >= a.Count || slices.ContainsFunc(a.Refusals, passing):
		return ""
	case a.Ever == 0:
		return "even an empty cluster has no place for it: change what the pods ask for or add nodes"
	default:
		return "even an empty cluster has only " + plural(a.Ever, "place", "places") + ": ask for less, start fewer pods or add nodes"
	}
}

// places says how many places there are.
func (a *Ask) places(s *Shortfall) string {
	of := ""
	if len(s.Asks) > 1 {
		of = " for " + a.What
	}
	if a.Places == 0 {
		return fmt.Sprintf("no place%s is free on %s", of, plural(s.Nodes, "node", "nodes"))
	}
	verb := "places%s are free on %d of %s"
	if a.Places == 1 {
		verb = "place%s is free on %d of %s"
	}
	return fmt.Sprintf("%d "+verb, a.Places, of, a.PlaceNodes, plural(s.Nodes, "node", "nodes"))
}

func (a *Ask) pieceText() string {
	other := ""
	if a.Places > 0 {
		other = "other "
	}
	switch {
	case a.PieceMiB > 0:
		return fmt.Sprintf("the largest %sfree piece is %s on node %s", other, memory(a.PieceMiB), a.PieceNode)
	case a.Piece > 0:
		return fmt.Sprintf("the largest %sfree piece is %s on node %s", other, shares(a.Piece), a.PieceNode)
	}
	return ""
}

// describeDemand says in words what one container asks for.
func describeDemand(d *contract.Demand) string {
	switch {
	case d.Whole:
		return plural(d.Count, "whole GPU", "whole GPUs")
	case d.Memory > 0 && d.Count > 1:
		return fmt.Sprintf("%s of each of %d GPUs", memory(d.Memory), d.Count)
	case d.Memory > 0:
		return memory(d.Memory) + " of a GPU"
	case d.Count > 1:
		return fmt.Sprintf("%s of each of %d GPUs", shares(d.Shares), d.Count)
	default:
		return shares(d.Shares)
	}
}

func shares(n units.Shares) string { return plural(int(n), "share", "shares") }

// memory writes an amount in GiB where that is exact.
func memory(m units.MiB) string {
	if m%1024 == 0 {
		return fmt.Sprintf("%d GiB", m/1024)
	}
	return fmt.Sprintf("%d MiB", m)
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// join lists things as a sentence does.
func join(all []string) string {
	if len(all) < 2 {
		return strings.Join(all, "")
	}
	return strings.Join(all[:len(all)-1], ", ") + " and " + all[len(all)-1]
}
