package waste

// Unusable returns how much of what is free on a node, in thousandths of a GPU,
// none of the usual shapes could use: the free parts of GPUs to which, with the
// node's free processors, not one of them fits. Everything, if nothing has been
// learned.
func (t *Tables) Unusable(s *State) float64 {
	rank := len(t.cpus)
	if s.MilliCPU != UnknownCPU {
		rank = t.rank(s.MilliCPU)
	}
	unusable := 0.0
	for i := range s.GPUs {
		if !s.GPUs[i].Healthy {
			continue
		}
		k := t.table(s.GPUs[i].Class)
		part, thousandths := s.part(i, Nothing)
		fits := k.fit[rank*k.columns+int(k.column[part])] > 0
		for j := range k.several {
			// Enough GPUs with as much free as this one, or as that shape needs.
			for p := part; p > 0 && !fits; p-- {
				at := rank*k.columns + int(k.column[p])
				fits = k.several[j].fit[at] > 0 && s.atLeastOf(i, p) >= k.several[j].gpus
			}
		}
		if !fits {
			unusable += thousandths
		}
	}
	return unusable
}

// atLeastOf is the number of GPUs of the same kind as GPU i with so many free
// parts.
func (s *State) atLeastOf(i, part int) int {
	for first := range s.GPUs {
		if s.GPUs[first].Class == s.GPUs[i].Class {
			return s.atLeast(part, Nothing, first)
		}
	}
	return 0
}
