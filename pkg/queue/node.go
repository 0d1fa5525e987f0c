package queue

import "slices"

// node is a queue, or a name that pods use as one.
type node struct {
	name  string
	known bool
	spec  Spec
	// ids counts the charges to this very name, own adds them up.
	ids int
	own sums

	// What follows is up to date while the tree is wired.

	// up is where sums go: the parent, or the root if there is none or if it
	// cannot be told.
	up *node
	// children name this node as parent, the highest priority first, then by
	// name.
	children []*node
	// cyclic nodes are on a cycle themselves.
	cyclic bool
	stray  bool
	// stopped says that this node or one above it is.
	stopped bool
	visit   visit
	// limit is the node's own, effective the lowest from here to the top.
	limit, effective []int64
	// sum is own and that of all below; used is what of it is held and
	// allocated.
	sum  sums
	used []int64
	// changed is the tree's clock when used last changed.
	changed uint64

	// What follows is up to date while the tree is solved.

	// want is what can be made use of, at most limit.
	want []int64
	// deserved is cut so that siblings do not deserve more than their parent.
	deserved []int64
	fair     []int64

	// door is Doors' own: what it has found on its way down.
	door Door
}

// admits says whether pods may be admitted, limits apart.
func (n *node) admits() bool {
	return n.known && !n.stray && !n.stopped && len(n.children) == 0
}

// grow makes all vectors that long.
func (n *node) grow(width int) {
	if len(n.used) >= width {
		return
	}
	for _, v := range []*[]int64{&n.limit, &n.effective, &n.used, &n.want, &n.deserved, &n.fair} {
		*v = append(*v, make([]int64, width-len(*v))...)
	}
	n.own.grow(width)
	n.sum.grow(width)
}

// sums adds up charges by state.
type sums struct {
	amounts [states][]int64
	// pending counts charges of that state.
	pending int
}

func (s *sums) grow(width int) {
	for i := range s.amounts {
		s.amounts[i] = append(s.amounts[i], make([]int64, width-len(s.amounts[i]))...)
	}
}

func (s *sums) add(state State, a []int64, sign int64) {
	to := s.amounts[state]
	for r, x := range a {
		to[r] += sign * x
	}
	if state == Pending {
		s.pending += int(sign)
	}
}

// used returns what is held and allocated of r.
func (s *sums) used(r int) int64 { return s.amounts[Held][r] + s.amounts[Allocated][r] }

// set makes s a copy of o.
func (s *sums) set(o *sums) {
	for i := range s.amounts {
		copy(s.amounts[i], o.amounts[i])
	}
	s.pending = o.pending
}

// addAll adds all of o.
func (s *sums) addAll(o *sums) {
	for i := range s.amounts {
		for r, x := range o.amounts[i] {
			s.amounts[i][r] += x
		}
	}
	s.pending += o.pending
}

// amounts is a copy of v to give away.
func amounts(v []int64) Amounts { return slices.Clone(v) }
