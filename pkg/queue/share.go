package queue

// ShareRoom returns how far queue and all above it are below their fair shares,
// the least of them; below zero where one is above. Unlimited for resources
// that are not managed. A stray has none.
func (t *Tree) ShareRoom(queue string) Amounts {
	t.solve()
	room := make(Amounts, t.width)
	n := t.nodes[queue]
	for r := range room {
		switch {
		case !t.managed[r]:
			room[r] = Unlimited
		case n != nil && !n.stray:
			room[r] = Unlimited
			for m := n; m != t.root; m = m.up {
				room[r] = min(room[r], m.fair[r]-m.used[r])
			}
		}
	}
	return room
}

// Door is how far a queue that takes pods, and all above it, are below their
// limits and below their fair shares of one resource: as Room and ShareRoom say.
type Door struct {
	Queue        string
	Limit, Share int64
}

// Doors returns those of all queues that take pods, for one resource. It costs a
// walk through the tree, where Room and ShareRoom cost a climb for each queue.
func (t *Tree) Doors(r Resource) []Door {
	t.solve()
	list := make([]Door, 0, len(t.order))
	t.root.door = Door{Limit: Unlimited, Share: Unlimited}
	for _, n := range t.order { // parents before their children
		if n.stray {
			continue
		}
		n.door = Door{n.name, n.up.door.Limit, n.up.door.Share}
		if n.limit[r] != Unlimited {
			n.door.Limit = min(n.door.Limit, max(n.limit[r]-n.used[r], 0))
		}
		if t.managed[r] {
			n.door.Share = min(n.door.Share, n.fair[r]-n.used[r])
		}
		if n.admits() {
			list = append(list, n.door)
		}
	}
	return list
}

// Entitled says whether queue and all above it stay within their fair shares
// with ask, in every managed resource that it asks. Fair shares are never more
// than what is wanted, so the ask must have been charged as pending. A stray is
// entitled to nothing.
func (t *Tree) Entitled(queue string, ask Amounts) bool {
	t.solve()
	x := Trial{tree: t, claimant: t.nodes[queue], ask: ask}
	return x.Entitled()
}

// WithinDeserved says the same of what the queues deserve, cut as in
// Usage.Deserved.
func (t *Tree) WithinDeserved(queue string, ask Amounts) bool {
	t.solve()
	n := t.nodes[queue]
	if n == nil || n.stray {
		return false
	}
	for ; n != t.root; n = n.up {
		if !t.deserves(n, ask) {
			return false
		}
	}
	return true
}

// deserves says whether n stays within what it deserves with ask.
func (t *Tree) deserves(n *node, ask Amounts) bool { return t.within(n.used, n.deserved, ask) }

// within says whether used and ask are at most share in every managed resource
// that is asked.
func (t *Tree) within(used, share []int64, ask Amounts) bool {
	for r, x := range ask {
		if x > 0 && r < len(used) && t.managed[r] && x > share[r]-used[r] {
			return false
		}
	}
	return true
}
