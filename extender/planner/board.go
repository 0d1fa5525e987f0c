package planner

import (
	"slices"
	"strings"

	"github.com/tranche-dev/tranche/pkg/gang"
)

// board is what rounds know of nodes. It is kept from round to round, and brought
// up to date where nodes have changed, so that a round costs what has changed and
// not what there is.
type board struct {
	// nodes are all, by name; states what they are made of; at is where they are.
	nodes  []*gang.Node
	states []*nodeState
	at     map[string]int
	// set is the state's count of nodes' changes for which they were listed.
	set uint64
	// changes logs where a node was brought up to date since, in turn.
	changes journal[int]
}

// list makes the board of the nodes that there are.
func (b *board) list(s *state) {
	*b = board{set: s.nodeSet, at: make(map[string]int, len(s.nodes)), changes: journal[int]{first: b.changes.end()}}
	for name, n := range s.nodes {
		if n.view != nil {
			b.nodes = append(b.nodes, &gang.Node{Name: name, Labels: n.view.Labels, Taints: n.view.Taints, Unschedulable: n.view.Unschedulable, Allocatable: n.view.Allocatable})
		}
	}
	slices.SortFunc(b.nodes, func(x, y *gang.Node) int { return strings.Compare(x.Name, y.Name) })
	b.states = make([]*nodeState, len(b.nodes))
	for i, g := range b.nodes {
		b.at[g.Name], b.states[i] = i, s.nodes[g.Name]
		b.update(s, i)
	}
}

// update brings the i-th node up to date.
func (b *board) update(s *state, i int) {
	g, n := b.nodes[i], b.states[i]
	g.Free = g.Allocatable.Sub(n.used).Sub(n.kept)
	g.GPUs = s.ledger.Node(g.Name)
	b.changes.add(i)
}

// refresh brings all nodes up to date at the beginning of a round, and says whether
// it is other nodes now.
func (b *board) refresh(s *state) (other bool) {
	if other = b.set != s.nodeSet; other {
		b.list(s)
	} else {
		for i, g := range b.nodes {
			if v := s.ledger.Node(g.Name); v.Version() != g.GPUs.Version() || s.moved[g.Name] {
				b.update(s, i)
			}
		}
	}
	clear(s.moved)
	return other
}

// node is one of them, nil if there is none of that name.
func (b *board) node(name string) *gang.Node {
	if i, ok := b.at[name]; ok {
		return b.nodes[i]
	}
	return nil
}
