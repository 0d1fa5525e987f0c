package queue

// Usage is what a queue has and is due, all below it included. The caller owns
// it. What is Unlimited in FairShare is not managed.
type Usage struct {
	Allocated, Held Amounts
	// Demand is all that pods have, held and wait for, limits ignored.
	Demand Amounts
	// Deserved is what the spec says, cut if siblings together deserve more
	// than their parent; zero for resources that are not managed.
	Deserved  Amounts
	FairShare Amounts
	// EffectiveLimit is the lowest limit of the queue and all above it.
	EffectiveLimit Amounts
	// Pending counts charges in that state.
	Pending int
}

// Usage returns the usage of a queue; zero if nothing is known of it.
func (t *Tree) Usage(queue string) Usage {
	t.solve()
	n := t.nodes[queue]
	if n == nil {
		return Usage{}
	}
	return n.usage()
}

// Total returns the usage of all queues together, strays included. Deserved is
// empty; FairShare is what the queues at the top divide, and EffectiveLimit is
// unlimited.
func (t *Tree) Total() Usage {
	t.solve()
	u := t.root.usage()
	u.Deserved = nil
	for r, managed := range t.managed {
		if !managed {
			u.FairShare[r] = Unlimited
		}
	}
	return u
}

func (n *node) usage() Usage {
	demand := amounts(n.used)
	for r, x := range n.sum.amounts[Pending] {
		demand[r] += x
	}
	return Usage{
		Allocated:      amounts(n.sum.amounts[Allocated]),
		Held:           amounts(n.sum.amounts[Held]),
		Demand:         demand,
		Deserved:       amounts(n.deserved),
		FairShare:      amounts(n.fair),
		EffectiveLimit: amounts(n.effective),
		Pending:        n.sum.pending,
	}
}
