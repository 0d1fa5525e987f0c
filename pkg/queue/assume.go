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
