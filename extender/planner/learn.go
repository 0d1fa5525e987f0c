package planner

import (
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/placement"
	"github.com/tranche-dev/tranche/pkg/placement/waste"
)

// This file learns what pods usually ask for and tells policies what nodes have
// free besides GPUs, which the policy least-waste goes by.

const (
	// tablesEvery is how often tables are made anew at most, tablesPart bounds that
	// to a part of the planner's time.
	tablesEvery = time.Second
	tablesPart  = 50
)

// learn counts a pod, once: as it comes, or as it is found after a start.
func (s *state) learn(pod *view.Pod) {
	if !pod.UsesGPU || pod.Problem != "" {
		return
	}
	if _, done := s.learned[pod.UID]; done {
		return
	}
	s.learned[pod.UID] = struct{}{}
	if s.learner.Observe(waste.ShapeOf(pod.Request, pod.MilliCPU, s.perGPU())) {
		s.tablesDue = true
	}
}

// learnt makes what was learned known to the policy, if there is enough that is
// new.
func (s *state) learnt(now time.Time) {
	if !s.tablesDue && s.tabled == s.inventories || now.Before(s.nextTables) || !s.p.Live() {
		return
	}
	s.tablesDue, s.tabled = false, s.inventories
	s.p.setTables(s.learner.Tables(waste.ClusterOf(s.ledger.Snapshot(), func(node string) int64 {
		if n := s.nodes[node]; n != nil && n.view != nil {
			return n.view.Allocatable.MilliCPU
		}
		return 0
	})))
	s.nextTables = now.Add(max(tablesEvery, tablesPart*s.p.opts.Clock.Since(now)))
}

func (p *Planner) setTables(t *waste.Tables) {
	policy := placement.LeastWaste(t)
	p.leastWaste.Store(&policy)
}

// tellRoom has readers and rounds see what a node has free besides GPUs.
func (s *state) tellRoom(name string, n *nodeState) {
	s.moved[name] = true
	if n.view == nil {
		return
	}
	if n.room == nil {
		n.room = &atomic.Int64{}
		s.roomsChanged = true
	}
	n.room.Store(n.view.Allocatable.Sub(n.used).Sub(n.kept).MilliCPU)
}

// ownRoom is what the pod of that UID keeps itself.
func (p *Planner) ownRoom(uid types.UID) ownRoom {
	if held, ok := p.admitted.Load(uid); ok {
		if a, ok := held.(*admitted); ok {
			return ownRoom{a.node, a.kept}
		}
	}
	return ownRoom{}
}

// room is what Snapshot.room says of the node.
func (s *state) room(name string, uid types.UID) placement.Room {
	n := s.nodes[name]
	if n == nil || n.room == nil {
		return placement.Room{}
	}
	free := n.room.Load()
	if mine := s.p.ownRoom(uid); mine.node == name {
		free += mine.milliCPU
	}
	return placement.CPU(free)
}
