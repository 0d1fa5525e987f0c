package queue

import (
	"cmp"
	"slices"
)

// visit marks nodes during the search for cycles.
type visit int8

const (
	unvisited visit = iota
	onPath
	visited
)

// wire derives from the specs what does not depend on who asks: links, strays,
// limits, sums.
func (t *Tree) wire() {
	if t.wired {
		return
	}
	nodes := t.link()
	for _, n := range nodes {
		n.findCycle()
	}
	for _, n := range nodes {
		if n.cyclic {
			n.up, n.stray = t.root, true
		}
	}
	t.sort(nodes)
	t.inherit()
	t.addUp()
	t.manage()
	t.wired = true
	t.clock++
	t.rewired = t.clock
}

// link returns all nodes that matter, by name, with links to their parents.
func (t *Tree) link() []*node {
	nodes := make([]*node, 0, len(t.nodes))
	for name, n := range t.nodes {
		if !n.known && n.ids == 0 {
			delete(t.nodes, name)
			continue
		}
		nodes = append(nodes, n)
		n.children, n.cyclic, n.visit = n.children[:0], false, unvisited
		n.grow(t.width)
	}
	slices.SortFunc(nodes, func(a, b *node) int { return cmp.Compare(a.name, b.name) })
	t.root.children = t.root.children[:0]
	t.root.grow(t.width)
	for _, n := range nodes {
		n.up, n.stray = t.root, !n.known
		if n.known && n.spec.Parent != "" {
			if p := t.nodes[n.spec.Parent]; p != nil && p.known {
				n.up = p
			} else {
				n.stray = true
			}
		}
		if !n.stray {
			n.up.children = append(n.up.children, n)
		}
	}
	for _, n := range nodes {
		n.sortChildren()
	}
	t.root.sortChildren()
	return nodes
}

func (n *node) sortChildren() {
	slices.SortStableFunc(n.children, func(a, b *node) int { return cmp.Compare(b.spec.Priority, a.spec.Priority) })
}

// findCycle marks the cycle that n leads up to, if there is one.
func (n *node) findCycle() {
	m := n
	for ; m != nil && m.visit == unvisited; m = m.up {
		m.visit = onPath
	}
	if m != nil && m.visit == onPath {
		for c := m; !c.cyclic; c = c.up {
			c.cyclic = true
		}
	}
	for m = n; m != nil && m.visit == onPath; m = m.up {
		m.visit = visited
	}
}

// sort fills in order: parents before their children.
func (t *Tree) sort(nodes []*node) {
	t.order = t.order[:0]
	for _, n := range nodes {
		if n.up == t.root {
			t.order = append(t.order, n)
		}
	}
	for i := 0; i < len(t.order); i++ {
		for _, c := range t.order[i].children {
			if c.up == t.order[i] { // not so on a cycle
				t.order = append(t.order, c)
			}
		}
	}
}

// inherit passes down what holds for all below.
func (t *Tree) inherit() {
	for r := range t.root.effective {
		t.root.effective[r] = Unlimited
	}
	for _, n := range t.order {
		n.stray = n.stray || n.up.stray
		n.stopped = n.spec.Stopped || n.up.stopped
		for r := range n.limit {
			n.limit[r] = n.spec.Limit.limit(r)
			n.effective[r] = min(n.limit[r], n.up.effective[r])
		}
	}
}

// addUp adds up charges from the leaves to the root.
func (t *Tree) addUp() {
	t.root.sum.set(&t.root.own)
	for _, n := range t.order {
		n.sum.set(&n.own)
	}
	for _, n := range slices.Backward(t.order) {
		n.up.sum.addAll(&n.sum)
		n.total()
	}
	t.root.total()
}

func (n *node) total() {
	for r := range n.used {
		n.used[r] = n.sum.used(r)
	}
}

// manage finds the resources that queues divide.
func (t *Tree) manage() {
	t.managed = make([]bool, t.width)
	t.managed[GPU] = true
	for _, n := range t.order {
		for r := range t.managed {
			if n.spec.Deserved.Get(Resource(r)) > 0 {
				t.managed[r] = true
			}
		}
	}
}
