package planner

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/gang"
	"github.com/tranche-dev/tranche/pkg/ledger"
)

// vacancyTimeout is how long the shares of a lost member are kept for its
// successor: controllers make one within seconds.
const vacancyTimeout = 10 * time.Second

// vacate holds what a lost member of a started gang was charged, r, for its
// successor. Others would take it before that exists, and the rest of the gang
// would hold its GPUs in vain.
func (s *state) vacate(m *member, r *ledger.Record, now time.Time) {
	g := m.gang
	t := s.stand(g)
	if !g.started || m.pod.Member.Succeeded || t.need() == 0 {
		return
	}
	if t.bound == t.succeeded || s.expelled[m.pod.UID] {
		return // nobody is left to be repaired for, or it went for somebody else
	}
	claim := claimOf(r)
	claim.Plan = contract.Plan{}
	if s.ledger.Hold(claim, now.Add(vacancyTimeout)) == "" {
		if g.vacancies == nil {
			g.vacancies = map[types.UID]bool{}
		}
		g.vacancies[r.Pod.UID] = true
		s.vacant[r.Pod.UID] = true
		s.count(m.pod) // others of its queue must not use up its quota either
	}
}

// fill gives up what was kept for a lost member, now that a successor has found
// the place p: all of it if nobody else is missing, else what is on the GPUs of
// p, or one on its node, or any one.
func (s *state) fill(g *gangState, p gang.Place, now time.Time) {
	if len(g.vacancies) == 0 {
		return
	}
	if s.stand(g).missing() <= 1 {
		s.fillAll(g, now)
		return
	}
	uids := slices.Sorted(maps.Keys(g.vacancies))
	filled, next := false, uids[0]
	for _, uid := range uids {
		r, ok := s.ledger.Get(uid)
		if !ok || r.Node != p.Node {
			continue
		}
		next = uid
		if overlaps(r, p.Plan) {
			s.fillOne(g, uid, now)
			filled = true
		}
	}
	if !filled {
		s.fillOne(g, next, now)
	}
}

// overlaps says whether r and the plan have a GPU in common.
func overlaps(r *ledger.Record, plan contract.Plan) bool {
	for _, grants := range plan.Containers {
		for _, grant := range grants {
			if r.On(grant.GPU) > 0 {
				return true
			}
		}
	}
	return false
}

func (s *state) fillAll(g *gangState, now time.Time) {
	for _, uid := range slices.Sorted(maps.Keys(g.vacancies)) {
		s.fillOne(g, uid, now)
	}
}

// endVacancy says that nothing is kept any more of a lost member, if something was.
func (s *state) endVacancy(uid types.UID) {
	if s.vacant[uid] {
		delete(s.vacant, uid)
		s.uncount(uid)
	}
}

func (s *state) fillOne(g *gangState, uid types.UID, now time.Time) {
	delete(g.vacancies, uid)
	delete(s.vacant, uid)
	if r, ok := s.ledger.Release(uid); ok {
		s.gain(r.Node, now)
	}
	s.uncount(uid)
}
