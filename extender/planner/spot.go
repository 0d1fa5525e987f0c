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

// spots are the nodes that take pods of one shape, the best first.
type spots struct {
	query *placement.Query
	heap  candidates
	// byName has those of the heap.
	byName map[string]*candidate
	// refusals are the reasons of the nodes that do not.
	refusals tally
	// disallowed says that a queue did not allow one of them.
	disallowed bool
	// seen is the length of the log of gains up to which nodes were looked at,
	// changes that of the round's changes.
	seen    uint64
	changes int
}

type candidate struct {
	node  *gang.Node
	score int64
	// at is its place in the heap.
	at int
}

type candidates []*candidate

func (c candidates) Len() int { return len(c) }
func (c candidates) Less(i, j int) bool {
	if c[i].score != c[j].score {
		return c[i].score > c[j].score
	}
	return placement.Before(c[i].node.Name, c[j].node.Name)
}

func (c candidates) Swap(i, j int) {
	c[i], c[j] = c[j], c[i]
	c[i].at, c[j].at = i, j
}

func (c *candidates) Push(x any) {
	if v, ok := x.(*candidate); ok {
		v.at = len(*c)
		*c = append(*c, v)
	}
}

func (c *candidates) Pop() any {
	last := len(*c) - 1
	x := (*c)[last]
	*c = (*c)[:last]
	return x
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
	at := r.spots[shape]
	if at == nil {
		at = &spots{
			seen: s.gainsEnd(), changes: len(r.changes), byName: map[string]*candidate{},
			query: placement.New(request, placement.Options{Policy: s.policyOf(e.pod), PerGPU: s.p.opts.Resources.PerGPU, MilliCPU: e.pod.Needs.MilliCPU}),
		}
		r.spots[shape] = at
		nodes := r.nodes
		if h := s.hopeless[shape]; h != nil {
			at.refusals.add(h.reason)
			if gained, ok := r.gainedSince(h.at); ok {
				nodes = gained
			} else {
				at.refusals = tally{}
			}
		}
		for _, g := range nodes {
			at.offer(g, e)
		}
	} else {
		r.review(at, e)
	}
	for at.heap.Len() > 0 {
		c := at.heap[0]
		plan, reason := at.query.PlanIn(c.node.GPUs, placement.CPU(c.node.Free.MilliCPU))
		if reason != "" {
			at.refusals.add(reason)
			at.remove(c)
			continue
		}
		place := &gang.Place{Node: c.node.Name, Plan: plan}
		if allow(place) {
			return place, ""
		}
		at.disallowed = true
		at.remove(c) // it costs too much there
	}
	if at.disallowed {
		return nil, ""
	}
	s.hopeless[shape] = &hopeless{at: at.seen, reason: at.refusals.best}
	return nil, at.refusals.best
}

// review looks again at nodes that have changed since they were looked at: others
// took of them, or the round itself has given something up.
func (r *round) review(at *spots, e *pending) {
	for _, name := range r.changes[at.changes:] {
		if c := at.byName[name]; c != nil {
			at.offer(c.node, e)
		}
	}
	at.changes = len(r.changes)
	if end := r.s.gainsEnd(); at.seen != end {
		nodes, ok := r.gainedSince(at.seen)
		if !ok {
			nodes = r.nodes
		}
		at.seen = end
		for _, g := range nodes {
			at.offer(g, e)
		}
	}
}

// gainedSince is state.gainedSince of the round's nodes.
func (r *round) gainedSince(at uint64) ([]*gang.Node, bool) {
	names, ok := r.s.gainedSince(at)
	var list []*gang.Node
	for _, name := range names {
		if g := r.byName[name]; g != nil {
			list = append(list, g)
		}
	}
	return list, ok
}

// offer puts a node where it belongs, if it takes the shape of e.
func (at *spots) offer(g *gang.Node, e *pending) {
	c := at.byName[g.Name]
	score, reason := at.rate(g, e)
	switch {
	case reason != "":
		at.refusals.add(reason)
		if c != nil {
			at.remove(c)
		}
	case c == nil:
		c = &candidate{node: g, score: score}
		at.byName[g.Name] = c
		heap.Push(&at.heap, c)
	default:
		c.score = score
		heap.Fix(&at.heap, c.at)
	}
}

func (at *spots) remove(c *candidate) {
	heap.Remove(&at.heap, c.at)
	delete(at.byName, c.node.Name)
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

// gains is a log of the nodes that got more room. Only its newest part is kept.
type gains struct {
	first uint64
	nodes []string
}

// mostGains bounds the log; who is further behind looks at all nodes.
const mostGains = 16384

func (s *state) logGain(node string) {
	g := &s.gains
	if len(g.nodes) >= mostGains {
		half := len(g.nodes) / 2
		g.nodes = append(g.nodes[:0], g.nodes[half:]...)
		g.first += uint64(half)
	}
	g.nodes = append(g.nodes, node)
}

func (s *state) gainsEnd() uint64 { return s.gains.first + uint64(len(s.gains.nodes)) }

// gainedSince lists nodes once that have gained since. False: that is not known
// any more.
func (s *state) gainedSince(at uint64) ([]string, bool) {
	if at < s.gains.first {
		return nil, false
	}
	seen := map[string]bool{}
	var list []string
	for _, name := range s.gains.nodes[at-s.gains.first:] {
		if !seen[name] {
			seen[name] = true
			list = append(list, name)
		}
	}
	return list, true
}
