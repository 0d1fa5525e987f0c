package placement

import (
	"slices"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/placement/waste"
	"github.com/tranche-dev/tranche/pkg/units"
)

// search places a query's items on one node. Its slices are kept from node to
// node.
type search struct {
	q    *Query
	node *ledger.NodeView
	gpus []ledger.GPUView
	// Per GPU: what the request's model and isolation and the GPU's health say,
	// and the shares that are free for the items not yet placed.
	fits []suitability
	free []units.Shares
	// need is, per GPU and item, GPU by GPU, the shares that it takes there.
	need []units.Shares
	// order lists the items, the hardest first. chosen holds the GPUs of each
	// item, in the order chosen; candidates those tried for it.
	order      []int
	chosen     [][]int
	candidates [][]int
	// costs are, per GPU, those of the item whose candidates are being sorted.
	costs []int64
	// biggest is, per item, the most that it takes of a GPU, up to all of it.
	biggest []units.Shares
	policy  Policy
	// steps counts GPUs tried, up to limit. dead are the states from which the
	// items that remain cannot be placed; state describes the present one.
	steps, limit int
	state        uint64
	dead         map[uint64]struct{}

	links linkScratch

	// before and after are the node without the pod and with it, for the policy.
	// after.Free is free, so it follows what is taken and given back.
	before, after waste.State
}

// reset prepares s for a node.
func (s *search) reset(q *Query, n *ledger.NodeView) {
	s.q, s.node, s.gpus = q, n, n.GPUs()
	s.fits, s.free, s.need = s.fits[:0], s.free[:0], s.need[:0]
	held := n.HeldBy(q.opts.Without)
	for i := range s.gpus {
		g := &s.gpus[i]
		v := q.verdict(g.Class)
		s.fits = append(s.fits, suitability{v.model, v.isolated, v.sensible && g.Healthy})
		free := g.Free
		for _, c := range held {
			if c.GPU == g.Facts.UUID {
				free += c.Shares
			}
		}
		s.free = append(s.free, free)
		s.need = append(s.need, v.need...)
	}
	for len(s.chosen) < len(q.items) {
		s.chosen = append(s.chosen, nil)
		s.candidates = append(s.candidates, nil)
	}
}

// rooms prepares what the policy is shown of the node. It follows reset.
func (s *search) rooms(room Room) {
	s.before = waste.State{
		GPUs: s.gpus, Free: append(s.before.Free[:0], s.free...), PerGPU: s.node.SharesPerGPU(), MilliCPU: waste.UnknownCPU,
	}
	s.after = s.before
	s.after.Free = s.free
	if room.Known {
		s.before.MilliCPU, s.after.MilliCPU = room.MilliCPU, room.MilliCPU-s.q.opts.MilliCPU
	}
}

func (s *search) needOf(item, gpu int) units.Shares { return s.need[gpu*len(s.q.items)+item] }

// hasRoom says whether the item can be on the GPU, given what is free now.
func (s *search) hasRoom(item, gpu int) bool {
	return s.fits[gpu].all() && s.needOf(item, gpu) <= s.free[gpu]
}

// hasGPUs says whether the item alone would find its GPUs now.
func (s *search) hasGPUs(item int) bool {
	found := 0
	for g := range s.gpus {
		if s.hasRoom(item, g) {
			found++
		}
	}
	return found >= s.q.items[item].count
}

// place finds GPUs for all items and leaves them in chosen, with free reduced
// accordingly. It says whether it could. Without choose a single item is only
// counted, and nothing is left in chosen.
func (s *search) place(choose bool) bool {
	if len(s.q.items) == 1 {
		if !s.hasGPUs(0) {
			return false
		}
		if !choose {
			return true
		}
	}
	limit := maxSteps
	if len(s.q.items) > manyItems {
		limit = fewSteps
	}
	s.sortItems()
	if s.attempt(s.q.opts.Policy, limit) {
		return true
	}
	// Best fit finds more of what is hard to find.
	return s.exhausted() && s.attempt(Binpack, limit)
}

// attempt searches from the beginning, for limit steps at most. free must be as
// reset left it, and is again if nothing is found.
func (s *search) attempt(p Policy, limit int) bool {
	s.policy, s.limit, s.steps, s.state = p, limit, 0, 0
	if len(s.q.items) > 1 {
		if s.dead == nil {
			s.dead = map[uint64]struct{}{}
		}
		clear(s.dead)
		for g := range s.gpus {
			if s.fits[g].all() {
				s.state += s.digest(g)
			}
		}
	}
	return s.placeFrom(0)
}

