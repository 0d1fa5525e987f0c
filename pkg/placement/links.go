package placement

import "slices"

// linkScratch is what the search needs to compare sets of GPUs by how near
// they are to each other.
type linkScratch struct {
	// set is being grown, best the best so far; gain is, per GPU, the sum of
	// its nearness to those in set.
	set, best, gain []int
}

// neighbours counts the other candidates of the item that are near the GPU. It is
// 0 where all are as near, and for an item of several GPUs, which tryNear keeps
// together.
func (s *search) neighbours(item, gpu int) int {
	if !s.node.NearnessDiffers() || s.q.items[item].count > 1 {
		return 0
	}
	n := 0
	for _, o := range s.candidates[item] {
		if o != gpu && s.node.Neighbours(gpu, o) {
			n++
		}
	}
	return n
}

// tryNear gives order[k] the set of candidates that are nearest to each other, and
// places the rest. If that fails, or all are as near, nothing is chosen.
func (s *search) tryNear(k int) bool {
	item := s.order[k]
	if !s.node.NearnessDiffers() || !s.findNear(item) {
		return false
	}
	// Chosen is a copy: items placed after this one use best for themselves.
	for _, g := range s.links.best {
		s.steps++
		s.take(item, g)
	}
	if !s.exhausted() && s.placeFrom(k+1) {
		return true
	}
	for range s.q.items[item].count {
		s.untake(item)
	}
	return false
}

// findNear grows a set from every candidate in turn, adding each time the one
// that is nearest to the set, and leaves the set of the nearest in best. Ties go to
// the policy's order. False: of no two candidates is it known that they are near.
func (s *search) findNear(item int) bool {
	l := &s.links
	most := 0
	for _, start := range s.candidates[item] {
		l.set, l.gain = l.set[:0], l.gain[:0]
		for range s.gpus {
			l.gain = append(l.gain, 0)
		}
		total, next := 0, start
		for {
			total += l.gain[next]
			l.set = append(l.set, next)
			if len(l.set) == s.q.items[item].count {
				break
			}
			for _, g := range s.candidates[item] {
				l.gain[g] += s.node.Nearness(g, next)
			}
			next = s.mostGain(item)
		}
		if total > most {
			most = total
			l.best = append(l.best[:0], l.set...)
		}
	}
	return most > 0
}

// mostGain returns the candidate outside set that is nearest to it. The item has
// more candidates than set has GPUs.
func (s *search) mostGain(item int) int {
	next := -1
	for _, g := range s.candidates[item] {
		if !slices.Contains(s.links.set, g) && (next < 0 || s.links.gain[g] > s.links.gain[next]) {
			next = g
		}
	}
	return next
}
