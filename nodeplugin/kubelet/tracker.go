package kubelet

import (
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/tranche-dev/tranche/nodeplugin/assign"
	"github.com/tranche-dev/tranche/nodeplugin/ledger"
)

// Tracker remembers which pods have finished, as told by events, and judges
// those that left the list of pods without having been seen to finish. It is
// safe for concurrent use.
type Tracker struct {
	root    string // the kubelet's root directory
	clock   clock.PassiveClock
	changed chan struct{}

	mu       sync.Mutex
	live     bool
	finished map[types.UID]time.Time // to when
	missing  map[types.UID]absence
}

// absence is how long a pod with devices has not been in the list of pods.
type absence struct{ since, asked time.Time }

const (
	// remember bounds the memory of finished pods; the ledger has long
	// forgotten them by then.
	remember = 10 * time.Minute
	// lag is how far a list of the API server may be behind the kubelet.
	lag = 5 * time.Second
	// stuckAfter, beyond a pod's grace period, its folder says nothing any
	// more: the kubelet cannot remove it for another reason.
	stuckAfter = time.Minute
)

// NewTracker returns a Tracker for the kubelet with that root directory.
func NewTracker(root string, c clock.PassiveClock) *Tracker {
	return &Tracker{
		root: root, clock: c, changed: make(chan struct{}, 1),
		finished: map[types.UID]time.Time{}, missing: map[types.UID]absence{},
	}
}

var _ assign.Liveness = (*Tracker)(nil)

// Changed receives after one or more events.
func (t *Tracker) Changed() <-chan struct{} { return t.changed }

func (t *Tracker) signal() {
	select {
	case t.changed <- struct{}{}:
	default:
	}
}

func (t *Tracker) connected(yes bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.live = yes
}

// Live says whether the kubelet's events are being received.
func (t *Tracker) Live() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.live
}

// finish notes that no container of the pod runs any more, nor will.
func (t *Tracker) finish(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.clock.Now()
	for old, at := range t.finished {
		if now.Sub(at) > remember {
			delete(t.finished, old)
		}
	}
	t.finished[uid] = now
}

// Lingers says whether containers of a pod that is in no list may still run.
// The kubelet frees the devices of a pod that is deleted by force at once, but
// its containers have their grace period. It says when they are gone by an
// event; if that was missed, by removing the pod's folder.
func (t *Tracker) Lingers(p *ledger.Pod, fromKubelet bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, over := t.finished[p.UID]; over {
		return false
	}
	now := t.clock.Now()
	for uid, a := range t.missing {
		if now.Sub(a.asked) > time.Minute {
			delete(t.missing, uid) // released, or back in the list
		}
	}
	a, known := t.missing[p.UID]
	if !known {
		a.since = now
	}
	a.asked = now
	t.missing[p.UID] = a
	if !fromKubelet && now.Sub(a.since) < lag {
		return true
	}
	if _, err := os.Stat(filepath.Join(t.root, "pods", string(p.UID))); err != nil {
		return false
	}
	return now.Sub(a.since) < time.Duration(p.GraceSeconds)*time.Second+stuckAfter
}
