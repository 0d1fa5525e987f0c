package planner

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
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
	// Gangs are by namespace and name.
	Gangs []GangState `json:"gangs"`
	// Queues are those that have an object, by name.
	Queues []QueueState `json:"queues"`
}

// GangState is a gang; its counts are those of v1alpha1.GangStatus.
type GangState struct {
	Namespace string             `json:"namespace"`
	Name      string             `json:"name"`
	Phase     v1alpha1.GangPhase `json:"phase"`
	MinCount  int                `json:"minCount"`
	Members   int32              `json:"members"`
	Held      int32              `json:"held"`
	Bound     int32              `json:"bound"`
	Running   int32              `json:"running"`
	// Reason is one word, Message a sentence; empty if it waits for nothing.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
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
		d := State{ForeignNodes: slices.Sorted(maps.Keys(s.foreign)), BrokenNodes: []BrokenNode{}, Waiting: []WaitingPod{}, Gangs: s.gangStates(), Queues: s.p.Queues()}
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
	if state.Queues == nil {
		state.Queues = []QueueState{}
	}
	slices.SortFunc(state.BrokenNodes, func(a, b BrokenNode) int { return strings.Compare(a.Name, b.Name) })
	state.Dump = p.snapshot.Load().Ledger.Dump()
	return state, nil
}

// gangStates lists all gangs.
func (s *state) gangStates() []GangState {
	list := make([]GangState, 0, len(s.gangs))
	for _, g := range s.gangs {
		t := s.stand(g)
		status := s.gangStatus(g, t)
		d := GangState{
			Namespace: g.key.Namespace, Name: g.key.Name, Phase: status.Phase, MinCount: t.minCount,
			Members: status.Members, Held: status.Held, Bound: status.Bound, Running: status.Running,
		}
		if g.why != nil {
			d.Reason, d.Message = g.why.word, g.why.message
		}
		list = append(list, d)
	}
	slices.SortFunc(list, func(a, b GangState) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return list
}
