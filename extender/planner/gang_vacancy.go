package planner

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/contract"
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
	if !g.started || m.pod.Member.Succeeded || s.stand(g).need() == 0 {
		return
	}
	claim := claimOf(r)
	claim.Plan = contract.Plan{}
	if s.ledger.Hold(claim, now.Add(vacancyTimeout)) == "" {
		if g.vacancies == nil {
			g.vacancies = map[types.UID]bool{}
		}
		g.vacancies[r.Pod.UID] = true
		s.vacant[r.Pod.UID] = true
	}
}

// fill gives up what was kept for a lost member: all of it if nobody is missing
// any more, else one on the successor's node.
func (s *state) fill(g *gangState, node string, now time.Time) {
	if len(g.vacancies) == 0 {
		return
	}
	if s.stand(g).missing() <= 1 {
		s.fillAll(g, now)
		return
	}
	for _, uid := range slices.Sorted(maps.Keys(g.vacancies)) {
		if r, ok := s.ledger.Get(uid); ok && r.Node == node {
			s.fillOne(g, uid, now)
			return
		}
	}
}

func (s *state) fillAll(g *gangState, now time.Time) {
	for _, uid := range slices.Sorted(maps.Keys(g.vacancies)) {
		s.fillOne(g, uid, now)
	}
}

func (s *state) fillOne(g *gangState, uid types.UID, now time.Time) {
	delete(g.vacancies, uid)
	delete(s.vacant, uid)
	if r, ok := s.ledger.Release(uid); ok {
		s.gain(r.Node, now)
	}
}
