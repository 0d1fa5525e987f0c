package queue

import "slices"

// Trial is the tree as it would be with some charges gone, seen by somebody who
// wants to be admitted in their place. It copies what it changes. It is valid
// while no spec, capacity or charge of the tree changes.
type Trial struct {
	tree     *Tree
	name     string
	claimant *node
	ask      Amounts
	// changed is what nodes use here, where that differs from base, which is that
	// of the trial that For was called on, and is never written to.
	changed, base map[*node][]int64
	taken         []take
}

type take struct {
	node *node
	unit Amounts
}

// Trial returns a trial for ask in the queue claimant, with nothing taken yet.
func (t *Tree) Trial(claimant string, ask Amounts) *Trial {
	t.solve()
	return &Trial{tree: t, name: claimant, claimant: t.nodes[claimant], ask: ask, changed: map[*node][]int64{}}
}

func (x *Trial) used(n *node) []int64 {
	if v, ok := x.changed[n]; ok {
		return v
	}
	if v, ok := x.base[n]; ok {
		return v
	}
	return n.used
}

// Entitled is Tree.Entitled in the trial.
func (x *Trial) Entitled() bool { return x.entitledBelow(x.tree.root) }

// entitledBelow asks only the queues below n.
func (x *Trial) entitledBelow(n *node) bool {
	if x.claimant == nil || x.claimant.stray {
		return false
	}
	for m := x.claimant; m != n; m = m.up {
		if !x.tree.within(x.used(m), m.fair, x.ask) {
			return false
		}
	}
	return true
}

// Fits is Tree.Check in the trial.
func (x *Trial) Fits() *Refusal {
	if refusal := x.tree.misfit(x.name, x.claimant); refusal != nil {
		return refusal
	}
	var reached *Refusal
	for n := x.claimant; n != x.tree.root; n = n.up {
		used := x.used(n)
		for r, asked := range x.ask {
			if asked <= 0 || r >= len(used) || n.limit[r] == Unlimited || asked <= n.limit[r]-used[r] {
				continue
			}
			refusal := &Refusal{Kind: LimitReached, Queue: n.name, Resource: Resource(r), Limit: n.limit[r], Used: used[r], Asked: asked}
			if asked > n.limit[r] {
				refusal.Kind = LimitTooLow
				return refusal
			}
			if reached == nil {
				reached = refusal
			}
		}
	}
	return reached
}

// MayTake says whether the claimant may take unit, which is held or allocated
// in queue, from it. That is so if, below the lowest queue that has both in it,
//
//   - all on the claimant's side are entitled to what it asks, and
//   - all on the other side use more than their fair share of something that
//     the claimant asks and the unit has.
//
// So two units never take each other's place in turn. Let C take V's unit u, be
// admitted with its ask a, and u wait again. C's leaf, which is below the queue
// in question, then uses at most its fair share of all managed resources in a,
// so a is not to be taken from it, by V or by anybody. As long as fair shares
// stay and pods are admitted only if they are entitled, that remains so, for
// whoever is admitted to the leaf later with some of those resources passes the
// same test. Each reclaim thus makes one more unit that nobody may take, and
// there are at most as many reclaims as units. See Justified for u's side.
func (x *Trial) MayTake(queue string, unit Amounts) bool {
	victim := x.tree.nodes[queue]
	if victim == nil || victim.stray || x.claimant == nil || x.claimant.stray {
		return false
	}
	common := commonAncestor(x.claimant, victim)
	if common == victim || common == x.claimant {
		return false // the same queue, or an inner one's own pods
	}
	for n := victim; n != common; n = n.up {
		if !x.exceeds(n, unit) {
			return false
		}
	}
	return x.entitledBelow(common)
}

// exceeds says whether n uses more than its fair share of a managed resource
// that the claimant asks and unit has.
func (x *Trial) exceeds(n *node, unit Amounts) bool {
	used := x.used(n)
	for r := range min(len(x.ask), len(unit), len(used)) {
		// The fair share of what is not managed is Unlimited.
		if x.ask[r] > 0 && unit[r] > 0 && used[r] > n.fair[r] {
			return true
		}
	}
	return false
}

// Take takes unit, held or allocated there, off queue and all above it.
func (x *Trial) Take(queue string, unit Amounts) {
	if n := x.tree.nodes[queue]; n != nil {
		x.change(n, unit, -1)
		x.taken = append(x.taken, take{n, unit})
	}
}

// Return undoes Take of an equal unit of queue; nothing if there was none.
func (x *Trial) Return(queue string, unit Amounts) {
	n := x.tree.nodes[queue]
	i := slices.IndexFunc(x.taken, func(t take) bool { return t.node == n && t.unit.Equal(unit) })
	if i >= 0 {
		x.change(n, unit, 1)
		x.taken = slices.Delete(x.taken, i, i+1)
	}
}

// Justified says whether each unit that is taken might be taken after all the
// others as well. If so, none of them is entitled to come back, for with it
// alone its queue would use more than its fair share again. Taking one by one
// does not ensure that: after a small unit, a big one may go that alone would
// have been enough.
func (x *Trial) Justified() bool {
	for _, t := range x.taken {
		x.change(t.node, t.unit, 1)
		ok := x.MayTake(t.node.name, t.unit)
		x.change(t.node, t.unit, -1)
		if !ok {
			return false
		}
	}
	return true
}

// change adds sign times unit to what n and all above it use.
func (x *Trial) change(n *node, unit Amounts, sign int64) {
	unit = unit.bounded(maxCharge) // as it was charged
	for ; n != nil; n = n.up {
		v, ok := x.changed[n]
		if !ok {
			if x.changed == nil {
				x.changed = map[*node][]int64{}
			}
			v = slices.Clone(x.used(n))
			x.changed[n] = v
		}
		for r := range min(len(unit), len(v)) {
			v[r] += sign * unit[r]
		}
	}
}

// commonAncestor returns the lowest node that is above or equal to both.
func commonAncestor(a, b *node) *node {
	for n := a; n != nil; n = n.up {
		for m := b; m != nil; m = m.up {
			if m == n {
				return n
			}
		}
	}
	return nil
}
