package planner

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/gang"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/queue"
	"github.com/tranche-dev/tranche/pkg/units"
)

// This file puts GPUs by. Who takes back what it is entitled to, or has waited
// too long for more than is free at any one time, gets a reservation: the places
// that it is to have. Whatever becomes free there is held at once in the name of
// the reservation, before anybody else sees it, and given up for the gang when
// all of it fits. A reservation ends with its time in any case.

// reservation is what is put by for a gang or a single pod.
type reservation struct {
	// id is the want's.
	id    string
	want  *want
	began time.Time
	until time.Time
	// targets are shares by node and GPU; places what they are for.
	targets map[string]map[contract.GPUUUID]units.Shares
	places  []gang.Place
	// victims are the pods that were asked to go and have not gone, nil if the
	// reservation only waits for what becomes free by itself.
	victims map[types.UID]*victim
	// credit is what victims that have gone leave of quota, up to what the want
	// asks: it is charged to the want's queue until that has its places, so that
	// nobody else below the same limit takes it.
	credit queue.Amounts
	// specs is the count of changes of queues when it was last looked at.
	specs uint64
	// standing says that it waits for what becomes free by itself.
	standing bool
	// nodes is the count of nodes' changes when it was last looked at.
	nodes uint64
}

// victim is a pod on its way out.
type victim struct {
	pod    ledger.Pod
	asked  time.Time
	charge queue.Amounts
}

// seat is the name under which a reservation holds what it has of a node. No
// pod's UID contains a space.
func (r *reservation) seat(node string) types.UID {
	return types.UID("reserved for " + r.id + " on " + node)
}

// seats are all of those.
func (r *reservation) seats(into map[types.UID]bool) {
	for node := range r.targets {
		into[r.seat(node)] = true
	}
}

// putBy begins a reservation.
func (s *state) putBy(w *want, places []gang.Place, until, now time.Time) *reservation {
	r := &reservation{
		id: w.id, want: w, began: now, until: until, places: places,
		targets: map[string]map[contract.GPUUUID]units.Shares{}, victims: map[types.UID]*victim{},
	}
	for i, p := range places {
		for gpu, shares := range p.Plan.Charges(w.roles(i)) {
			if r.targets[p.Node] == nil {
				r.targets[p.Node] = map[contract.GPUUUID]units.Shares{}
			}
			r.targets[p.Node][gpu] += shares
		}
	}
	s.reservations[r.id] = r
	s.topUpDue = true
	return r
}

// topUp holds what has become free on the places of reservations.
func (s *state) topUp(now time.Time) {
	if !s.topUpDue || len(s.reservations) == 0 {
		s.topUpDue = false
		return
	}
	s.topUpDue = false
	s.settleBooks()
	for _, r := range s.inOrder() {
		if !now.Before(r.until) || !r.want.alive(s) {
			s.endReservation(r.id, now)
			continue
		}
		for _, node := range slices.Sorted(maps.Keys(r.targets)) {
			if s.topUpNode(r, node) {
				r.want.stir(s)
			}
		}
		for uid, v := range r.victims {
			if !s.there(uid) {
				delete(r.victims, uid)
				s.takeOver(r, v)
				r.want.stir(s)
			}
		}
	}
}

// there says whether a victim still has what it went for. Not all of that is in
// the ledger.
func (s *state) there(uid types.UID) bool {
	if _, ok := s.ledger.Get(uid); ok {
		return true
	}
	c, ok := s.tree.Charged(uid)
	return ok && c.State == queue.Allocated
}

// creditFor is the name under which a reservation's credit is charged.
func creditFor(id string) types.UID { return types.UID("credit of " + id) }

// takeOver charges what a victim had of its quota to the queue that it went for.
func (s *state) takeOver(r *reservation, v *victim) {
	s.settleBooks() // the victim's charge is gone
	sum := r.credit.Add(v.charge)
	room := s.tree.Room(r.want.queue) // others of the queue may have come first
	for i := range sum {
		at := queue.Resource(i)
		sum[i] = min(sum[i], r.want.ask.Get(at))
		if left := room.Get(at); left != queue.Unlimited {
			sum[i] = min(sum[i], r.credit.Get(at)+left)
		}
	}
	r.credit = sum
	s.tree.Charge(creditFor(r.id), r.want.queue, queue.Held, sum)
}

