package reclaim

import (
	"cmp"
	"slices"

	"github.com/tranche-dev/tranche/pkg/contract"
)

// attempt places the members one after the other, each where the fewest pods
// must go for it.
type attempt struct {
	c *cluster
	// among are the positions of the sites that may be used, where is the
	// contrary.
	among []int
	where map[int]int
	sites []site
	// taken says which units are gone, set lists them.
	taken []bool
	set   []*Unit
}

// greedy returns units without which the members seem to fit on some sites;
// false if it finds none, or none that is better than best. The units are not
// left taken.
func (c *cluster) greedy(among []int, best []*Unit) (set []*Unit, ok bool) {
	a := &attempt{c: c, among: among, sites: slices.Clone(c.sites), taken: make([]bool, len(c.Units)), where: make(map[int]int, len(among))}
	for i, at := range among {
		a.where[at] = i
	}
	for _, k := range c.kinds {
		if ok = a.place(k, best); !ok {
			break
		}
	}
	returnAll(c.Rules, a.set)
	if !ok || best != nil && compareWorth(worthOf(a.set), worthOf(best)) >= 0 {
		return nil, false
	}
	return a.set, true
}

// place places all members of a kind.
func (a *attempt) place(k *kind, best []*Unit) bool {
	choices := make([]*choice, len(a.among))
	for i, at := range a.among {
		if k.allowed[at] {
			choices[i] = a.c.choose(k, &a.sites[at], a.taken)
		}
	}
	for left := k.members; len(left) > 0; {
		i := cheapestOf(choices)
		if i < 0 {
			return false
		}
		at := a.among[i]
		if !takeAll(a.c.Rules, choices[i].units) {
			// Others have been taken since it was chosen.
			choices[i] = a.c.choose(k, &a.sites[at], a.taken)
			continue
		}
		changed := a.evict(choices[i])
		if best != nil && podsOf(a.set) > podsOf(best) {
			return false
		}
		plan, ok := k.plan(&a.sites[at])
		if !ok { // the search of package placement is bounded
			k.allowed = slices.Clone(k.allowed)
			k.allowed[at] = false
		} else {
			a.sites[at].put(&a.c.Members[left[0]], plan, roles(k.first.Request))
			left = left[1:]
		}
		changed[at] = true
		for at := range changed {
			i, ok := a.where[at]
			if !ok {
				continue
			}
			if choices[i] = nil; k.allowed[at] {
				choices[i] = a.c.choose(k, &a.sites[at], a.taken)
			}
		}
	}
	return true
}

// evict takes the chosen units off all sites and returns which sites that
// changed.
func (a *attempt) evict(c *choice) (changed map[int]bool) {
	changed = map[int]bool{}
	a.set = append(a.set, c.units...)
	for _, unit := range c.at {
		a.taken[unit] = true
		for _, at := range a.c.on[unit] {
			st := &a.sites[at]
			st.evict(&st.seats[slices.IndexFunc(st.seats, func(s seat) bool { return s.at == unit })])
			changed[at] = true
		}
	}
	return changed
}

// plan gives one member its GPUs on a site.
func (k *kind) plan(st *site) (contract.Plan, bool) {
	if k.query == nil {
		return contract.Plan{}, true
	}
	plan, reason := k.query.Plan(st.gpus)
	return plan, reason == ""
}

// cheapestOf returns the position of the best choice, -1 if there is none. Of
// equal ones the one with the best score wins, then the first.
func cheapestOf(choices []*choice) int {
	best := -1
	for i, c := range choices {
		if c != nil && (best < 0 || compareChoices(c, choices[best]) < 0) {
			best = i
		}
	}
	return best
}

func compareChoices(a, b *choice) int {
	if c := cmp.Compare(len(a.worth), len(b.worth)); c != 0 {
		return c
	}
	return cmp.Or(compareWorth(a.worth, b.worth), cmp.Compare(b.score, a.score))
}
