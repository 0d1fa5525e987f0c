package reclaim

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/gang"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/units"
)

// Bounds of a search on one site, and of all searches of a Select together, in
// steps of some hundred nanoseconds. Beyond them a search is content with the
// first set that it finds. Nodes with a dozen units are searched completely.
const (
	siteSteps = 2000
	allSteps  = 200_000
	// maxTargets bounds the choices of GPUs that are looked at per site, and
	// maxVisits what may be tried to find so many.
	maxTargets = 64
	maxVisits  = 4000
)

// choice is the best set of units whose absence makes room for one more member
// on a site. It is empty if there is room already.
type choice struct {
	units []*Unit
	// at are the units' positions among Problem.Units, and worth what worthOf
	// says of them.
	at    []int
	worth []*Unit
	// score is the policy's, where there is room already.
	score int64
}

// search looks for a choice on one site. Its slices are kept from site to site.
type search struct {
	c  *cluster
	k  *kind
	st *site
	// seats are those that may go. frees[g][s] are seat s's shares of GPU g,
	// and reach[g] the shares of g that are free once all seats are gone.
	seats []*seat
	frees [][]int64
	reach []units.Shares
	flat  []int64
	// scratch is price's.
	scratch []int64
	// lack is what is missing at present, in GPU shares and resources, and
	// gives[d][s] what seat s has of lack[d].
	lack  []int64
	gives [][]int64
	// in are the seats taken, out those not to be looked at.
	in, out []bool
	set     []int
	units   []*Unit // consider's
	best    *choice
	steps   int
}

// choose finds the choice on a site for one more member; nil if there is none.
// taken are the units that are gone.
func (c *cluster) choose(k *kind, st *site, taken []bool) *choice {
	c.steps++
	if k.fits(st) {
		best := &choice{}
		if k.query != nil {
			best.score, _ = k.query.Score(st.gpus)
		}
		return best
	}
	s := &c.search
	s.c, s.k, s.st, s.best, s.steps, s.seats = c, k, st, nil, 0, s.seats[:0]
	for i := range st.seats {
		if seat := &st.seats[i]; !taken[seat.at] && c.Rules.MayTake(seat.unit) {
			s.seats = append(s.seats, seat)
		}
	}
	if len(s.seats) == 0 || !s.measure() {
		return nil
	}
	s.in, s.out = cleared(s.in, len(s.seats)), cleared(s.out, len(s.seats))
	for _, target := range s.targets() {
		s.aim(target)
		s.grow(0)
	}
	c.steps += s.steps
	return s.best
}

// measure counts what the seats free. False: that can never be enough.
func (s *search) measure() bool {
	free := s.st.free
	for _, seat := range s.seats {
		free = free.Add(seat.needs)
	}
	if ok, _ := gang.Fits(free, s.k.first.Needs); !ok {
		return false
	}
	gpus := s.st.gpus.GPUs()
	if s.k.query == nil {
		return true
	}
	if grain := s.st.gpus.SharesPerGPU(); len(gpus) == 0 || s.k.perGPU != 0 && grain != s.k.perGPU {
		return false
	}
	s.flat = cleared(s.flat, len(gpus)*len(s.seats))
	s.frees, s.reach = s.frees[:0], s.reach[:0]
	for g := range gpus {
		s.frees = append(s.frees, s.flat[g*len(s.seats):(g+1)*len(s.seats)])
		s.reach = append(s.reach, gpus[g].Free)
	}
	for i, seat := range s.seats {
		s.count(i, seat)
	}
	return true
}

// count adds up what the i-th seat's pods are charged for the site's GPUs.
func (s *search) count(i int, seat *seat) {
	claims, gpus := s.st.gpus.Claims(), s.st.gpus.GPUs()
	for p := range seat.unit.Pods {
		at, ok := slices.BinarySearchFunc(claims, seat.unit.Pods[p].UID, func(r *ledger.Record, uid types.UID) int {
			return cmp.Compare(r.Pod.UID, uid)
		})
		if !ok {
			continue
		}
		for _, charge := range claims[at].Charges {
			for g := range gpus {
				if gpus[g].Facts.UUID == charge.GPU {
					s.frees[g][i] += int64(charge.Shares)
					s.reach[g] += charge.Shares
				}
			}
		}
	}
}

// cleared returns n zero values, in the memory of old if that is enough.
func cleared[T any](old []T, n int) []T {
	if cap(old) < n {
		return make([]T, n)
	}
	old = old[:n]
	clear(old)
	return old
}

