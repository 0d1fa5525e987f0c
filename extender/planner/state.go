package planner

import (
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	lru "github.com/hashicorp/golang-lru/v2"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/placement"
	"github.com/tranche-dev/tranche/pkg/placement/waste"
	"github.com/tranche-dev/tranche/pkg/queue"
	"github.com/tranche-dev/tranche/pkg/units"
)

// state is what the planner's goroutine owns. Nobody else touches it.
type state struct {
	p      *Planner
	ledger *ledger.Ledger

	// foreign are nodes whose GPUs belong to another device plugin;
	// foreignShared is the copy that readers have.
	foreign, foreignShared map[string]bool
	foreignChanged         bool
	// roomsShared is what readers have of nodes' rooms.
	roomsShared  []*atomic.Int64
	roomsChanged bool
	// broken are nodes whose inventory cannot be read, with the reason.
	broken map[string]string

	// pending are GPU pods that are not bound, as far as anybody told us.
	pending map[types.UID]*pending
	// binding are pods whose Binding is on its way, with their node.
	binding map[types.UID]string
	// unconfirmed are pods whose Binding the API server accepted and of which
	// the watch has not told yet, with the time to ask if it never does.
	unconfirmed map[types.UID]time.Time
	// unwatched are pods of which only calls have told, departed those that have
	// ended or are gone, and since when; see hearsay.go.
	unwatched map[types.UID]doubt
	departed  map[types.UID]time.Time
	// lingering are pods that were deleted by force, with the time until which
	// their containers may run.
	lingering map[types.UID]time.Time
	// unplanned are bound GPU pods without a usable plan, by node; they are
	// looked at again when the node's inventory appears.
	unplanned   map[string]map[types.UID]*unplanned
	unplannedOn map[types.UID]string
	// swaps are what the kubelet says it gave to pods of a node, where the
	// ledger does not follow yet; see adopt.
	swaps map[string]*swap
	// early are pods by node whose kubelet has told what they have before the node's
	// inventory was known.
	early map[string]map[types.UID]*view.Pod

	// preemptors are nominated pods; favourDue says that they may find room.
	preemptors map[types.UID]*preemptor
	favourDue  bool

	// gangs are those with members or an object, members the pods in them.
	gangs   map[GangKey]*gangState
	members map[types.UID]*member
	// vacant are lost members whose shares are held for their successors.
	vacant map[types.UID]bool
	// gangsDirty says that a gang is to be looked at; nextPlan keeps that from
	// taking all of the time.
	gangsDirty bool
	nextPlan   time.Time
	// nodes are all nodes of the cluster, usage what bound pods request of them.
	nodes map[string]*nodeState
	usage map[types.UID]*view.Usage
	// board is what rounds know of nodes, moved those of which they must look again
	// at what is free. nodeSet counts changes of what nodes there are and of what is
	// theirs.
	board   board
	moved   map[string]bool
	nodeSet uint64
	// capacity grows whenever a gang that found no place might find one.
	capacity uint64

	// tree has the queues' sums, queues what else there is to them.
	tree       *queue.Tree
	queues     map[string]*queueState
	namespaces map[string]*view.Namespace
	counted    map[types.UID]*counted
	// outside are bound pods without GPUs that name a queue and are not counted,
	// since their namespaces have not opted in; drainees those that were asked to go
	// for a queue's stopPolicy.
	outside  map[types.UID]*view.Pod
	drainees map[types.UID]ledger.Pod
	// largest is the memory of the largest GPU.
	largest units.MiB
	// divided is the count of nodes' changes for which divideCluster was called;
	// inventories is that count now.
	divided, inventories uint64
	// partial are the nodes that count with what pods have of them, since they take
	// no more, or some of their GPUs do not; divideDue says that this has changed.
	partial   map[string]bool
	divideDue bool
	// queueTold says that queues are to be reported, nextReport not before when.
	queueTold  bool
	nextReport time.Time
	// gatesStale says that what Filter knows of queues is to be made anew.
	gatesStale, gatesDirty bool
	nextGates              time.Time
	// newcomers says that all single pods are to be served again, though there is
	// no more room; served is the capacity at which a round served all.
	newcomers bool
	served    uint64
	// hopeless are shapes of single pods that fitted nowhere.
	hopeless map[spotKey]*hopeless
	// shapes numbers the shapes of single pods that have been served.
	shapes    map[string]int
	lastShape int
	// gains logs the nodes that got more room, spots are kept from round to round.
	gains journal[string]
	spots *lru.Cache[spotKey, *spots]
	// wanting are those near the heads of their queues for which there is no room.
	wanting map[string]*want
	// short are those of them that a limit keeps out while their queue is entitled
	// to what they ask below it, the oldest of each queue with such a limit.
	short map[string]*want
	// reservations are by the want's id; topUpDue says that some may get more.
	reservations map[string]*reservation
	topUpDue     bool
	// stubborn are pods that could not be evicted, and until when they are left
	// alone.
	stubborn map[types.UID]*effort
	// efforts are by the want's id, as long as it has not used the room made.
	efforts   map[string]*effort
	nextWants time.Time
	lastWants time.Time
	// expelled are pods that were asked to go for others: nothing is kept for
	// their successors.
	expelled map[types.UID]bool
	// leaving are bound pods that are being deleted, and when they should be gone.
	leaving map[types.UID]time.Time
	// specs counts changes of queues.
	specs uint64
	// untold are single pods whose reason is not told yet.
	untold map[types.UID]*pending

	// later are answers to give when readers can see what led to them.
	later []func()

	// learner counts what pods ask for, learned are those that it has counted.
	// tablesDue says that they are worth being made anew, nextTables not before
	// when; tabled is the count of nodes' changes that the last know of.
	learner    *waste.Learner
	learned    map[types.UID]struct{}
	tablesDue  bool
	nextTables time.Time
	tabled     uint64

	// recent are nodes that got more room a moment ago, for refusals that are
	// based on an older snapshot.
	recent map[string]gain
	// woken are the pending pods that were woken and have not answered.
	woken map[types.UID]*pending
	// nextQuiet is when the first of those that are left alone may be served
	// again, or a node that was left out for one be tried, zero if there are none.
	nextQuiet time.Time
	// nextSweep is when housekeeping is due.
	nextSweep time.Time
	// verdicts are what nowhere found for each shape at the ledger's version
	// verdictsAt.
	verdicts   map[string]Reason
	verdictsAt uint64
	// waitingChanged says that the gauges of waiting pods are out of date.
	waitingChanged bool
}

