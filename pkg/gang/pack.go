package gang

import (
	"encoding/binary"

	"github.com/tranche-dev/tranche/pkg/ledger"
)

// pack finds room for the members that byPolicy left over. What the policy
// likes best may waste room: of two-GPU pods, GPUs with room for 1, 1 and 2
// take two, but only one if the two fullest are taken first. So it asks how
// many copies each site takes at most, moves members of one group out of the
// way of another, and plans the sites that got more than before anew. False:
// there is no room, or the search for it was given up; see the package's text.
func (f *filling) pack() bool {
	caps, sum := f.caps()
	if sum < f.s.count {
		return false
	}
	for g := range f.s.groups {
		for f.left[g] > 0 {
			if !f.augment(g, caps) {
				return false
			}
		}
	}
	for i := range f.sites {
		if k := f.used[i]; k != len(f.plans[i]) && !f.replan(i, k) {
			return false
		}
	}
	return true
}

// start is a site as it was before any member of this shape was on it.
func (f *filling) start(i int) site {
	if st, ok := f.before[i]; ok {
		return st
	}
	return f.sites[i]
}

// caps returns how many members of this shape each site takes at most, and the
// sum.
func (f *filling) caps() (caps []int, sum int) {
	caps = make([]int, len(f.sites))
	for i := range f.sites {
		st := f.start(i)
		if f.s.bound[st.id] > 0 {
			f.p.work++
			// The policy may be lucky where a bounded search is not.
			caps[i] = max(f.p.copies(f.s, &st, f.s.count), f.used[i])
			sum += caps[i]
		}
	}
	return caps, sum
}

// copies returns how many copies of s a site takes, at most limit.
func (p *planner) copies(s *shape, st *site, limit int) int {
	n := s.most(st, limit)
	if n == 0 || s.single() {
		return n
	}
	// A search: nodes that look the same share its result.
	key := looks(st.gpus, n)
	known, ok := s.searched[key]
	if !ok {
		p.work += searchWork
		known = s.packing.Copies(st.gpus, n)
		s.searched[key] = known
	}
	return known
}

// looks is equal for nodes on which equally many copies fit, of n at most.
func looks(v *ledger.NodeView, n int) string {
	key := binary.AppendVarint(nil, int64(n))
	key = binary.AppendVarint(key, int64(v.SharesPerGPU()))
	for i := range v.GPUs() {
		g := &v.GPUs()[i]
		if !g.Healthy {
			continue
		}
		key = binary.AppendVarint(key, int64(g.Free))
		key = binary.AppendVarint(key, int64(g.Class.MemoryMiB))
		key = append(key, g.Class.Model...)
		key = append(key, 0)
		key = append(key, g.Class.Isolation...)
		key = append(key, 0)
		for o := range v.GPUs() {
			if v.NearnessDiffers() { // they decide where a search begins
				key = binary.AppendVarint(key, int64(v.Nearness(i, o)))
			}
		}
	}
	return string(key)
}

// augment finds a site for one more member of group g: one with room, or one
// where a member of another group sits for which the same can be found. It is
// the search for an augmenting path in the bipartite graph of members and
// places, so it fails only where no distribution of the groups succeeds.
func (f *filling) augment(g int, caps []int) bool {
	// cameBy[h] is the group that wants the place of one of h's, and where.
	type wish struct{ group, site int }
	cameBy := map[int]wish{g: {-1, -1}}
	seen := make([]bool, len(f.sites))
	for queue := []int{g}; len(queue) > 0; queue = queue[1:] {
		h := queue[0]
		for i := range f.sites {
			if seen[i] || caps[i] == 0 || f.s.groups[h].avoid[f.sites[i].node.Name] {
				continue
			}
			seen[i] = true
			if f.used[i] == caps[i] {
				for o := range f.s.groups {
					if _, known := cameBy[o]; !known && f.taken[o][i] > 0 {
						cameBy[o] = wish{h, i}
						queue = append(queue, o)
					}
				}
				continue
			}
			// One of h's goes to the free place, one of the group that h came
			// by to where h's was, and so on back to g.
			f.used[i]++
			f.left[g]--
			for to := i; h >= 0; {
				from := cameBy[h]
				f.taken[h][to]++
				if from.site >= 0 {
					f.taken[h][from.site]--
				}
				h, to = from.group, from.site
			}
			return true
		}
	}
	return false
}

// replan gives a site exactly k members of this shape.
func (f *filling) replan(i, k int) bool {
	st := f.start(i)
	f.before[i] = st
	if k <= len(f.plans[i]) {
		f.plans[i] = f.plans[i][:k] // each was made on top of those before it
	} else if f.plans[i] = f.s.pack(&st, k); f.plans[i] == nil {
		return false
	}
	// Which of the members is where makes no difference to others.
	pods := make([]ledger.Pod, 0, f.s.count)
	for _, g := range f.s.groups {
		for _, m := range g.members {
			pods = append(pods, f.p.members[m].Pod)
		}
	}
	for j, plan := range f.plans[i] {
		st = st.put(pods[j], f.s.needs, plan, f.s.roles)
	}
	f.sites[i] = st
	return true
}
