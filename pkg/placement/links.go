package placement

import "slices"

// linkScratch is what the search needs to compare sets of GPUs by NVLink.
type linkScratch struct {
	// set is being grown, best the best so far; gain is, per GPU, the number of
	// links into set.
	set, best, gain []int
}

// neighbours counts the other candidates of the item that the GPU has NVLinks
// to. It is 0 where links make no difference, and for an item of several GPUs,
// which tryLinked keeps together.
func (s *search) neighbours(item, gpu int) int {
	if !s.node.LinksDiffer() || s.q.items[item].count > 1 {
		return 0
	}
	n := 0
	for _, o := range s.candidates[item] {
		if o != gpu && s.node.NVLinks(gpu, o) > 0 {
			n++
		}
	}
	return n
}

// tryLinked gives order[k] the set of candidates that NVLink ties best, and
// places the rest. If that fails, or links make no difference, nothing is
// chosen.
func (s *search) tryLinked(k int) bool {
	item := s.order[k]
	if !s.node.LinksDiffer() || !s.findLinked(item) {
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

// findLinked grows a set from every candidate in turn, adding each time the one
// with the most links into the set, and leaves the set with the most links in
// best. Ties go to the policy's order. False: no candidates are linked.
func (s *search) findLinked(item int) bool {
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
				l.gain[g] += s.node.NVLinks(g, next)
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

// mostGain returns the candidate outside set with the most links into it. The
// item has more candidates than set has GPUs.
func (s *search) mostGain(item int) int {
	next := -1
	for _, g := range s.candidates[item] {
		if !slices.Contains(s.links.set, g) && (next < 0 || s.links.gain[g] > s.links.gain[next]) {
			next = g
		}
	}
	return next
}
