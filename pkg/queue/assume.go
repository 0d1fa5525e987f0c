package queue

// Assume counts amounts as held by queue, or with sign -1 as gone from it, as if
// that had happened before the trial: by what is under way already. Unlike
// Take, it is no part of what the claimant takes.
func (x *Trial) Assume(queue string, a Amounts, sign int64) {
	if n := x.tree.nodes[queue]; n != nil {
		x.change(n, a, sign)
	}
}

// WithinDeserved is Tree.WithinDeserved in the trial.
func (x *Trial) WithinDeserved() bool {
	if x.claimant == nil || x.claimant.stray {
		return false
	}
	for n := x.claimant; n != x.tree.root; n = n.up {
		if !x.tree.within(x.used(n), n.deserved, x.ask) {
			return false
		}
	}
	return true
}

// For returns the same trial for another claimant: what was assumed counts, what
// was taken does not. x must not be changed any more.
func (x *Trial) For(claimant string, ask Amounts) *Trial {
	return &Trial{tree: x.tree, name: claimant, claimant: x.tree.nodes[claimant], ask: ask, changed: map[*node][]int64{}, base: x.changed}
}

// EntitledBelow is Entitled for the levels below a queue above only.
func (t *Tree) EntitledBelow(queue string, ask Amounts, above string) bool {
	t.solve()
	top := t.nodes[above]
	if top == nil {
		top = t.root
	}
	x := Trial{tree: t, claimant: t.nodes[queue], ask: ask}
	return x.claimant != nil && commonAncestor(x.claimant, top) == top && x.entitledBelow(top)
}
