package placement

import "slices"

// explain says why nothing was found: the first in the order of Reasons that
// holds for any item. free must be as reset left it.
func (s *search) explain() Reason {
	first := len(reasons) - 1
	for item := range s.q.items {
		if reason := s.explainItem(item); reason != "" {
			first = min(first, slices.Index(reasons, reason))
		}
	}
	if len(s.q.items) > 1 && first > slices.Index(reasons, TooBigTogether) {
		first = min(first, slices.Index(reasons, s.explainTogether()))
	}
	return reasons[first]
}

// explainItem says why one item does not fit, if it does not even alone.
func (s *search) explainItem(item int) Reason {
	count := s.q.items[item].count
	var model, isolated, sized, healthy int
	for g, f := range s.fits {
		if !f.model {
			continue
		}
		model++
		if !f.isolated {
			continue
		}
		isolated++
		if s.needOf(item, g) > s.node.SharesPerGPU() {
			continue
		}
		sized++
		if f.healthy {
			healthy++
		}
	}
	switch {
	case model == 0:
		return NoSuchModel
	case model >= count && isolated < count:
		return NoIsolation
	case sized == 0 && isolated > 0:
		return TooBig
	case sized < count:
		return TooFewGPUs
	case healthy < count:
		return Unhealthy
	case s.hasGPUs(item):
		return ""
	default:
		return s.q.items[item].noRoom()
	}
}

// noRoom is the reason where there would be GPUs enough, were they free.
func (it *item) noRoom() Reason {
	switch {
	case it.count > 1:
		return NotEnoughGPUs
	case it.whole:
		return NoWholeGPU
	default:
		return NotEnoughFree
	}
}

// explainTogether says why items that would each fit an empty, healthy node do
// not fit this one together. It uses up free and fits. The answer does not
// depend on who is on the node, so it is remembered for nodes of equal GPUs.
func (s *search) explainTogether() Reason {
	class := s.node.Class()
	if class == nil {
		return s.fitsEmpty()
	}
	v := s.q.verdict(class)
	if v.together[len(s.gpus)] == "" {
		reason := s.fitsEmpty()
		if v.together == nil {
			v.together = map[int]Reason{}
		}
		v.together[len(s.gpus)] = reason
	}
	return v.together[len(s.gpus)]
}

// fitsEmpty says what would help: that others leave, that GPUs recover as
// well, or nothing.
func (s *search) fitsEmpty() Reason {
	for g := range s.free {
		s.free[g] = s.node.SharesPerGPU()
	}
	if s.attempt(Binpack, explainSteps) || s.exhausted() {
		return NotTogether
	}
	for g := range s.fits {
		s.fits[g].healthy = s.q.verdict(s.gpus[g].Class).sensible
	}
	if s.attempt(Binpack, explainSteps) || s.exhausted() {
		return Unhealthy
	}
	return TooBigTogether
}
