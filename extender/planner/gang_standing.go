package planner

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/ledger"
)

// tally of a gang: what its members are at.
type standing struct {
	minCount int
	// live are the current members that are not over; idle those of them that
	// neither have a node nor are kept back by anybody else, placed or not.
	live, idle []*member
	// anew says that g had started, but that none of those who live now has had
	// a part in it: they start together like any other gang.
	anew bool
	// bound have a node for certain; committed have one or a Binding on its
	// way. Both include the succeeded.
	bound, committed, succeeded, running, ready, placed int
	foreignGates                                        []string
	foreign                                             int
}

// need is how many more members must be placed together.
func (t *standing) need() int { return max(0, t.minCount-t.committed) }

// missing is how many of them have not even a place.
func (t *standing) missing() int { return max(0, t.need()-t.placed) }

// stand looks at all members of g.
func (s *state) stand(g *gangState) *standing {
	current := g.current()
	t := &standing{minCount: g.minCount(current)}
	gates := map[string]bool{}
	for _, m := range current {
		if m.pod.Member.Succeeded {
			continue
		}
		if m.pod.Deleting && m.pod.Node == "" || m.pod.Ended {
			continue
		}
		if m.pod.Deleting {
			continue // on its way out: its successor counts
		}
		t.live = append(t.live, m)
		if m.pod.Member.Running {
			t.running++
		}
		if m.pod.Member.Ready {
			t.ready++
		}
		switch {
		case m.pod.Node != "":
			t.bound++
			t.committed++
		case s.charged(m):
			t.committed++
			if _, inFlight := s.binding[m.pod.UID]; !inFlight {
				t.bound++
			}
		case len(m.pod.Member.ForeignGates) > 0:
			t.foreign++
			for _, name := range m.pod.Member.ForeignGates {
				gates[name] = true
			}
		default:
			t.idle = append(t.idle, m)
			if m.place != nil {
				t.placed++
			}
		}
	}
	done, kin := g.done(t.live)
	t.anew = g.started && len(t.live) > 0 && t.committed == 0 && kin == 0
	t.succeeded = done
	if !g.started || t.anew {
		t.succeeded = kin
	}
	t.bound += t.succeeded
	t.committed += t.succeeded
	for name := range gates {
		t.foreignGates = append(t.foreignGates, name)
	}
	slices.Sort(t.foreignGates)
	return t
}

// done counts the members that have succeeded, and those among them that are
// kin of the live ones: pods of the same owner, which goes on with its work. If
// there are none, what was done was another gang's work, such as the last run of
// a CronJob.
func (g *gangState) done(live []*member) (all, kin int) {
	owners := map[owner]bool{}
	for _, m := range live {
		owners[ownerOf(m.pod)] = true
	}
	newest := g.newest()
	for _, o := range g.succeeded {
		if !newest.has(o) {
			continue
		}
		all++
		if o != (owner{}) && owners[o] {
			kin++
		}
	}
	return all, kin
}

// charged says whether a member that the watch shows unbound has been
// committed.
func (s *state) charged(m *member) bool {
	r, ok := s.ledger.Get(m.pod.UID)
	return ok && r.State == ledger.Allocated
}

// minCount says how many members make g whole; 0 if nobody says.
func (g *gangState) minCount(current []*member) int {
	if g.object != nil && !g.object.Managed {
		return int(g.object.MinCount)
	}
	if g.group != nil && g.group.MinCount > 0 {
		return int(g.group.MinCount)
	}
	var newest *member
	for _, m := range current {
		if m.pod.Member.MinCount > 0 && (newest == nil || older(newest.pod, m.pod) < 0) {
			newest = m
		}
	}
	switch {
	case newest != nil:
		return int(newest.pod.Member.MinCount)
	case g.group != nil:
		return 1 // a group of pods that may start one by one
	default:
		return 0
	}
}

// current returns the members that count, in the order of age: of owners of one
// kind and name only the newest one's. A Job that was deleted and made anew is
// a new gang, and what is left of the old one must not be added up with it.
func (g *gangState) current() []*member {
	newest := g.newest()
	list := make([]*member, 0, len(g.members))
	for _, m := range g.members {
		if newest.has(ownerOf(m.pod)) {
			list = append(list, m)
		}
	}
	slices.SortFunc(list, func(a, b *member) int { return older(a.pod, b.pod) })
	return list
}

// owner is the controller of a pod; the zero owner is nobody.
type owner struct {
	kind, name string
	uid        types.UID
}

func ownerOf(pod *view.Pod) owner {
	if o := pod.Member.Owner; o != nil {
		return owner{o.APIVersion + "/" + o.Kind, o.Name, o.UID}
	}
	return owner{}
}

// generation has the newest owner of each kind and name.
type generation map[owner]types.UID

// newest looks at all members: the youngest pod is the newest owner's.
func (g *gangState) newest() generation {
	youngest := map[owner]*member{}
	for _, m := range g.members {
		o := ownerOf(m.pod)
		o.uid = ""
		if n := youngest[o]; n == nil || older(n.pod, m.pod) < 0 {
			youngest[o] = m
		}
	}
	list := make(generation, len(youngest))
	for o, m := range youngest {
		list[o] = ownerOf(m.pod).uid
	}
	return list
}

// has says whether no newer owner has taken o's place.
func (l generation) has(o owner) bool {
	uid, known := l[owner{kind: o.kind, name: o.name}]
	return !known || uid == o.uid
}

// preferred orders the members among which some are to be placed: those that
// the scheduler has accepted, those that it has, then by age.
func preferred(a, b *member) int {
	rank := func(m *member) int {
		switch {
		case m.arrival != nil:
			return 0
		case m.place != nil:
			return 1
		case !m.pod.Member.Gated:
			return 2
		default:
			return 3
		}
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), older(a.pod, b.pod))
}
