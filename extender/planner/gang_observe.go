package planner

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/gang"
)

// ObserveUsage tells what a bound pod, with or without GPUs, takes of its node.
func (p *Planner) ObserveUsage(ctx context.Context, usage *view.Usage) {
	p.event(ctx, func(_ logr.Logger, s *state, _ time.Time) { s.observeUsage(usage.UID, usage) })
}

// ForgetUsage tells that a pod takes nothing any more.
func (p *Planner) ForgetUsage(ctx context.Context, uid types.UID) {
	p.event(ctx, func(_ logr.Logger, s *state, _ time.Time) { s.observeUsage(uid, nil) })
}

// ObserveGang tells of a Gang as the API server shows it.
func (p *Planner) ObserveGang(ctx context.Context, g *view.Gang) {
	p.event(ctx, func(_ logr.Logger, s *state, _ time.Time) { s.observeGang(g) })
}

// ForgetGang tells that a Gang is gone.
func (p *Planner) ForgetGang(ctx context.Context, namespace, name string) {
	p.event(ctx, func(_ logr.Logger, s *state, _ time.Time) { s.forgetGang(GangKey{namespace, name}) })
}

// ObserveGroup tells of a PodGroup as the API server shows it.
func (p *Planner) ObserveGroup(ctx context.Context, g *view.Group) {
	p.event(ctx, func(_ logr.Logger, s *state, _ time.Time) { s.observeGroup(g) })
}

// ForgetGroup tells that a PodGroup is gone.
func (p *Planner) ForgetGroup(ctx context.Context, namespace, name string) {
	p.event(ctx, func(_ logr.Logger, s *state, _ time.Time) { s.forgetGroup(GangKey{namespace, name}) })
}

// nodeState is what the planner knows of a node besides its GPUs.
type nodeState struct {
	// view is nil for a node of which only pods have been seen.
	view *view.Node
	// used is what bound pods request, kept what places of members keep.
	used, kept gang.Resources
	// room is what readers see of it, nil before there is a view.
	room *atomic.Int64
}

func (s *state) nodeOf(name string) *nodeState {
	n := s.nodes[name]
	if n == nil {
		n = &nodeState{}
		s.nodes[name] = n
	}
	return n
}

// forgetNode drops a node that is gone, unless pods still count on it.
func (s *state) forgetNode(name string) {
	n := s.nodes[name]
	if n == nil {
		return
	}
	n.view = nil
	s.nodeSet++
	n.room = nil
	s.roomsChanged = true
	if n.used.Equal(gang.Resources{}) && n.kept.Equal(gang.Resources{}) {
		delete(s.nodes, name)
		delete(s.moved, name)
	}
}

func (s *state) observeUsage(uid types.UID, after *view.Usage) {
	before := s.usage[uid]
	if before != nil && after != nil && before.Node == after.Node && before.Needs.Equal(after.Needs) {
		return // a container has started, say: nobody has more room for that
	}
	if before != nil {
		n := s.nodeOf(before.Node)
		n.used = n.used.Sub(before.Needs)
		s.tellRoom(before.Node, n)
		delete(s.usage, uid)
		s.capacity++
		s.gains.add(before.Node)
		if n.view == nil {
			s.forgetNode(before.Node)
		}
	}
	if after != nil {
		n := s.nodeOf(after.Node)
		n.used = n.used.Add(after.Needs)
		s.tellRoom(after.Node, n)
		s.usage[uid] = after
	}
}

// stirGang has the gang of a pod looked at.
func (s *state) stirGang(uid types.UID) {
	if m := s.members[uid]; m != nil {
		m.gang.dirty, s.gangsDirty = true, true
	}
}
