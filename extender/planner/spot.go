package planner

import (
	"container/heap"
	"slices"
	"strings"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/gang"
	"github.com/tranche-dev/tranche/pkg/placement"
)

// This file finds nodes for single pods. Pods of a shape share the search: the
// nodes that take it are sorted once a round, and what one of them took changes
// one node. A shape that fits nowhere is not looked for again but on nodes that
// have got more room since, however many pods of it wait.

// spotKey tells searches apart: shapes, and the queue if that has a say.
type spotKey struct {
	shape int
	// queue is empty if it has no say; models are those that it may have more of,
	// if that is not all.
	queue, models string
}

// ownPlacement says whether the pod's queue has a placement policy of its own.
func (s *state) ownPlacement(e *pending) bool {
	q := s.queues[s.queueName(e.pod.UID)]
	return q != nil && q.view != nil && q.view.Placement != ""
}

// asksMemory says whether what a request costs depends on the GPU.
func asksMemory(request contract.Request) bool {
	return slices.ContainsFunc(request.Demands, func(d contract.Demand) bool { return d.Memory > 0 && !d.Whole })
}

// spots are the nodes that take pods of one shape, the best first. They outlive the
// round, as long as the board has the same nodes and the policy has learned nothing.
type spots struct {
	query  *placement.Query
	policy placement.Policy
	nodes  []*gang.Node
	// scores and places are by the number of a node on the board: how good it is,
	// and where it is in the heap, -1 if it does not take the shape.
	scores []int64
	places []int32
	heap   []int32
	// refusals are the reasons of the nodes that do not; stale says that some of
	// them may be of an earlier round.
	refusals tally
	stale    bool
	// barred are the nodes that a queue did not allow in this round.
	barred []int32
	// seen is the length of the log of gains up to which nodes were looked at,
	// changes that of the board's changes.
	seen, changes uint64
}

// mostSpots is how many shapes have their spots kept from round to round: 24 bytes
// for each node.
const mostSpots = 64

func (at *spots) Len() int { return len(at.heap) }
func (at *spots) Less(i, j int) bool {
	a, b := at.heap[i], at.heap[j]
	if at.scores[a] != at.scores[b] {
		return at.scores[a] > at.scores[b]
	}
	return placement.Before(at.nodes[a].Name, at.nodes[b].Name)
}

func (at *spots) Swap(i, j int) {
	at.heap[i], at.heap[j] = at.heap[j], at.heap[i]
	at.places[at.heap[i]], at.places[at.heap[j]] = int32(i), int32(j)
}

func (at *spots) Push(x any) {
	if i, ok := x.(int32); ok {
		at.places[i] = int32(len(at.heap))
		at.heap = append(at.heap, i)
	}
}

func (at *spots) Pop() any {
	last := len(at.heap) - 1
	i := at.heap[last]
	at.heap, at.places[i] = at.heap[:last], -1
	return i
}

// hopeless is a shape that fitted nowhere.
type hopeless struct {
	// at is the length of the log of gains then.
	at     uint64
	reason Reason
}

// spot finds the best place for a pod that its queue allows. Without one, the
// reason is why; empty if there are no nodes, or if the queue allows none.
func (r *round) spot(e *pending, shapeID int, request contract.Request, allow func(p *gang.Place) bool) (*gang.Place, Reason) {
	s := r.s
	r.prepare()
	shape := spotKey{shape: shapeID}
	if len(request.Models) != len(e.pod.Request.Models) {
		shape.models = strings.Join(request.Models, ",")
	}
	if s.ownPlacement(e) || asksMemory(request) {
		shape.queue = s.queueName(e.pod.UID)
	}
	at := r.spotsOf(shape, e, request)
	for {
		for len(at.heap) > 0 {
			i := at.heap[0]
			node := at.nodes[i]
			plan, reason := at.query.PlanIn(node.GPUs, placement.CPU(node.Free.MilliCPU))
			if reason != "" {
				at.refusals.add(reason)
				heap.Pop(at)
				continue
			}
			place := &gang.Place{Node: node.Name, Plan: plan}
			if allow(place) {
				return place, ""
			}
			at.barred = append(at.barred, i)
			heap.Pop(at) // it costs too much there
		}
		if !at.stale || len(at.barred) > 0 {
			break
		}
		at.stale, at.refusals = false, tally{}
		at.offerAll(e)
	}
	s.spots.Remove(shape)
	if len(at.barred) > 0 {
		return nil, ""
	}
	s.hopeless[shape] = &hopeless{at: at.seen, reason: at.refusals.best}
	return nil, at.refusals.best
}

