package planner

import (
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/queue"
	"github.com/tranche-dev/tranche/pkg/units"
)

// counted is a pod that is counted in a queue.
type counted struct {
	pod   *view.Pod
	queue string
	// ask is what it will be charged at least: what memory on a GPU comes to in
	// shares is known when the GPU is.
	ask queue.Amounts
	// admitted says that it was handed to the scheduler without a hold, handed
	// when; lapsed that the scheduler has not found a node for it for so long that
	// it does not count as held any more.
	admitted bool
	handed   time.Time
	lapsed   bool
}

// count notes in which queue a pod is counted, and what it asks for.
func (s *state) count(pod *view.Pod) {
	if !s.p.opts.Queues {
		return
	}
	name := s.queueFor(pod)
	c := s.counted[pod.UID]
	if name == "" {
		if c != nil {
			s.uncount(pod.UID)
		}
		if pod.Node != "" && pod.Queue != "" {
			s.outside[pod.UID] = pod
		}
		return
	}
	delete(s.outside, pod.UID)
	if c != nil && c.queue != name {
		if r, ok := s.ledger.Get(pod.UID); pod.Node != "" || ok && r.State == ledger.Allocated {
			name = c.queue // it stays where it was admitted, whatever is written now
		} else {
			if !s.vacant[pod.UID] {
				now := s.p.opts.Clock.Now()
				if m := s.members[pod.UID]; m != nil {
					s.unplace(m, now)
				}
				s.release(pod.UID, now) // the other queue is asked first
			}
			s.uncount(pod.UID)
			c = nil
		}
	}
	if c == nil {
		c = &counted{queue: name}
		s.counted[pod.UID] = c
		s.queueOf(name).pods++
		s.tell()
	}
	if c.pod == nil || c.pod.MilliCPU != pod.MilliCPU || c.pod.Memory != pod.Memory || c.pod.Node == "" {
		c.ask = s.askOf(pod)
	}
	c.pod = pod
	if _, known := s.leaving[pod.UID]; pod.Deleting && pod.Node != "" && !known {
		s.leaving[pod.UID] = s.p.opts.Clock.Now().Add(pod.Grace + goneWithin)
	}
}

// uncount ends that. What is held in the place of the pod stays charged.
func (s *state) uncount(uid types.UID) {
	c := s.counted[uid]
	if c == nil || s.vacant[uid] {
		return
	}
	delete(s.counted, uid)
	delete(s.leaving, uid)
	s.book(uid)
	if q := s.queues[c.queue]; q != nil {
		q.pods--
		s.tell() // it may vanish now, though nothing was charged for the pod
		s.dropQueue(q)
	}
}

// queueFor is the queue that a pod is counted in, empty if none: the one that the
// object of its gang names, if people made that, else its own. A pod without GPUs
// is counted only if its namespace has opted in.
func (s *state) queueFor(pod *view.Pod) string {
	if pod.Member != nil && s.p.opts.Gangs {
		if g := s.gangs[GangKey{pod.Namespace, pod.Member.Gang}]; g != nil && g.object != nil && !g.object.Managed && g.object.Queue != "" {
			return g.object.Queue
		}
	}
	switch {
	case pod.UsesGPU && pod.Queue == "":
		return s.p.opts.DefaultQueue
	case pod.UsesGPU, pod.Gated, s.injected(pod.Namespace):
		return pod.Queue // only the webhook puts our gate on a pod
	default:
		return ""
	}
}

// askOf is what a pod will be charged at least. It is the charge of a plan on
// GPUs of no particular name.
func (s *state) askOf(pod *view.Pod) queue.Amounts {
	list := queue.Amounts{0, pod.MilliCPU, pod.Memory}
	if !pod.UsesGPU || pod.Problem != "" {
		return list
	}
	plan := contract.Plan{Containers: map[string][]contract.Grant{}}
	for _, d := range pod.Request.Demands {
		// Memory takes the fewest shares on the largest GPU.
		shares := d.SharesOn(max(s.largest, d.Memory, 1), s.perGPU())
		for i := range min(d.Count, mostGPUsOfPod) {
			plan.Containers[d.Name] = append(plan.Containers[d.Name], contract.Grant{GPU: contract.GPUUUID(strconv.Itoa(i)), Shares: shares})
		}
	}
	for _, shares := range plan.Charges(pod.Roles) {
		list[queue.GPU] += int64(shares)
	}
	if len(pod.Request.Models) == 1 {
		list = s.withModel(list, pod.Request.Models[0], units.Shares(list[queue.GPU]))
	}
	return list
}

// mostGPUsOfPod bounds what is counted for a pod that no node can take.
const mostGPUsOfPod = 1024

func (s *state) withModel(list queue.Amounts, model string, shares units.Shares) queue.Amounts {
	r := s.tree.Model(model)
	for int(r) >= len(list) {
		list = append(list, 0)
	}
	list[r] += int64(shares)
	return list
}

