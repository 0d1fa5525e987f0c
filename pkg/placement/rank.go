package placement

import "hash/fnv"

// MaxPriority is the highest score that kube-scheduler takes from an extender.
const MaxPriority = 10

// Best returns the position of the node with the highest score; equal scores
// go to the node that Before puts first. It returns -1 if there are no nodes.
// scores[i] belongs to nodes[i].
func Best(nodes []string, scores []int64) int {
	best := -1
	for i := range min(len(nodes), len(scores)) {
		if best < 0 || scores[i] > scores[best] || scores[i] == scores[best] && Before(nodes[i], nodes[best]) {
			best = i
		}
	}
	return best
}

// Before is the fixed order of nodes whose scores are equal: by a hash, so that
// it has nothing to do with how nodes are named, then by name.
func Before(a, b string) bool {
	x, y := hash(a), hash(b)
	return x < y || x == y && a < b
}

func hash(s string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s))
	return h.Sum64()
}

// Priorities maps scores of any range to what kube-scheduler takes: 10 for the
// best node alone, since equal top scores would let chance decide, and 0 to 9
// in proportion for the others. The result belongs to the caller.
func Priorities(nodes []string, scores []int64) []int64 {
	n := min(len(nodes), len(scores))
	priorities := make([]int64, n)
	best := Best(nodes, scores)
	if best < 0 {
		return priorities
	}
	lowest := scores[best]
	for _, s := range scores[:n] {
		lowest = min(lowest, s)
	}
	// Distances are exact: of scores near 2^63 a float64 has only the upper digits.
	span := distance(scores[best], lowest)
	for i, s := range scores[:n] {
		switch {
		case i == best:
			priorities[i] = MaxPriority
		case span == 0:
			priorities[i] = MaxPriority - 1
		default:
			part := float64(distance(s, lowest)) / float64(span)
			priorities[i] = min(int64(part*(MaxPriority-1)), MaxPriority-1)
		}
	}
	return priorities
}

// distance is a-b, which is not negative; an int64 may be too small for it.
func distance(a, b int64) uint64 { return uint64(a) - uint64(b) }
