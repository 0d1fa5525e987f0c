package reclaim

import "slices"

// prune gives back what is not needed so that the members fit and, if they do
// now, Rules hold: the most precious first, big blocks as a whole if they can
// be, or else in halves.
func (s *selection) prune() {
	order := slices.SortedFunc(slices.Values(s.set), byWorth)
	final, tally := s.Rules.Final(), newTally(s.judge, s.set)
	const singly = 32
	var spare func(block []*Unit)
	spare = func(block []*Unit) {
		if s.without(block, final, tally) || len(block) == 1 {
			return
		}
		half := len(block) / 2
		spare(block[:half])
		spare(block[half:])
	}
	for block := range slices.Chunk(order, max(1, len(order)/singly)) {
		spare(block)
	}
}

// without gives units back if the others will do.
func (s *selection) without(block []*Unit, final bool, tally *tally) bool {
	needed, stay := tally.needs(block)
	if needed {
		return false
	}
	before := s.set
	s.set = slices.DeleteFunc(slices.Clone(before), func(u *Unit) bool { return slices.Contains(block, u) })
	returnAll(s.Rules, block)
	if (!final || s.Rules.Final()) && s.fit() {
		stay()
		return true
	}
	s.set = before
	for _, u := range block {
		s.Rules.Take(u)
	}
	return false
}
