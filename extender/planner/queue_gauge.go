package planner

import "github.com/tranche-dev/tranche/pkg/queue"

// QueueState is a queue as State and metrics show it, all below it included.
// Amounts of GPUs are in shares.
type QueueState struct {
	Name      string `json:"name"`
	Parent    string `json:"parent,omitempty"`
	Allocated int64  `json:"allocated"`
	Held      int64  `json:"held"`
	Demand    int64  `json:"demand"`
	Deserved  int64  `json:"deserved"`
	FairShare int64  `json:"fairShare"`
	// Limit is that of the queue and all above it, -1 if there is none.
	Limit int64 `json:"limit"`
	// Pending counts the gangs that wait, single pods included.
	Pending int32 `json:"pending"`
}

// Queues returns what was last known of the queues, sorted by name. It must not
// be changed.
func (p *Planner) Queues() []QueueState {
	if list := p.queueGauges.Load(); list != nil {
		return *list
	}
	return nil
}

// gaugeOf is what there is to show of a queue.
func gaugeOf(q *queueState, basis *reportBasis) QueueState {
	u := &basis.usage
	d := QueueState{
		Name: q.name, Parent: q.view.Parent, Allocated: u.Allocated.Get(queue.GPU), Held: u.Held.Get(queue.GPU), Demand: u.Demand.Get(queue.GPU),
		Deserved: u.Deserved.Get(queue.GPU), FairShare: u.FairShare.Get(queue.GPU), Limit: u.EffectiveLimit.Get(queue.GPU), Pending: basis.backlog,
	}
	if d.Limit == queue.Unlimited {
		d.Limit = -1
	}
	return d
}
