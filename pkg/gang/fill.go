package gang

import (
	"container/heap"
	"slices"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/placement"
)

// fill finds places for all members on sites, nil if it finds none.
func (p *planner) fill(sites []site) []Place {
	for _, s := range p.shapes {
		if s.placesOn(sites) < s.count {
			return nil
		}
	}
	// First as the policy wants it, then closely packed whatever it wants.
	for _, packed := range []bool{false, true} {
		tried := map[string]bool{}
		for _, order := range p.orders(sites) {
			if places := p.squeeze(sites, order, packed, tried); places != nil {
				return places
			}
		}
		if len(p.shapes) == 1 {
			return nil // pack has tried that already
		}
	}
	return nil
}

// placesOn bounds how many copies of s fit on sites.
func (s *shape) placesOn(sites []site) int {
	sum := 0
	for i := range sites {
		sum += s.bound[sites[i].id]
	}
	return sum
}

// attempt places the shapes in the given order. If it fails it returns the
// position of the shape that found no room.
func (p *planner) attempt(sites []site, order []*shape, packed bool) (places []Place, failed int) {
	sites = slices.Clone(sites)
	places = slices.Clone(p.pinned)
	placed := 0
	for k, s := range order {
		f := newFilling(p, s, sites, packed)
		ok := f.byPolicy() || f.pack()
		p.work += len(sites) + s.count*takeWork
		for _, left := range f.left {
			placed -= left
		}
		placed += s.count
		p.together = max(p.together, placed)
		if !ok {
			return nil, k
		}
		f.settle(places)
	}
	return places, -1
}

// filling places the members of one shape on sites.
type filling struct {
	p *planner
	s *shape
	// query chooses nodes and GPUs, by policy.
	query  *placement.Query
	policy placement.Policy
	// sites are those of the attempt; before is what the ones that took
	// somebody were like.
	sites  []site
	before map[int]site
	// plans are those made per site, in turn. taken is how many members of each
	// group (the outer index) each site has, used of all groups together, and
	// left how many of each group have no place.
	plans map[int][]contract.Plan
	taken []map[int]int
	used  map[int]int
	left  []int
	// scores of the sites for one more copy; fits says which take one.
	scores []int64
	fits   []bool
}

func newFilling(p *planner, s *shape, sites []site, packed bool) *filling {
	f := &filling{p: p, s: s, query: s.query, policy: s.policy, sites: sites, before: map[int]site{}, plans: map[int][]contract.Plan{}, used: map[int]int{}}
	if packed {
		f.query, f.policy = s.packing, placement.Binpack
	}
	f.scores, f.fits = make([]int64, len(sites)), make([]bool, len(sites))
	for i := range sites {
		f.rate(i)
	}
	for _, g := range s.groups {
		f.taken = append(f.taken, map[int]int{})
		f.left = append(f.left, len(g.members))
	}
	return f
}

// rate asks a site whether, and how well, it takes one more copy.
func (f *filling) rate(i int) {
	st := &f.sites[i]
	f.fits[i] = false
	if f.s.bound[st.id] == 0 {
		return // it had no room even before others took some
	}
	if ok, _ := Fits(st.free, f.s.needs); !ok {
		return
	}
	if f.s.plain() {
		f.scores[i], f.fits[i] = plainScore(st, f.policy), true
		return
	}
	score, reason := f.query.ScoreIn(st.gpus, placement.CPU(st.free.MilliCPU))
	f.scores[i], f.fits[i] = score, reason == ""
}

// byPolicy places members one by one, each where a single pod would go. False:
// some found no room.
func (f *filling) byPolicy() bool {
	all := true
	for g := range f.s.groups {
		r := ranking{f: f}
		for i := range f.sites {
			if f.fits[i] && !f.s.groups[g].avoid[f.sites[i].node.Name] {
				r.sites = append(r.sites, i)
			}
		}
		heap.Init(&r)
		for f.left[g] > 0 && len(r.sites) > 0 {
			i := r.sites[0]
			f.take(g, i)
			if f.rate(i); f.fits[i] {
				heap.Fix(&r, 0)
			} else {
				heap.Pop(&r)
			}
		}
		all = all && f.left[g] == 0
	}
	return all
}

// take puts the next member of a group on a site that has room for it.
func (f *filling) take(g, i int) {
	if _, ok := f.before[i]; !ok {
		f.before[i] = f.sites[i]
	}
	plan := plainPlan(f.sites[i].node.Name)
	if !f.s.plain() {
		plan, _ = f.query.PlanIn(f.sites[i].gpus, placement.CPU(f.sites[i].free.MilliCPU)) // it fits: rate has said so
	}
	members := f.s.groups[g].members
	pod := f.p.members[members[len(members)-f.left[g]]].Pod
	f.sites[i] = f.sites[i].put(pod, f.s.needs, plan, f.s.roles)
	f.plans[i] = append(f.plans[i], plan)
	f.taken[g][i]++
	f.used[i]++
	f.left[g]--
}

// settle writes down where the members go: those of a group in turn, on its
// sites in turn.
func (f *filling) settle(places []Place) {
	used := map[int]int{}
	for g := range f.s.groups {
		members := f.s.groups[g].members
		for i := range f.sites {
			for range f.taken[g][i] {
				places[members[0]] = Place{f.sites[i].node.Name, f.plans[i][used[i]]}
				members = members[1:]
				used[i]++
			}
		}
	}
}

// ranking is a heap of sites, the best for one more copy on top. Equal scores
// go by position, which is the order of placement.Before.
type ranking struct {
	f     *filling
	sites []int
}

func (r *ranking) Len() int { return len(r.sites) }

func (r *ranking) Less(a, b int) bool {
	x, y := r.sites[a], r.sites[b]
	if r.f.scores[x] != r.f.scores[y] {
		return r.f.scores[x] > r.f.scores[y]
	}
	return x < y
}

func (r *ranking) Swap(a, b int) { r.sites[a], r.sites[b] = r.sites[b], r.sites[a] }

// Push is never called: sites only leave.
func (r *ranking) Push(any) {}

// Pop is what container/heap asks for.
func (r *ranking) Pop() any {
	last := len(r.sites) - 1
	r.sites = r.sites[:last]
	return nil
}
