package placement

import (
	"slices"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/units"
)

// packSteps bounds one search for several copies of a pod of several items; see
// maxSteps.
const packSteps = 4000

// Bound returns a number that Copies does not exceed, at most limit, at the
// cost of a look at every GPU. For a request of one item (one container, or
// SameGPUs) it is what Copies returns.
func (q *Query) Bound(n *ledger.NodeView, limit int) int {
	if q.refuses(n) != "" || limit <= 0 {
		return 0
	}
	q.search.reset(q, n)
	limit = q.search.sumBound(limit)
	for item := range q.items {
		limit = q.search.slots(item, limit)
	}
	return limit
}

// Copies returns how many pods with this request find room on n at the same
// time, at most limit, whatever the policy would choose. It is exact for
// requests of one item, and for others as far as packSteps reach.
func (q *Query) Copies(n *ledger.NodeView, limit int) int {
	bound := q.Bound(n, limit)
	if bound == 0 || len(q.items) <= 1 {
		return bound
	}
	// Where k copies fit, so do k-1: the first failure is the last.
	k := q.inTurn(n, bound, nil)
	for k < bound && q.merged(k+1).fitsTogether(n) {
		k++
	}
	return k
}

// Pack plans copies of the pod on n, whatever the policy would choose, and
// returns as many plans; nil if it does not find room for all of them. It does
// for as many as Copies returned.
func (q *Query) Pack(n *ledger.NodeView, copies int) []contract.Plan {
	if q.refuses(n) != "" || copies <= 0 {
		return nil
	}
	plans := make([]contract.Plan, 0, copies)
	add := func(s *search) { plans = append(plans, s.plan()) }
	if q.search.reset(q, n); len(q.items) == 1 {
		q.deal(copies, add)
	} else if q.inTurn(n, copies, add) < copies {
		plans = plans[:0]
		if m := q.merged(copies); m.fitsTogether(n) {
			m.search.split(len(q.items), add)
		}
	}
	if len(plans) < copies {
		return nil
	}
	return plans
}

// refuses says why the node is out of the question, whatever is free on it.
func (q *Query) refuses(n *ledger.NodeView) Reason {
	switch {
	case q.malformed:
		return Malformed
	case !n.Known():
		return NoInventory
	case q.opts.PerGPU != 0 && q.opts.PerGPU != n.SharesPerGPU():
		return OtherGrain
	case len(n.GPUs()) == 0:
		return NoGPUs
	}
	return ""
}

// inTurn places copies one after the other, each in best-fit order, and returns
// how many found room. placed, if not nil, is called after each.
func (q *Query) inTurn(n *ledger.NodeView, copies int, placed func(*search)) int {
	s := &q.search
	s.reset(q, n)
	for k := range copies {
		s.sortItems()
		if !s.attempt(Binpack, packSteps) {
			return k
		}
		if placed != nil {
			placed(s)
		}
	}
	return copies
}

// merged is a query for k pods as if they were one.
func (q *Query) merged(k int) *Query {
	return &Query{req: q.req, opts: q.opts, items: slices.Repeat(q.items, k), byMemory: q.byMemory}
}

// fitsTogether places all items of a merged query. It leaves them chosen.
func (q *Query) fitsTogether(n *ledger.NodeView) bool {
	s := &q.search
	s.reset(q, n)
	s.sortItems()
	return s.attempt(Binpack, packSteps) || s.exhausted() && s.attempt(Spread, packSteps)
}

// split shows placed every pod of a merged query whose pods have items each.
func (s *search) split(items int, placed func(*search)) {
	all := len(s.order)
	for first := 0; first < all; first += items {
		s.order = s.order[:0]
		for item := range items {
			s.order = append(s.order, first+item)
		}
		placed(s)
	}
}

// slots returns how many copies of one item fit, were it alone, at most limit:
// the most that the GPUs can be dealt out to, no copy getting one twice. A GPU
// with room for r copies serves min(r, k) of k.
func (s *search) slots(item, limit int) int {
	count := s.q.items[item].count
	serves := func(k int) bool {
		sum := 0
		for g := range s.gpus {
			sum += min(s.room(item, g), k)
		}
		return sum >= k*count
	}
	low, high := 0, limit // low is served, more than high is not asked for
	for low < high {
		if mid := low + (high-low+1)/2; serves(mid) {
			low = mid
		} else {
			high = mid - 1
		}
	}
	return low
}

// room is how many copies of the item the GPU has room for.
func (s *search) room(item, gpu int) int {
	if !s.hasRoom(item, gpu) {
		return 0
	}
	return int(s.free[gpu] / max(s.needOf(item, gpu), 1))
}

// sumBound returns how often the least that all items take together is free,
// at most limit.
func (s *search) sumBound(limit int) int {
	var free, least units.Shares
	for g := range s.gpus {
		if s.fits[g].all() {
			free += max(s.free[g], 0)
		}
	}
	for item := range s.q.items {
		smallest := units.Shares(0)
		for g := range s.gpus {
			if need := s.needOf(item, g); s.fits[g].all() && (smallest == 0 || need < smallest) {
				smallest = need
			}
		}
		least += smallest * units.Shares(s.q.items[item].count)
	}
	if least == 0 {
		return limit
	}
	return int(min(free/least, units.Shares(limit)))
}

// deal gives the GPUs of a node to copies of a query's only item, always those
// with room for the most further copies: so none is left over of which one copy
// could use only one part.
func (q *Query) deal(copies int, placed func(*search)) {
	s, count := &q.search, q.items[0].count
	s.order = append(s.order[:0], 0)
	for range copies {
		c := s.candidates[0][:0]
		for g := range s.gpus {
			if s.hasRoom(0, g) {
				c = append(c, g)
			}
		}
		s.candidates[0], s.chosen[0] = c, s.chosen[0][:0]
		if len(c) < count {
			return
		}
		slices.SortStableFunc(c, func(a, b int) int { return s.room(0, b) - s.room(0, a) })
		for _, g := range c[:count] {
			s.take(0, g)
		}
		placed(s)
	}
}