// aim sets lack and gives to what a target needs: so many shares of each GPU.
func (s *search) aim(target []units.Shares) {
	s.lack, s.gives = s.lack[:0], s.gives[:0]
	for g, need := range target {
		if free := s.st.gpus.GPUs()[g].Free; need > free {
			s.lack, s.gives = append(s.lack, int64(need-free)), append(s.gives, s.frees[g])
		}
	}
	short := func(need int64, of func(*gang.Resources) int64) {
		if lack := need - of(&s.st.free); need > 0 && lack > 0 {
			gives := make([]int64, len(s.seats))
			for i, seat := range s.seats {
				gives[i] = of(&seat.needs)
			}
			s.lack, s.gives = append(s.lack, lack), append(s.gives, gives)
		}
	}
	needs := &s.k.first.Needs
	short(needs.Pods, func(r *gang.Resources) int64 { return r.Pods })
	short(needs.MilliCPU, func(r *gang.Resources) int64 { return r.MilliCPU })
	short(needs.Memory, func(r *gang.Resources) int64 { return r.Memory })
	short(needs.Ephemeral, func(r *gang.Resources) int64 { return r.Ephemeral })
	for _, scalar := range needs.Scalars {
		short(scalar.Value, func(r *gang.Resources) int64 { return r.Of(scalar.Name) })
	}
}

// grow adds seats to the set, which has so many pods, until nothing lacks. It
// takes up one lack at a time and tries every seat that has something of it:
// first all sets with one seat, then all without that seat and with the next.
func (s *search) grow(pods int) {
	s.steps++
	d := slices.IndexFunc(s.lack, func(n int64) bool { return n > 0 })
	if d < 0 {
		s.consider(pods)
		return
	}
	helpful, hopeless := s.helpful(d, pods)
	if hopeless {
		return
	}
	for _, i := range helpful {
		if s.spent() {
			break
		}
		s.move(i, 1)
		s.grow(pods + len(s.seats[i].unit.Pods))
		s.move(i, -1)
		s.out[i] = true
	}
	for _, i := range helpful {
		s.out[i] = false
	}
}

// spent says that the search must end. Without any set found it goes on for as
// long as it takes to find one, unless Rules refuse all.
func (s *search) spent() bool {
	limit := siteSteps
	if s.c.steps > allSteps {
		limit = 1
	}
	return s.steps > limit && (s.best != nil || s.steps > limit+4*len(s.seats))
}

// helpful lists the seats that have something of lack[d]: those that suffice
// alone by preference, then those with most of it. It is hopeless if all of
// them are too little, or as many as it takes are more than the best set has.
func (s *search) helpful(d, pods int) (all []int, hopeless bool) {
	var sum, biggest int64
	for i := range s.seats {
		if n := s.gives[d][i]; n > 0 && !s.in[i] && !s.out[i] {
			all = append(all, i)
			sum += n
			biggest = max(biggest, n)
		}
	}
	if lack := s.lack[d]; sum < lack || s.best != nil && pods+int((lack+biggest-1)/biggest) > len(s.best.worth) {
		return nil, true
	}
	useful := func(i int) int64 { return min(s.gives[d][i], s.lack[d]) }
	slices.SortStableFunc(all, func(a, b int) int { return cmp.Compare(useful(b), useful(a)) })
	return all, false
}

// move takes a seat (sign 1) or returns it (sign -1).
func (s *search) move(i int, sign int64) {
	for d := range s.lack {
		s.lack[d] -= sign * s.gives[d][i]
	}
	s.in[i] = sign > 0
	if sign > 0 {
		s.set = append(s.set, i)
	} else {
		s.set = s.set[:len(s.set)-1]
	}
}

// consider keeps the present set if it is better than the best and allowed.
func (s *search) consider(pods int) {
	if s.best != nil && pods > len(s.best.worth) {
		return
	}
	s.units = s.units[:0]
	for _, i := range s.set {
		s.units = append(s.units, s.seats[i].unit)
	}
	worth := worthOf(s.units)
	if s.best != nil && compareWorth(worth, s.best.worth) >= 0 {
		return
	}
	if len(s.set) > 1 { // each alone was asked about
		if !takeAll(s.c.Rules, s.units) {
			return
		}
		returnAll(s.c.Rules, s.units)
	}
	s.best = &choice{units: slices.Clone(s.units), worth: slices.Clone(worth)}
	for _, i := range s.set {
		s.best.at = append(s.best.at, s.seats[i].at)
	}
}
