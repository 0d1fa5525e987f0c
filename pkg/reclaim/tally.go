package reclaim

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/gang"
)

// tally bounds how many members of each kind find room without the present
// victims, so that gang.Plan need not be asked about victims that are needed
// for sure. For many kinds it is not kept, and knows nothing.
type tally struct {
	c *cluster
	// room[k] is the bound for c.kinds[k] on all sites, on[at][k] that on one
	// site; sites without an entry have none.
	room []int
	on   map[int][]int
	// gone are the victims on each site.
	gone map[int][]*Unit
}

func newTally(j *judge, victims []*Unit) *tally {
	t := &tally{c: j.c, room: make([]int, len(j.c.kinds)), on: map[int][]int{}, gone: map[int][]*Unit{}}
	if len(t.room) > manyKinds {
		return t
	}
	for _, u := range victims {
		for _, at := range t.sites(u) {
			t.gone[at] = append(t.gone[at], u)
		}
	}
	for at := range j.c.sites {
		if j.takes[at] || len(t.gone[at]) > 0 {
			t.set(at, t.measure(at, t.gone[at]))
		}
	}
	return t
}

// sites lists where a unit has pods, each once.
func (t *tally) sites(u *Unit) []int {
	var all []int
	for i := range u.Pods {
		if at, ok := t.c.at[u.Pods[i].Node]; ok && !slices.Contains(all, at) {
			all = append(all, at)
		}
	}
	return all
}

func (t *tally) set(at int, room []int) {
	before := t.on[at]
	for k := range room {
		t.room[k] += room[k]
		if before != nil {
			t.room[k] -= before[k]
		}
	}
	t.on[at] = room
}

// measure bounds the room of each kind on a site without some units.
func (t *tally) measure(at int, gone []*Unit) []int {
	st, uids := t.c.sites[at], map[types.UID]bool{}
	for _, u := range gone {
		for i := range u.Pods {
			if uids[u.Pods[i].UID] = true; u.Pods[i].Node == st.node.Name {
				st.free = st.free.Add(u.Pods[i].Needs)
			}
		}
	}
	st.gpus = st.gpus.Without(uids)
	room := make([]int, len(t.room))
	for k, kind := range t.c.kinds {
		if kind.allowed[at] {
			room[k] = kind.bound(&st)
		}
	}
	return room
}

// needs says that the members cannot fit if a block of the victims stays.
// Otherwise they may; then stay notes that it does.
func (t *tally) needs(block []*Unit) (needed bool, stay func()) {
	if len(t.room) > manyKinds {
		return false, func() {}
	}
	after := map[int][]int{}
	room := slices.Clone(t.room)
	isOut := func(u *Unit) bool { return slices.Contains(block, u) }
	for _, u := range block {
		for _, at := range t.sites(u) {
			if after[at] != nil {
				continue
			}
			after[at] = t.measure(at, slices.DeleteFunc(slices.Clone(t.gone[at]), isOut))
			for k := range room {
				room[k] += after[at][k] - t.on[at][k]
			}
		}
	}
	for k, kind := range t.c.kinds {
		needed = needed || room[k] < len(kind.members)
	}
	return needed, func() {
		for at, room := range after {
			t.set(at, room)
			t.gone[at] = slices.DeleteFunc(slices.Clone(t.gone[at]), isOut)
		}
	}
}

// bound is how many members of the kind find room on a site, at least that
// many.
func (k *kind) bound(st *site) int {
	n := times(st.free, k.first.Needs, len(k.members))
	if k.query == nil || n == 0 {
		return n
	}
	return k.query.Bound(st.gpus, n)
}

// times is how often free takes needs, at most limit.
func times(free, needs gang.Resources, limit int) int {
	n := 0
	for ; n < limit; n++ {
		if ok, _ := gang.Fits(free, needs); !ok {
			break
		}
		free = free.Sub(needs)
	}
	return n
}
