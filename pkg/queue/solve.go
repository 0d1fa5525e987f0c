package queue

import "slices"

// solve computes what every queue wants, deserves and is entitled to.
func (t *Tree) solve() {
	t.wire()
	if t.solved {
		return
	}
	t.solved = true
	t.wants()
	for r, managed := range t.managed {
		if managed {
			t.root.fair[r] = max(subtract(t.capacity.Get(Resource(r)), t.setAside(r)), 0)
			t.divide(t.root, r)
		}
		for _, n := range t.order {
			switch {
			case !managed:
				n.fair[r], n.deserved[r] = Unlimited, 0
			case n.stray:
				n.fair[r], n.deserved[r] = n.used[r], 0
			case len(n.children) > 0:
				t.divide(n, r)
			}
		}
	}
}

// wants computes from the leaves to the root what is made use of if there is
// enough.
func (t *Tree) wants() {
	clear(t.root.want)
	for _, n := range t.order {
		admits := n.admits()
		for r := range n.want {
			n.want[r] = n.own.used(r)
			if admits {
				n.want[r] += n.own.amounts[Pending][r]
			}
		}
	}
	for _, n := range slices.Backward(t.order) {
		for r := range n.want {
			n.want[r] = min(n.want[r], n.limit[r])
			if !n.stray {
				n.up.want[r] = add(n.up.want[r], n.want[r])
			}
		}
	}
}

// setAside returns what strays use of r.
func (t *Tree) setAside(r int) int64 {
	var sum int64
	for _, n := range t.order {
		if n.stray && n.up == t.root {
			sum += n.used[r]
		}
	}
	return sum
}

// divide gives n's fair share of r to its children.
func (t *Tree) divide(n *node, r int) {
	t.deserve(n, r)
	left := max(n.fair[r]-n.own.used(r), 0)

	// What they deserve, as far as they want it.
	parts := t.parts[:0]
	for _, c := range n.children {
		parts = append(parts, part{node: c, weight: c.deserved[r], most: min(c.deserved[r], c.want[r])})
	}
	left = fill(left, parts)
	for i := range parts {
		parts[i].node.fair[r] = parts[i].got
	}

	// The surplus, by priority.
	for from := 0; from < len(n.children) && left > 0; {
		priority := n.children[from].spec.Priority
		to := from
		parts = parts[:0]
		for ; to < len(n.children) && n.children[to].spec.Priority == priority; to++ {
			c := n.children[to]
			parts = append(parts, part{node: c, weight: max(c.spec.Weight, 1), most: c.want[r] - c.fair[r]})
		}
		left = fill(left, parts)
		for i := range parts {
			parts[i].node.fair[r] += parts[i].got
		}
		from = to
	}
	t.parts = parts
}

// deserve sets what n's children deserve of r. All of it is cut in proportion
// if it is more than n deserves; a queue that deserves nothing of r itself says
// nothing about how its children share it.
func (t *Tree) deserve(n *node, r int) {
	var sum int64
	for _, c := range n.children {
		c.deserved[r] = max(c.spec.Deserved.Get(Resource(r)), 0)
		sum = add(sum, c.deserved[r])
	}
	if n.spec.Deserved.Get(Resource(r)) <= 0 || sum <= n.deserved[r] {
		return
	}
	parts := t.parts[:0]
	for _, c := range n.children {
		parts = append(parts, part{node: c, weight: c.deserved[r], most: c.deserved[r]})
	}
	fill(n.deserved[r], parts)
	for i := range parts {
		parts[i].node.deserved[r] = parts[i].got
	}
	t.parts = parts
}
