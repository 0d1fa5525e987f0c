package simulate

import (
	"cmp"
	"math/rand" //nolint:depguard // The published replays draw with this generator; the results compare only with its sequence.
	"slices"
)

// Load is the arrivals of one replay.
type Load struct {
	// Arrivals are in the order in which they come.
	Arrivals []Pod
	// Order is the order in which equally good nodes are tried, as positions.
	Order []int
}

// Draw makes a load out of a list of pods: all of them in random order, then as
// many drawn from among them, with replacement, as it takes to ask for load times
// the GPUs of the cluster. If the list asks for more than that already, pods are
// removed at random. The seed decides everything, and in the way in which the
// published replays of this trace were drawn.
func Draw(pods []Pod, c *Cluster, load float64, seed int64) Load {
	r := rand.New(rand.NewSource(seed)) //nolint:gosec // A replay must repeat.
	r.Int()
	listed := slices.Clone(pods)
	slices.SortStableFunc(listed, func(a, b Pod) int { return cmp.Compare(a.Name, b.Name) })
	r.Shuffle(len(listed), func(i, j int) { listed[i], listed[j] = listed[j], listed[i] })
	want := int64(load * float64(c.GPUs()) * 1000)
	arrivals, asked := slices.Clone(listed), int64(0)
	for i := range arrivals {
		asked += arrivals[i].Asked
	}
	for asked > want && len(arrivals) > 0 {
		at := r.Intn(len(arrivals))
		asked -= arrivals[at].Asked
		arrivals = slices.Delete(arrivals, at, at+1)
	}
	// Where nobody asks for a GPU, no number of pods would ever be enough.
	if asked > 0 {
		for {
			next := listed[r.Intn(len(listed))]
			if asked+next.Asked > want {
				break
			}
			arrivals = append(arrivals, next)
			asked += next.Asked
		}
	}
	return Load{Arrivals: arrivals, Order: r.Perm(len(c.Nodes))}
}

// Ordered returns the cluster with its nodes in that order.
func (c *Cluster) Ordered(order []int) *Cluster {
	o := &Cluster{PerGPU: c.PerGPU, Nodes: make([]Node, 0, len(c.Nodes))}
	for _, at := range order {
		o.Nodes = append(o.Nodes, c.Nodes[at])
	}
	return o
}
