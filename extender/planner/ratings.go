package planner

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/placement"
)

// mostRatings is how many kinds of pods have their ratings remembered: 48 bytes for
// each node.
const mostRatings = 16

// ratingKey tells pods apart that nodes suit differently: what they request, and
// the policy with what it has learned.
type ratingKey struct {
	shape  string
	policy placement.Policy
}

// ratings are how well nodes suit pods of one kind. Only those that have changed are
// rated anew.
type ratings struct {
	mu    sync.Mutex
	query *placement.Query
	// nodes are by position in ledger snapshots of that set.
	set   uint64
	nodes []rated
}

// rated is a node at one version; 0: it has not been rated.
type rated struct {
	version uint64
	room    placement.Room
	score   int64
	fits    bool
}

// ratingsOf returns what is remembered of pods with that request.
func (p *Planner) ratingsOf(shape string, request contract.Request, policy placement.Policy, milliCPU int64) *ratings {
	key := ratingKey{shape, policy}
	r, ok := p.ratings.Get(key)
	if !ok {
		r = &ratings{query: placement.New(request, placement.Options{Policy: policy, PerGPU: p.opts.Resources.PerGPU, MilliCPU: milliCPU})}
		p.ratings.Add(key, r)
	}
	return r
}

// rate calls f with the position among names of each node that takes a pod, and
// with how well it does, in turn. own is the query of a pod that may hold something
// already, which stands in its own way in the others' ratings; mine is the CPU that
// it keeps.
func (r *ratings) rate(s *Snapshot, names []string, uid types.UID, mine ownRoom, own *placement.Query, f func(i int, score int64)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.set != s.Ledger.Set() {
		r.set, r.nodes = s.Ledger.Set(), make([]rated, s.Ledger.Len())
	}
	for i, name := range names {
		at, ok := s.Ledger.Position(name)
		if !ok {
			continue
		}
		view, room := s.Ledger.At(at), s.room(at, mine)
		if len(view.HeldBy(uid)) > 0 {
			if score, reason := own.ScoreIn(view, room); reason == "" {
				f(i, score)
			}
			continue
		}
		n := &r.nodes[at]
		if n.version != view.Version() || n.room != room {
			score, reason := r.query.ScoreIn(view, room)
			*n = rated{view.Version(), room, score, reason == ""}
		}
		if n.fits {
			f(i, n.score)
		}
	}
}