// topUpNode returns whether it got more.
func (s *state) topUpNode(r *reservation, node string) bool {
	n := s.ledger.Node(node)
	seat := r.seat(node)
	record, _ := s.ledger.Get(seat)
	charges := map[contract.GPUUUID]units.Shares{}
	more := false
	gpus := n.GPUs()
	for i := range gpus {
		g := &gpus[i]
		want := r.targets[node][g.Facts.UUID]
		if want == 0 || !g.Facts.Healthy {
			continue
		}
		var has units.Shares
		if record != nil {
			has = record.On(g.Facts.UUID)
		}
		gets := min(want, has+max(g.Free, 0))
		if gets > has {
			more = true
		}
		if gets > 0 {
			charges[g.Facts.UUID] = gets
		}
	}
	if !more || len(charges) == 0 {
		return false
	}
	return s.ledger.Hold(ledger.Claim{Pod: ledger.Pod{UID: seat, Namespace: r.want.namespace, Name: r.want.name}, Node: node, Charges: charges}, r.until) == ""
}

// inOrder lists the reservations, the oldest first.
func (s *state) inOrder() []*reservation {
	return slices.SortedFunc(maps.Values(s.reservations), func(a, b *reservation) int {
		return cmp.Or(a.began.Compare(b.began), cmp.Compare(a.id, b.id))
	})
}

// endReservation gives up what was put by.
func (s *state) endReservation(id string, now time.Time) {
	r := s.reservations[id]
	if r == nil {
		return
	}
	delete(s.reservations, id)
	s.tree.Discharge(creditFor(id))
	for node := range r.targets {
		if _, ok := s.ledger.Release(r.seat(node)); ok {
			s.gain(node, now)
		}
	}
	r.want.stir(s)
	for _, v := range r.victims {
		s.spare(v.pod.UID, v.pod) // who has not gone yet may stay
	}
}

// spoilt says whether what a reservation is for cannot come true: a node was
// cordoned or has gone, or a GPU is out of order.
func (s *state) spoilt(r *reservation) bool {
	pods := []*pending{r.want.pod}
	if r.want.gang != nil {
		pods = pods[:0]
		for _, m := range r.want.members {
			if e := s.pending[m.pod.UID]; e != nil {
				pods = append(pods, e)
			}
		}
	}
	for node, charges := range r.targets {
		if n := s.nodes[node]; n == nil || n.view == nil || slices.ContainsFunc(pods, func(e *pending) bool { return !s.allows(node, e.pod) }) {
			return true
		}
		healthy := 0
		for _, g := range s.ledger.Node(node).GPUs() {
			if _, wanted := charges[g.Facts.UUID]; wanted && g.Facts.Healthy {
				healthy++
			}
		}
		if healthy < len(charges) {
			return true
		}
	}
	return false
}

// tendReservations sees to the victims: budgets may keep some for long, then
// others must do.
func (s *state) tendReservations(now time.Time) {
	for id, r := range s.reservations {
		if !now.Before(r.until) || !r.want.alive(s) || r.specs != s.specs && s.tree.Check(r.want.queue, nil) != nil {
			s.endReservation(id, now)
			continue
		}
		r.specs = s.specs
		if r.nodes != s.inventories && s.spoilt(r) {
			s.endReservation(id, now)
			r.want.next = now
			continue
		}
		r.nodes = s.inventories
		for uid, v := range r.victims {
			c := s.counted[uid]
			if c == nil || c.pod.Deleting {
				continue
			}
			if now.Sub(v.asked) >= stubbornAfter {
				s.leaveAlone(uid, now)
				s.endReservation(id, now)
				r.want.next = now
				break
			}
		}
	}
}

const (
	// stubbornAfter is how long the API server may take to let a pod go before
	// others must do. Disruption budgets are noticed sooner.
	stubbornAfter = 20 * time.Second
	// goneWithin is what the end of a pod may take beyond its grace period.
	goneWithin = 30 * time.Second
)

// inFlight counts the victims that have not gone.
func (s *state) inFlight() int {
	n := 0
	for _, r := range s.reservations {
		n += len(r.victims)
	}
	return n
}