// exhausted says that the last attempt gave up before it had tried everything.
func (s *search) exhausted() bool { return s.steps > s.limit }

// sortItems puts the items into order: those that take most of a GPU first,
// then those that take most GPUs, then as written.
func (s *search) sortItems() {
	s.order, s.biggest = s.order[:0], s.biggest[:0]
	for item := range s.q.items {
		most := units.Shares(0)
		for g := range s.gpus {
			if s.fits[g].all() {
				most = max(most, min(s.needOf(item, g), s.node.SharesPerGPU()))
			}
		}
		s.biggest = append(s.biggest, most)
		// Insertion: there are few, and it must not allocate.
		s.order = append(s.order, item)
		for j := item; j > 0 && s.harder(s.order[j], s.order[j-1]); j-- {
			s.order[j], s.order[j-1] = s.order[j-1], s.order[j]
		}
	}
}

func (s *search) harder(a, b int) bool {
	if s.biggest[a] != s.biggest[b] {
		return s.biggest[a] > s.biggest[b]
	}
	return s.q.items[a].count > s.q.items[b].count
}

// placeFrom places order[k:].
func (s *search) placeFrom(k int) bool {
	if k == len(s.order) {
		return true
	}
	// 1. Leave at once what cannot succeed. A single item was counted before.
	item, single := s.order[k], len(s.order) == 1
	if !single {
		if _, dead := s.dead[s.state+uint64(k)]; dead || !s.hopeful(k) {
			return false
		}
	}
	// 2. Find and order the candidates. The last item wants only the first.
	c := s.candidates[item][:0]
	for g := range s.gpus {
		if s.hasRoom(item, g) {
			c = append(c, g)
		}
	}
	s.candidates[item], s.chosen[item] = c, s.chosen[item][:0]
	s.weigh(item)
	count := s.q.items[item].count
	if count == 1 && k == len(s.order)-1 {
		return s.takeFirst(item)
	}
	s.sortCandidates(item)
	// 3. Try them, those nearest to each other before all others.
	if count > 1 && s.tryNear(k) || s.pick(k, 0) {
		return true
	}
	if !single {
		s.dead[s.state+uint64(k)] = struct{}{}
	}
	return false
}

// hopeful says whether order[k:] may fit: each item alone has its GPUs, and
// the sum of what they take at least is free.
func (s *search) hopeful(k int) bool {
	var free, least units.Shares
	for g := range s.gpus {
		if s.fits[g].all() {
			free += max(s.free[g], 0)
		}
	}
	for _, item := range s.order[k:] {
		found, smallest := 0, s.node.SharesPerGPU()
		for g := range s.gpus {
			if s.hasRoom(item, g) {
				found++
				smallest = min(smallest, s.needOf(item, g))
			}
		}
		count := s.q.items[item].count
		if found < count {
			return false
		}
		least += smallest * units.Shares(count)
	}
	return least <= free
}

// takeFirst gives the item the candidate that costs least.
func (s *search) takeFirst(item int) bool {
	c := s.candidates[item]
	if len(c) == 0 {
		return false
	}
	first := c[0]
	for _, g := range c[1:] {
		if s.costs[g] < s.costs[first] {
			first = g
		}
	}
	s.take(item, first)
	return true
}

// pick chooses the rest of order[k]'s GPUs among its candidates from position
// from on, then places the items after it. GPUs are taken in the order of the
// candidates, so no set is tried twice; of GPUs between which nothing
// distinguishes, only the first is tried.
func (s *search) pick(k, from int) bool {
	item := s.order[k]
	missing := s.q.items[item].count - len(s.chosen[item])
	if missing == 0 {
		return s.placeFrom(k + 1)
	}
	candidates := s.candidates[item]
	for i := from; i+missing <= len(candidates); i++ {
		if s.alike(candidates[from:i], candidates[i]) {
			continue
		}
		if s.steps++; s.exhausted() {
			return false
		}
		s.take(item, candidates[i])
		if s.pick(k, i+1) {
			return true
		}
		s.untake(item)
	}
	return false
}