// spotsOf finds the spots of a shape, and brings them up to date.
func (r *round) spotsOf(shape spotKey, e *pending, request contract.Request) *spots {
	s := r.s
	if at := r.spots[shape]; at != nil {
		r.review(at, e)
		return at
	}
	policy := s.policyOf(e.pod)
	at, kept := s.spots.Get(shape)
	if kept && at.policy == policy && at.changes >= r.board.changes.first {
		at.stale = true
		for _, i := range at.barred {
			at.offer(i, e)
		}
		at.barred = nil
		r.review(at, e)
	} else {
		at = &spots{
			policy: policy, nodes: r.board.nodes, seen: s.gains.end(), changes: r.board.changes.end(),
			scores: make([]int64, len(r.board.nodes)), places: slices.Repeat([]int32{-1}, len(r.board.nodes)),
			query: placement.New(request, placement.Options{Policy: policy, PerGPU: s.p.opts.Resources.PerGPU, MilliCPU: e.pod.Needs.MilliCPU}),
		}
		if gained, ok := r.gainedSince(shape); ok {
			at.refusals.add(s.hopeless[shape].reason)
			for _, i := range gained {
				at.offer(i, e)
			}
		} else {
			at.offerAll(e)
		}
		s.spots.Add(shape, at)
	}
	r.spots[shape] = at
	return at
}

// review looks again at nodes that have changed since they were looked at: others
// took of them, or the round itself has given something up.
func (r *round) review(at *spots, e *pending) {
	changes, ok := r.board.changes.since(at.changes)
	at.seen, at.changes = r.s.gains.end(), r.board.changes.end()
	if !ok {
		at.offerAll(e)
		return
	}
	for _, i := range changes {
		at.offer(int32(i), e)
	}
}

// gainedSince are the nodes that have got more room since a shape fitted nowhere.
// False: it has not been tried, or they are not known any more.
func (r *round) gainedSince(shape spotKey) ([]int32, bool) {
	h := r.s.hopeless[shape]
	if h == nil {
		return nil, false
	}
	names, ok := r.s.gains.since(h.at)
	var list []int32
	seen := map[string]bool{}
	for _, name := range names {
		if i, known := r.board.at[name]; known && !seen[name] {
			seen[name] = true
			list = append(list, int32(i))
		}
	}
	return list, ok
}

// offerAll looks at all nodes.
func (at *spots) offerAll(e *pending) {
	at.heap = at.heap[:0]
	for i := range at.nodes {
		score, reason := at.rate(at.nodes[i], e)
		if at.scores[i], at.places[i] = score, -1; reason != "" {
			at.refusals.add(reason)
			continue
		}
		at.places[i] = int32(len(at.heap))
		at.heap = append(at.heap, int32(i))
	}
	heap.Init(at)
}

// offer puts the i-th node where it belongs, if it takes the shape of e.
func (at *spots) offer(i int32, e *pending) {
	score, reason := at.rate(at.nodes[i], e)
	place := int(at.places[i])
	at.scores[i] = score
	switch {
	case reason != "":
		at.refusals.add(reason)
		if place >= 0 {
			heap.Remove(at, place)
		}
	case place < 0:
		heap.Push(at, i)
	default:
		heap.Fix(at, place)
	}
}

// rate says how well a node takes the shape of e, or why it does not.
func (at *spots) rate(g *gang.Node, e *pending) (int64, Reason) {
	if e.avoided[g.Name] {
		return 0, NotOffered
	}
	score, reason := at.query.ScoreIn(g.GPUs, placement.CPU(g.Free.MilliCPU))
	if !final(reason) {
		// What the node would do for the pod counts only if the pod may go there.
		if ok, _ := e.pod.Constraints.Match(g); !ok {
			return 0, NotOffered
		}
	}
	if reason != "" {
		return 0, reason
	}
	if fits, _ := gang.Fits(g.Free, e.pod.Needs); !fits {
		return 0, NoResources
	}
	return score, ""
}
