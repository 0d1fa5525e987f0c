package planner

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/ledger"
)

// State is what GET /v1/state shows.
type State struct {
	// Dump has the nodes with their GPUs, and who is charged for them.
	ledger.Dump
	// ForeignNodes have GPUs under another device plugin.
	ForeignNodes []string `json:"foreignNodes"`
	// BrokenNodes have an inventory that cannot be read.
	BrokenNodes []BrokenNode `json:"brokenNodes"`
	// Waiting are the refused pods, the oldest first.
	Waiting []WaitingPod `json:"waiting"`
}

// BrokenNode is a node and what is wrong with its inventory.
type BrokenNode struct {
	Name    string `json:"name"`
	Problem string `json:"problem"`
}

// WaitingPod is a pod that no node takes.
type WaitingPod struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	// Reason is one word, Message the sentence of the pod's event.
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
	Since   time.Time `json:"since"`
	// Woken says that there is room and the scheduler has been told.
	Woken bool `json:"woken"`
}

// State returns the present state. The owner is asked only for what readers do
// not see in the snapshot; the big part is made by the caller.
func (p *Planner) State(ctx context.Context) (State, error) {
	state, err := ask(ctx, p, func(_ context.Context, s *state, _ time.Time) State {
		d := State{ForeignNodes: slices.Sorted(maps.Keys(s.foreign)), BrokenNodes: []BrokenNode{}, Waiting: []WaitingPod{}}
		for name, problem := range s.broken {
			d.BrokenNodes = append(d.BrokenNodes, BrokenNode{name, problem})
		}
		for _, e := range s.waitingPods() {
			w := WaitingPod{
				Namespace: e.pod.Namespace, Name: e.pod.Name, UID: e.pod.UID,
				Reason: Label(e.reason), Message: e.reported, Since: e.since.UTC(), Woken: !e.woken.IsZero(),
			}
			d.Waiting = append(d.Waiting, w)
		}
		return d
	})
	if err != nil {
		return State{}, err
	}
	if state.ForeignNodes == nil {
		state.ForeignNodes = []string{}
	}
	slices.SortFunc(state.BrokenNodes, func(a, b BrokenNode) int { return strings.Compare(a.Name, b.Name) })
	state.Dump = p.snapshot.Load().Ledger.Dump()
	return state, nil
}
