package kubelet

import "time"

const (
	firstPause = 100 * time.Millisecond
	maxPause   = 10 * time.Second
)

// pauses double from firstPause to maxPause.
type pauses struct{ pause time.Duration }

func newPauses() *pauses { return &pauses{firstPause} }

func (b *pauses) next() time.Duration {
	p := b.pause
	b.pause = min(2*p, maxPause)
	return p
}