// pending is a GPU pod that is not bound.
type pending struct {
	pod *view.Pod
	// shape is equal for pods that fit in the same places.
	shape string

	// waiting says that the pod was refused everywhere, for reason, since.
	waiting bool
	reason  Reason
	since   time.Time
	// reported is the last event's text, reportedAt its time: one event per
	// change, and again before the API server forgets it.
	reported   string
	reportedAt time.Time

	// why is what a pod that planRound serves waits for, told the kind of it that
	// its last event was about.
	why       *reason
	told      string
	toldShape int
	// shapeID is equal for pods that fit in the same places and wait for the same
	// reasons, 0 before it is asked for.
	shapeID int
	// line is where it waits in the queue lane, nil if it does not; slot is the
	// line whose slice has it.
	line, slot *line
	lane       string
	// futile says that no wait would help; exposed that its gate was lifted only
	// to be seen.
	futile, exposed bool
	// nominated is the node that a round has nominated it to, empty if none has.
	nominated string
	// given is the node where a round has held GPUs for it, empty if none has or
	// the hold is over.
	given string
	// avoid are nodes that the scheduler has refused where they were given, avoided
	// those that are left out now.
	avoid   map[string]*effort
	avoided map[string]bool
	// kept is what its hold keeps of a node besides GPUs, nil if nothing.
	kept *kept
	// item is its place in the lane of a round.
	item item

	// woken is when the pod was last made to be tried again, zero if that has
	// been answered; wokenFor is the node with room for it. After wake-ups in
	// vain it is left alone until quiet.
	woken    time.Time
	wokenFor string
	vain     int
	quiet    time.Time
}

func newState(p *Planner) *state {
	s := &state{
		p: p, ledger: ledger.New(),
		foreign: map[string]bool{}, broken: map[string]string{},
		pending: map[types.UID]*pending{}, binding: map[types.UID]string{}, unconfirmed: map[types.UID]time.Time{}, unwatched: map[types.UID]doubt{}, departed: map[types.UID]time.Time{}, lingering: map[types.UID]time.Time{},
		unplanned: map[string]map[types.UID]*unplanned{}, unplannedOn: map[types.UID]string{}, swaps: map[string]*swap{}, early: map[string]map[types.UID]*view.Pod{},
		preemptors: map[types.UID]*preemptor{},
		gangs:      map[GangKey]*gangState{}, members: map[types.UID]*member{}, vacant: map[types.UID]bool{},
		nodes: map[string]*nodeState{}, usage: map[types.UID]*view.Usage{}, moved: map[string]bool{},
		partial: map[string]bool{}, tree: queue.New(), queues: map[string]*queueState{}, namespaces: map[string]*view.Namespace{}, counted: map[types.UID]*counted{}, outside: map[types.UID]*view.Pod{}, drainees: map[types.UID]ledger.Pod{},
		hopeless: map[spotKey]*hopeless{}, shapes: map[string]int{}, untold: map[types.UID]*pending{}, leaving: map[types.UID]time.Time{}, expelled: map[types.UID]bool{},
		wanting: map[string]*want{}, reservations: map[string]*reservation{}, stubborn: map[types.UID]*effort{}, efforts: map[string]*effort{}, short: map[string]*want{},
		recent: map[string]gain{}, woken: map[types.UID]*pending{},
		learner: waste.NewLearner(), learned: map[types.UID]struct{}{}, spots: p.spots,
	}
	if p.opts.Queues {
		s.implyDefault()
	}
	return s
}