// alike says whether a GPU equals one of others in all that decides whether
// items fit: its free shares, and its size.
func (s *search) alike(others []int, gpu int) bool {
	return slices.ContainsFunc(others, func(o int) bool {
		return s.free[o] == s.free[gpu] && s.gpus[o].Class.MemoryMiB == s.gpus[gpu].Class.MemoryMiB
	})
}

func (s *search) take(item, gpu int) {
	s.charge(gpu, s.needOf(item, gpu))
	s.chosen[item] = append(s.chosen[item], gpu)
}

func (s *search) untake(item int) {
	last := len(s.chosen[item]) - 1
	gpu := s.chosen[item][last]
	s.chosen[item] = s.chosen[item][:last]
	s.charge(gpu, -s.needOf(item, gpu))
}

func (s *search) charge(gpu int, by units.Shares) {
	if len(s.order) == 1 {
		s.free[gpu] -= by
		return
	}
	s.state -= s.digest(gpu)
	s.free[gpu] -= by
	s.state += s.digest(gpu)
}

// digest mixes what decides whether items fit a GPU. The sum over the GPUs
// describes a state of the node whatever the order of the GPUs; that two
// different states of one search agree in 64 bits is left to chance (below one
// in 2^40), and would refuse a node that fits, never the other way round. The
// constants are those of SplitMix64; the last shift leaves room for k.
func (s *search) digest(gpu int) uint64 {
	x := uint64(s.free[gpu])<<32 ^ uint64(s.gpus[gpu].Class.MemoryMiB)
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return (x ^ x>>31) << 10
}

// weigh asks the policy what each of the item's candidates costs.
func (s *search) weigh(item int) {
	s.costs = s.costs[:0]
	for range s.gpus {
		s.costs = append(s.costs, 0)
	}
	c := Candidate{ByMemory: s.q.items[item].byMemory, Node: &s.after}
	last := -1
	for _, g := range s.candidates[item] {
		neighbours := s.neighbours(item, g)
		if last >= 0 && s.free[g] == s.free[last] && s.gpus[g].Class == s.gpus[last].Class && neighbours == c.Neighbours {
			s.costs[g] = s.costs[last] // wholly free GPUs often sit side by side
			continue
		}
		c.Position, c.Neighbours = g, neighbours
		c.Memory, c.Free, c.Need = s.gpus[g].Class.MemoryMiB, s.free[g], s.needOf(item, g)
		s.costs[g] = s.policy.Cost(c)
		last = g
	}
}

// sortCandidates puts an item's candidates, which are by index, in the order of
// their costs.
func (s *search) sortCandidates(item int) {
	c := s.candidates[item]
	for i := 1; i < len(c); i++ {
		for j := i; j > 0 && s.costs[c[j]] < s.costs[c[j-1]]; j-- {
			c[j], c[j-1] = c[j-1], c[j]
		}
	}
}

// placed describes the node with the pod on it.
func (s *search) placed() Placed {
	p := Placed{Capacity: s.node.Capacity(), ByMemory: s.q.byMemory, Before: &s.before, After: &s.after}
	for g := range s.gpus {
		if s.gpus[g].Healthy {
			p.Used += s.node.SharesPerGPU() - s.free[g]
		}
	}
	gpus := 0
	for _, item := range s.order {
		for _, g := range s.chosen[item] {
			gpus++
			p.Class = s.gpus[g].Class
			p.Left += s.free[g]
			p.Size += s.gpus[g].Class.MemoryMiB
		}
	}
	if gpus > 0 {
		p.Left /= units.Shares(gpus)
		p.Size /= units.MiB(gpus)
	}
	return p
}

// plan writes down what was chosen, each container's GPUs by index.
func (s *search) plan() contract.Plan {
	p := contract.Plan{Version: contract.PlanVersion, Node: s.node.Name(), Containers: map[string][]contract.Grant{}}
	for _, item := range s.order {
		gpus := slices.Sorted(slices.Values(s.chosen[item]))
		for _, d := range s.q.items[item].demands {
			grants := make([]contract.Grant, 0, d.Count)
			for _, g := range gpus[:min(d.Count, len(gpus))] {
				grants = append(grants, d.GrantOn(*s.gpus[g].Facts, s.node.SharesPerGPU()))
			}
			p.Containers[d.Name] = grants
		}
	}
	return p
}
