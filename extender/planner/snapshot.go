package planner

import (
	"sync/atomic"

	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/placement"
)

// Snapshot is what readers decide on. It never changes.
type Snapshot struct {
	Ledger *ledger.Snapshot
	// foreign are the nodes whose GPUs belong to another device plugin; the
	// map is shared between snapshots until it changes.
	foreign map[string]bool
	// rooms are the free processors of the ledger's nodes, in thousandths, by their
	// positions; nil where they are not known. The list is shared until it changes,
	// and they always are as they are now.
	rooms []*atomic.Int64
}

// ownRoom is what a pod keeps of a node itself, which is as good as free to it.
type ownRoom struct {
	node     string
	milliCPU int64
}

// room is what the node at a position has free besides GPUs, as far as policies
// care. What is kept for others than mine does not count as free.
func (s *Snapshot) room(position int, mine ownRoom) placement.Room {
	at := s.rooms[position]
	if at == nil {
		return placement.Room{}
	}
	free := at.Load()
	if mine.node != "" && s.Ledger.At(position).Name() == mine.node {
		free += mine.milliCPU
	}
	return placement.CPU(free)
}

// publish makes the present state visible to readers.
func (p *Planner) publish(s *state) {
	l := s.ledger.Snapshot()
	last := p.snapshot.Load()
	if last.Ledger == l && !s.foreignChanged && !s.roomsChanged {
		return
	}
	if last.Ledger.Set() != l.Set() || s.roomsChanged {
		s.roomsChanged = false
		s.roomsShared = make([]*atomic.Int64, 0, l.Len())
		for v := range l.Nodes() {
			var room *atomic.Int64
			if n := s.nodes[v.Name()]; n != nil {
				room = n.room
			}
			s.roomsShared = append(s.roomsShared, room)
		}
	}
	if s.foreignChanged {
		s.foreignChanged = false
		s.foreignShared = make(map[string]bool, len(s.foreign))
		for name := range s.foreign {
			s.foreignShared[name] = true
		}
	}
	p.snapshot.Store(&Snapshot{Ledger: l, foreign: s.foreignShared, rooms: s.roomsShared})
}

// Snapshot returns the newest state.
func (p *Planner) Snapshot() *Snapshot { return p.snapshot.Load() }
