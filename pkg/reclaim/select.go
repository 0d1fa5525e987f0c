package reclaim

import (
	"cmp"
	"slices"

	"github.com/tranche-dev/tranche/pkg/gang"
)

// Select finds units without which the members fit, and rules hold, or says
// why there are none. Afterwards Rules have exactly Result.Victims taken, or
// nothing. The Shortfall is that of the cluster without any unit that may be
// taken; or, with reason gang.NoVictims, of the cluster as it is, if rules are
// all that is in the way.
func Select(p Problem) (*Result, *gang.Shortfall) {
	c := newCluster(&p)
	j := newJudge(c)
	fits := j.fits(nil)
	if fits != nil && p.Rules.Final() {
		return &Result{Places: fits}, nil
	}
	if j.invalid != nil {
		return nil, j.invalid
	}
	c.seat()
	s := &selection{cluster: c, judge: j, places: fits}
	if fits == nil {
		s.set = s.chosen()
	}
	// What greedy has found may be right but for what can be spared, or that
	// the rules want more.
	if len(s.set) > 0 && s.fit() {
		s.prune()
		if result := s.result(); result != nil {
			return result, nil
		}
	}
	if fits == nil {
		if short := s.hopeless(); short != nil {
			return nil, short
		}
	}
	if s.add() {
		s.prune()
		if result := s.result(); result != nil {
			return result, nil
		}
	}
	returnAll(p.Rules, s.set)
	return nil, c.noVictims()
}

// selection is the units that are taken at present.
type selection struct {
	*cluster
	judge  *judge
	set    []*Unit
	places []gang.Place
}

// chosen takes what greedy finds; nothing if it finds nothing.
func (s *selection) chosen() []*Unit {
	var best []*Unit
	found := false
	for _, among := range s.domains() {
		if set, ok := s.greedy(among, best); ok {
			best, found = set, true
		}
	}
	if !found || !takeAll(s.Rules, best) {
		return nil
	}
	return best
}

// domains lists the sites that may be used together, one list per domain if
// the topology is required and says nothing of which.
func (s *selection) domains() [][]int {
	t := s.Topology
	if t == nil || t.NodeLabel == "" || !t.Required {
		all := make([]int, len(s.sites))
		for i := range all {
			all[i] = i
		}
		return [][]int{all}
	}
	home := t.Domain
	for at := range s.sites {
		if s.pinned[at] {
			home = cmp.Or(home, s.sites[at].node.Labels[t.NodeLabel])
		}
	}
	position := map[string]int{}
	var all [][]int
	for at := range s.sites {
		value, ok := s.sites[at].node.Labels[t.NodeLabel]
		if !ok || home != "" && value != home {
			continue
		}
		i, known := position[value]
		if !known {
			i = len(all)
			position[value] = i
			all = append(all, nil)
		}
		all[i] = append(all[i], at)
	}
	return all
}

// accept says whether the present set will do.
func (s *selection) accept() bool { return s.Rules.Final() && s.fit() }

// fit says whether the members fit without the present set.
func (s *selection) fit() bool {
	places := s.judge.fits(s.set)
	if places != nil {
		s.places = places
	}
	return places != nil
}

// add takes further units by preference, twice as many each time, until the
// set will do, and then gives back as many of the last ones as it can.
func (s *selection) add() bool {
	taken := make(map[*Unit]bool, len(s.set))
	for _, u := range s.set {
		taken[u] = true
	}
	var rest []*Unit
	for i, u := range s.Units {
		if !taken[u] && len(s.on[i]) > 0 && s.Rules.MayTake(u) {
			rest = append(rest, u)
		}
	}
	slices.SortFunc(rest, func(a, b *Unit) int { return byPreference(a, b) })
	start := len(s.set)
	low := start // so many are too few
	for step := 1; ; step *= 2 {
		for n := 0; n < step && len(rest) > 0; rest = rest[1:] {
			if s.Rules.MayTake(rest[0]) {
				s.Rules.Take(rest[0])
				s.set = append(s.set, rest[0])
				n++
			}
		}
		if len(s.set) == low {
			return false
		}
		if s.accept() {
			break
		}
		low = len(s.set)
	}
	all := slices.Clone(s.set)
	for high := len(all); low+1 < high; {
		mid := low + (high-low)/2
		s.resize(all, mid)
		if s.accept() {
			high = mid
		} else {
			low = mid
		}
	}
	s.resize(all, low+1)
	return true
}

// resize makes the set the first n of all, of which it is the beginning.
func (s *selection) resize(all []*Unit, n int) {
	for _, u := range all[min(n, len(s.set)):len(s.set)] {
		s.Rules.Return(u)
	}
	for _, u := range all[min(n, len(s.set)):n] {
		s.Rules.Take(u)
	}
	s.set = slices.Clone(all[:n])
}

// result is the set with its places, if the rules still allow it: they were
// asked about each unit while others were taken that are not any more. If they
// do not allow it, nothing is taken any more.
func (s *selection) result() *Result {
	returnAll(s.Rules, s.set)
	if !takeAll(s.Rules, s.set) {
		s.set = nil
		return nil
	}
	if !s.Rules.Final() || s.MostVictims > 0 && podsOf(s.set) > s.MostVictims {
		return nil
	}
	return &Result{Victims: slices.SortedFunc(slices.Values(s.set), byPreference), Places: s.places}
}
