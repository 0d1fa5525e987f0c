package queue

import "k8s.io/apimachinery/pkg/types"

// State says how firm a charge is.
type State int8

const (
	// Pending charges wait: they are demand and nothing else.
	Pending State = iota
	// Held charges are planned.
	Held
	// Allocated charges are bound.
	Allocated
	states
)

// String returns the word that statuses use.
func (s State) String() string {
	switch s {
	case Held:
		return "held"
	case Allocated:
		return "allocated"
	default:
		return "pending"
	}
}

// Charge is what one pod counts for.
type Charge struct {
	Queue   string
	State   State
	Amounts Amounts
}

type charge struct {
	node    *node
	state   State
	amounts Amounts
}

// Charge makes a the only charge of id. The queue need not be known. The tree
// keeps a, which must not be changed afterwards. Entries count as zero if they
// are negative, and as 2^45 if they are more.
func (t *Tree) Charge(id types.UID, queue string, state State, a Amounts) {
	a = a.bounded(maxCharge)
	t.widen(len(a))
	before, had := t.charges[id]
	after := charge{t.node(queue), state, a}
	sameDemand := had && before.node == after.node && before.amounts.Equal(a)
	if sameDemand && before.state == state {
		return
	}
	if had {
		t.count(before, -1)
	}
	t.charges[id] = after
	t.count(after, 1)
	// A pod that is admitted was wanted before, except where nobody is.
	if !sameDemand || !after.node.admits() && (before.state == Pending || state == Pending) {
		t.unsolve()
	}
}

// Discharge forgets what id is charged, if anything.
func (t *Tree) Discharge(id types.UID) {
	if before, had := t.charges[id]; had {
		t.count(before, -1)
		delete(t.charges, id)
		t.unsolve()
	}
}

// Charged returns what id is charged, if anything.
func (t *Tree) Charged(id types.UID) (c Charge, ok bool) {
	found, ok := t.charges[id]
	if !ok {
		return Charge{}, false
	}
	return Charge{found.node.name, found.state, found.amounts}, true
}

// count adds c, or with sign -1 takes it off, in its queue and all above.
func (t *Tree) count(c charge, sign int64) {
	c.node.grow(t.width)
	c.node.ids += int(sign)
	c.node.own.add(c.state, c.amounts, sign)
	if !t.wired {
		return // wire adds up
	}
	if c.state != Pending {
		t.clock++
	}
	for n := c.node; n != nil; n = n.up {
		n.sum.add(c.state, c.amounts, sign)
		if c.state == Pending {
			continue
		}
		n.changed = t.clock
		for r, x := range c.amounts {
			n.used[r] += sign * x
		}
	}
}