// flush gives the answers that were put off.
func (s *state) flush() {
	for _, answer := range s.later {
		answer()
	}
	s.later = s.later[:0]
}

// sweepEvery is how often what was missed is looked for.
const sweepEvery = 10 * time.Second

// tick does what time alone asks for.
func (s *state) tick(log logr.Logger, now time.Time) {
	for _, r := range s.ledger.Expire(now) {
		s.p.metrics.HoldReleases.WithLabelValues("expired").Inc()
		log.V(2).Info("Hold expired", "pod", klog.KRef(r.Pod.Namespace, r.Pod.Name), "node", r.Node)
		s.endVacancy(r.Pod.UID)
		if m := s.members[r.Pod.UID]; m != nil {
			s.clearPlace(m)
		}
		s.p.admitted.Delete(r.Pod.UID)
		if e := s.pending[r.Pod.UID]; e != nil {
			s.unkeepFor(e)
			e.given = ""
			s.withdraw(e) // it did not come
			s.enlist(e)
		}
		s.gain(r.Node, now)
	}
	s.settleSwaps(log, now)
	s.settleLingering(now)
	s.settleWoken(now)
	s.tellUntold(now)
	s.tendReservations(now)
	s.drain(log, now)
	if len(s.wanting) > 0 {
		for _, w := range s.wanting {
			if w.next.After(s.lastWants) && !now.Before(w.next) {
				s.nextWants = now
			}
		}
		s.lastWants = now
		if !now.Before(s.nextWants) {
			s.nextWants = now.Add(wantsEvery)
			s.gangsDirty = true
		}
	}
	if !now.Before(s.nextSweep) {
		s.nextSweep = now.Add(sweepEvery)
		s.sweep(now)
	}
	if s.waitingChanged {
		s.waitingChanged = false
		s.gaugeWaiting()
	}
}

// wantsEvery is how often those for which there is no room are looked at, when
// nothing but time has changed.
const wantsEvery = time.Second

// hold plans pod on node and holds it there. The reason is empty if it does.
func (s *state) hold(pod *view.Pod, node string, now time.Time) Reason {
	s.topUp(now) // what has just become free may be kept for somebody
	// It is cut out of the names of all nodes that a request had, which would be
	// kept with it.
	node = strings.Clone(node)
	if r, ok := s.ledger.Get(pod.UID); ok && r.State == ledger.Allocated {
		if r.Node == node {
			return ""
		}
		return Decided
	}
	if old := s.hear(pod, now); old != "" {
		return old
	}
	plan, reason := s.p.query(pod).PlanIn(s.ledger.Node(node), s.room(node, pod.UID))
	if reason != "" {
		return reason
	}
	if why := s.mayHold(pod, plan, node); why != nil {
		return QueueWaits
	}
	before, held := s.ledger.Get(pod.UID)
	refusal := s.ledger.Hold(ledger.Claim{Pod: ref(pod), Node: node, Charges: plan.Charges(pod.Roles), Plan: plan}, now.Add(s.p.opts.HoldTimeout))
	if refusal != "" {
		// The plan was made from this very ledger, so this is a contradiction
		// between placement and ledger; the ledger is the careful one.
		return placement.NotTogether
	}
	if held {
		s.moveFrom(before, now)
	}
	e := s.touch(pod)
	if e.kept != nil && e.kept.node != node {
		s.keepFor(e, node, pod.Needs)
	}
	s.showAdmitted(e, node)
	e.settle(s, node, now)
	return ""
}

// release ends a pod's claim, if it has one.
func (s *state) release(uid types.UID, now time.Time) {
	delete(s.unconfirmed, uid)
	s.p.decided.Delete(uid)
	s.p.admitted.Delete(uid)
	if e := s.pending[uid]; e != nil {
		s.unkeepFor(e)
		e.given = ""
	}
	if m := s.members[uid]; m != nil {
		s.clearPlace(m)
	}
	if s.vacant[uid] {
		return // what it had is held for its successor
	}
	if r, ok := s.ledger.Release(uid); ok {
		s.gain(r.Node, now)
		s.forgetSwap(r.Node, uid)
		if e := s.pending[uid]; e != nil {
			s.enlist(e) // it may have been refused while it held that
		}
	}
}

// touch returns the entry of a pod that somebody spoke of.
func (s *state) touch(pod *view.Pod) *pending {
	e := s.pending[pod.UID]
	if e == nil {
		e = &pending{}
		s.pending[pod.UID] = e
		e.show(pod)
	}
	return e
}

// show puts a newer view of the pod in place.
func (e *pending) show(pod *view.Pod) {
	e.pod = pod
	e.shape, e.shapeID = fmt.Sprint(pod.Request), 0
}

// charges is what a plan costs.
func charges(plan contract.Plan, pod *view.Pod) ledger.Claim {
	return ledger.Claim{Pod: ref(pod), Node: pod.Node, Charges: plan.Charges(pod.Roles)}
}
