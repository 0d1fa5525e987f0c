package queue

import (
	"cmp"
	"container/heap"
	"time"
)

// Head is the first candidate of a leaf.
type Head struct {
	Ask      Amounts
	Priority int32
	Created  time.Time
	// ID is for the caller; it decides nothing, for names of queues differ.
	ID string
}

// Contest picks the next queue to serve. From the top down, among the children
// that have a head below them, the next is
//
//  1. one that stays within what it deserves with the head to be served there,
//  2. then the one whose dominant share, the largest used/fairShare of all
//     managed resources, is lowest,
//  3. then the one with the head of highest priority,
//  4. then the one with the oldest head,
//  5. then the first by name.
//
// It is valid until a spec, the capacity or what anybody wants changes. Pending
// charges may become held or allocated; Set or Clear their leaf after that. What
// is wanted less or more meanwhile counts in the next contest: to divide anew for
// each of thousands would cost more than it is worth.
type Contest struct {
	tree    *Tree
	version uint64
	root    *contender
	// contenders are by name: a queue's node may go when its spec does, and
	// Clear must find its contender all the same.
	contenders map[string]*contender
}

// contender is a node in the contest.
type contender struct {
	node   *node
	parent *contender
	// place is where parent.field has it, -1 if it does not.
	place int
	// field has the children that have a head below them.
	field field
	// serves is the head that is served next from here, nil if there is none.
	serves *Head

	within bool
	// used/fair is the dominant share.
	used, fair int64
}

// Contest returns a contest without heads.
func (t *Tree) Contest() *Contest {
	t.solve()
	return &Contest{tree: t, version: t.version, root: &contender{node: t.root, place: -1}, contenders: map[string]*contender{}}
}

// Valid says whether nothing has changed that the contest relies on.
func (c *Contest) Valid() bool {
	c.tree.solve()
	return c.version == c.tree.version
}

// Set makes head the first candidate of leaf. It returns false, and leaf has
// none, if the queue admits nobody; see Tree.Check for why.
func (c *Contest) Set(leaf string, head Head) bool {
	c.tree.wire()
	n := c.tree.nodes[leaf]
	if n == nil || !n.admits() {
		c.Clear(leaf)
		return false
	}
	c.update(c.of(n), &head)
	return true
}

// Clear says that leaf has no candidate.
func (c *Contest) Clear(leaf string) {
	if x := c.contenders[leaf]; x != nil && x.serves != nil && len(x.field) == 0 {
		c.tree.wire()
		c.update(x, nil)
	}
}

// Next returns the leaf to serve; not ok if no leaf has a candidate. It changes
// nothing.
func (c *Contest) Next() (leaf string, ok bool) {
	if c.root.serves == nil {
		return "", false
	}
	x := c.root
	for len(x.field) > 0 {
		x = x.field[0]
	}
	return x.node.name, true
}

func (c *Contest) of(n *node) *contender {
	if n == c.tree.root {
		return c.root
	}
	x := c.contenders[n.name]
	if x == nil {
		x = &contender{node: n, parent: c.of(n.up), place: -1}
		c.contenders[n.name] = x
	}
	return x
}

// update gives a leaf its head and puts it and all above it in their places.
func (c *Contest) update(x *contender, head *Head) {
	x.serves = head
	for ; x.parent != nil; x = x.parent {
		field := &x.parent.field
		if x.serves != nil {
			x.within = c.tree.deserves(x.node, x.serves.Ask)
			x.used, x.fair = c.tree.dominant(x.node)
		}
		switch {
		case x.serves == nil && x.place >= 0:
			heap.Remove(field, x.place)
		case x.serves == nil:
		case x.place >= 0:
			heap.Fix(field, x.place)
		default:
			heap.Push(field, x)
		}
		x.parent.serves = nil
		if len(*field) > 0 {
			x.parent.serves = (*field)[0].serves
		}
	}
}

// dominant returns numerator and denominator of n's largest used/fair.
func (t *Tree) dominant(n *node) (used, fair int64) {
	used, fair = 0, 1
	for r := range n.used {
		if t.managed[r] && compareShares(n.used[r], n.fair[r], used, fair) > 0 {
			used, fair = n.used[r], n.fair[r]
		}
	}
	return used, fair
}

// compareShares compares a/b with c/d: x/0 is infinite, and 0/0 is 0.
func compareShares(a, b, c, d int64) int {
	infinite1, infinite2 := b == 0 && a > 0, d == 0 && c > 0
	switch {
	case infinite1 && infinite2:
		return 0
	case infinite1:
		return 1
	case infinite2:
		return -1
	}
	return compareProducts(a, max(d, 1), c, max(b, 1))
}

func (x *contender) compare(y *contender) int {
	switch {
	case x.within && !y.within:
		return -1
	case y.within && !x.within:
		return 1
	}
	return cmp.Or(
		compareShares(x.used, x.fair, y.used, y.fair),
		cmp.Compare(y.serves.Priority, x.serves.Priority),
		x.serves.Created.Compare(y.serves.Created),
		cmp.Compare(x.node.name, y.node.name),
	)
}

// field is a heap, the next to serve first.
type field []*contender

func (f field) Len() int           { return len(f) }
func (f field) Less(i, j int) bool { return f[i].compare(f[j]) < 0 }

func (f field) Swap(i, j int) {
	f[i], f[j] = f[j], f[i]
	f[i].place, f[j].place = i, j
}

// Push is for package heap.
func (f *field) Push(x any) {
	c := x.(*contender)
	c.place = len(*f)
	*f = append(*f, c)
}

// Pop is for package heap.
func (f *field) Pop() any {
	last := len(*f) - 1
	c := (*f)[last]
	(*f)[last] = nil
	*f = (*f)[:last]
	c.place = -1
	return c
}
