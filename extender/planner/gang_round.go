package planner

import (
	"fmt"
	"maps"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/gang"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/queue"
)

// round is one look at gangs. What it learns of nodes is good as long as
// nothing but its own places changes.
type round struct {
	s *state
	// board is the state's, up to date if prepared.
	board    *board
	prepared bool
	// failed are groups for which there was no room at the capacity failedAt:
	// equal ones need no try.
	failed   map[string]*gang.Shortfall
	failedAt uint64
	// spots are the nodes for single pods, by shape; admissions are the pods to
	// be handed to the scheduler when the round is over.
	spots      map[spotKey]*spots
	admissions []Admission
	// lowest is the lowest priority that runs in each queue, nil before it is
	// asked for.
	lowest map[string]int32
	// base is what trialFor has made, nil before it is asked for.
	base *queue.Trial
	// over are the queues that use more than their share, nil before it is asked.
	over []string
	// favoured are the lines with pods for which something is put by, nil before it
	// is asked.
	favoured map[*line]bool
	// lent are nodes of which more is taken than the board's next look will find.
	lent []string
	// vain are those for one of which there was no room to be made, nil before it
	// is asked.
	vain map[kin]bool
}

// flush hands the admitted pods over.
func (r *round) flush() {
	if len(r.admissions) > 0 {
		r.s.p.effects.Admit(r.admissions)
		r.admissions = nil
	}
}

// prepare has the board be up to date.
func (r *round) prepare() {
	if r.failedAt != r.s.capacity {
		// Something became free since.
		clear(r.failed)
		r.failedAt = r.s.capacity
	}
	if !r.prepared {
		r.prepared = true
		if r.board.refresh(r.s) {
			r.s.spots.Purge() // they are of other nodes
		}
		return
	}
	for name := range r.s.moved {
		r.refresh(name)
	}
	clear(r.s.moved)
}

// refresh brings a node up to date.
func (r *round) refresh(name string) {
	if i, ok := r.board.at[name]; ok {
		r.board.update(r.s, i)
	}
}

// plan asks for places for the chosen members of g; those to keep stay where
// they are. split deals the members out to the GPU models that the queue may have
// more of. Nothing is changed.
func (r *round) plan(g *gangState, chosen []*member, t *standing, keep keeper, split bool, now time.Time) ([]gang.Place, *gang.Shortfall) {
	s := r.s
	r.prepare()
	opts := gang.Options{Resources: s.p.opts.Resources, Without: map[types.UID]bool{}}
	members := make([]gang.Member, 0, len(chosen))
	var signature strings.Builder
	fmt.Fprintf(&signature, "%v", s.topology(g, t))
	for _, m := range chosen {
		if m.place != nil {
			opts.Without[m.pod.UID] = true
		}
	}
	for uid := range g.vacancies {
		if _, held := s.ledger.Get(uid); held {
			opts.Without[uid] = true
		} else {
			delete(g.vacancies, uid)
			delete(s.vacant, uid)
			s.uncount(uid)
		}
	}
	maps.Copy(opts.Without, s.seatsFor(g.id()))
	plain := len(opts.Without) == 0 && !split
	name, _ := s.gangAsk(chosen)
	room := s.modelRoom(name)
	for _, m := range chosen {
		one := s.memberFor(m, name, now)
		if split && m.place == nil {
			one.Request = room.take(s, one.Request, s.wants(m.pod.UID).Get(queue.GPU))
			one.Shape = shapeText(m.pod, one.Request)
		}
		if len(one.Request.Models) != len(m.pod.Request.Models) {
			plain = false
		}
		if m.place != nil && keep(m) {
			one.Pinned, one.Plan = m.place.Node, m.place.Plan
		}
		if len(one.Avoid) > 0 {
			plain = false
		}
		signature.WriteString(m.shape)
		members = append(members, one)
	}
	if short := r.failed[signature.String()]; plain && short != nil {
		return nil, short
	}
	// What the group keeps of nodes does not stand in its own way.
	r.each(opts.Without, s.unkeep)
	places, short := gang.Plan(r.board.nodes, members, s.topology(g, t), opts)
	r.each(opts.Without, s.keep)
	if short != nil && plain {
		r.failed[signature.String()] = short
	}
	return places, short
}

// memberFor is what is sought for a member of a gang in a queue.
func (s *state) memberFor(m *member, name string, now time.Time) gang.Member {
	request, _ := s.narrowed(m.pod.Request, name, s.wants(m.pod.UID))
	return gang.Member{
		Pod: ref(m.pod), Request: request, Policy: s.policyOf(m.pod),
		Needs: m.pod.Needs, Constraints: m.pod.Constraints, Shape: m.shape, Avoid: m.avoided(now),
	}
}

// each does f with all members among uids that have a place.
func (r *round) each(uids map[types.UID]bool, f func(m *member)) {
	for uid := range uids {
		if m := r.s.members[uid]; m != nil && m.place != nil {
			f(m)
			r.refresh(m.place.Node)
		}
	}
}

// topology is what g asks for, nil if nothing.
func (s *state) topology(g *gangState, t *standing) *gang.Topology {
	if g.object == nil || g.object.NodeLabel == "" {
		return nil
	}
	top := &gang.Topology{NodeLabel: g.object.NodeLabel, Required: g.object.Required}
	for _, m := range t.live {
		name := m.pod.Node
		if r, ok := s.ledger.Get(m.pod.UID); ok && r.State == ledger.Allocated {
			name = r.Node
		}
		if n := s.nodes[name]; n != nil && n.view != nil {
			top.Domain = n.view.Labels[top.NodeLabel]
		}
		if top.Domain != "" {
			break
		}
	}
	return top
}
