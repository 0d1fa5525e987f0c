package planner

import "github.com/tranche-dev/tranche/pkg/ledger"

// Snapshot is what readers decide on. It never changes.
type Snapshot struct {
	Ledger *ledger.Snapshot
	// foreign are the nodes whose GPUs belong to another device plugin; the
	// map is shared between snapshots until it changes.
	foreign map[string]bool
}

// publish makes the present state visible to readers.
func (p *Planner) publish(s *state) {
	l := s.ledger.Snapshot()
	if last := p.snapshot.Load(); last.Ledger == l && !s.foreignChanged {
		return
	}
	if s.foreignChanged {
		s.foreignChanged = false
		s.foreignShared = make(map[string]bool, len(s.foreign))
		for name := range s.foreign {
			s.foreignShared[name] = true
		}
	}
	p.snapshot.Store(&Snapshot{Ledger: l, foreign: s.foreignShared})
}

// Snapshot returns the newest state.
func (p *Planner) Snapshot() *Snapshot { return p.snapshot.Load() }
