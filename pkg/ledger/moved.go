package ledger

import "k8s.io/apimachinery/pkg/types"

// Moved calls f for each pod whose claim has come, gone or changed since the
// last call, in no order; the first time, for each that has one. Whoever keeps
// sums beside the ledger, such as those of queues, follows it so. There can be
// one such follower.
func (l *Ledger) Moved(f func(uid types.UID)) {
	if l.moved == nil {
		l.moved = make(map[types.UID]struct{}, len(l.records))
		for uid := range l.records {
			l.moved[uid] = struct{}{}
		}
	}
	for uid := range l.moved {
		f(uid)
	}
	clear(l.moved)
}

// move notes a change for Moved.
func (l *Ledger) move(uid types.UID) {
	if l.moved != nil {
		l.moved[uid] = struct{}{}
	}
}