// costOf is what charges on a node cost a queue, with the pod's cpu and memory.
// Of a GPU that is not in the inventory any more the model is not known.
func (s *state) costOf(pod *view.Pod, node string, charges []ledger.Charge) queue.Amounts {
	list := queue.Amounts{0, pod.MilliCPU, pod.Memory}
	gpus := s.ledger.Node(node).GPUs()
	for _, c := range charges {
		list[queue.GPU] += int64(c.Shares)
		for i := range gpus {
			if gpus[i].Facts.UUID == c.GPU {
				list = s.withModel(list, gpus[i].Facts.Model, c.Shares)
			}
		}
	}
	return list
}

// planCost is what a plan costs a queue.
func (s *state) planCost(pod *view.Pod, plan contract.Plan, node string) queue.Amounts {
	charge := plan.Charges(pod.Roles)
	list := make([]ledger.Charge, 0, len(charge))
	for gpu, shares := range charge {
		list = append(list, ledger.Charge{GPU: gpu, Shares: shares})
	}
	return s.costOf(pod, node, list)
}

// settleBooks brings the tree in line with the ledger.
func (s *state) settleBooks() {
	if s.p.opts.Queues {
		s.ledger.Moved(s.book)
	}
}

// book charges a pod to its queue for what it is at now. Whoever waits no more
// leaves its line.
func (s *state) book(uid types.UID) {
	s.enter(uid)
	if e := s.pending[uid]; e != nil {
		s.relist(e)
	}
}

// enter does so in the tree.
func (s *state) enter(uid types.UID) {
	c := s.counted[uid]
	before, had := s.tree.Charged(uid)
	if c == nil {
		if had {
			s.tree.Discharge(uid)
			s.freed(before)
		}
		return
	}
	state, amounts := queue.Pending, c.ask
	switch r, ok := s.ledger.Get(uid); {
	case ok:
		state = queue.Held
		if r.State == ledger.Allocated {
			state = queue.Allocated
		}
		amounts = s.costOf(c.pod, r.Node, r.Charges)
	case c.pod.Node != "":
		state = queue.Allocated // on GPUs of another plugin, or on none
	case c.pod.Ended || c.pod.Deleting || s.idle(c):
		s.tree.Discharge(uid)
		if had {
			s.freed(before)
		}
		return
	case c.away():
		state = queue.Held
	}
	if had && before.Queue == c.queue && before.State == state && before.Amounts.Equal(amounts) {
		return
	}
	s.tree.Charge(uid, c.queue, state, amounts)
	s.tell()
	if had && before.State != queue.Pending && state == queue.Pending {
		s.freed(before)
	}
}

// freed notes that a queue has more room than before.
func (s *state) freed(before queue.Charge) {
	s.tell()
	if before.State != queue.Pending {
		s.capacity++
		s.gangsDirty, s.topUpDue = true, true
	}
}

// goesSoon says whether a pod that is being deleted is about to go: one that takes
// its time, or has had it, may stay for ever.
func (s *state) goesSoon(until, now time.Time) bool {
	const soon = 2 * time.Minute
	return now.Before(until) && until.Sub(now) <= soon
}

// idle says that a pod waits for something else than its queue: it is no demand.
func (s *state) idle(c *counted) bool {
	if len(c.pod.ForeignGates) > 0 || c.pod.Problem != "" || s.forbidden(s.queues[c.queue], c.pod.Namespace) {
		return true
	}
	if m := s.members[c.pod.UID]; m != nil && s.p.opts.Gangs {
		return m.gang.asleep
	}
	e := s.pending[c.pod.UID]
	return e != nil && e.futile
}

// away says that a pod is with the scheduler and holds nothing in the ledger.
func (c *counted) away() bool {
	return !c.lapsed && (c.admitted || !c.pod.UsesGPU && c.pod.Member == nil && !c.pod.Gated)
}

// lapseAfter is how long a pod may be with the scheduler, which finds no node for
// it, before others may have its quota.
const lapseAfter = 5 * time.Minute

// strayAfter is how long a pod with GPUs may be with the scheduler and be refused
// everywhere before rounds look for a place for it again.
const strayAfter = 10 * time.Second

// lapse lets go of what is counted for pods that the scheduler cannot place. A
// gate cannot be put back, so one that is placed after all may take its queue
// beyond a limit.
func (s *state) lapse(now time.Time) {
	for uid, c := range s.counted {
		if c.pod.Node != "" || c.lapsed || !c.away() {
			continue
		}
		if c.handed.IsZero() {
			c.handed = now
		}
		if e := s.pending[uid]; e != nil && e.waiting && c.admitted && c.pod.UsesGPU && now.Sub(c.handed) >= strayAfter {
			c.admitted, c.handed = false, time.Time{}
			s.p.admitted.Delete(uid)
			s.book(uid)
			s.enlist(e)
			continue
		}
		if c.pod.Unschedulable && now.Sub(c.handed) >= lapseAfter {
			c.lapsed = true
			s.book(uid)
		}
	}
}
