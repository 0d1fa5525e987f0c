package ledger

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

// Ledger is the state machine. The zero value is not usable; see New. It is
// not safe for concurrent use.
type Ledger struct {
	version uint64
	nodes   map[string]*node
	records map[types.UID]*Record
	holds   map[types.UID]*Record
	classes map[Class]*Class

	// last is the newest snapshot. changed are the nodes that differ from it;
	// setChanged says that nodes came or went.
	last       *Snapshot
	changed    map[string]*node
	setChanged bool

	// moved are the pods of which something has changed since Moved, nil before
	// that is called for the first time.
	moved map[types.UID]struct{}
}

// New returns an empty ledger.
func New() *Ledger {
	return &Ledger{
		nodes:   map[string]*node{},
		records: map[types.UID]*Record{},
		holds:   map[types.UID]*Record{},
		classes: map[Class]*Class{},
		last:    &Snapshot{},
		changed: map[string]*node{},
	}
}

// Version grows with every change and with nothing else.
func (l *Ledger) Version() uint64 { return l.version }

// SetNode puts a node's inventory in place of what was known of it. It reports
// whether that changed anything. The ledger keeps inv's slices, which must not
// be changed afterwards.
func (l *Ledger) SetNode(name string, inv contract.Inventory) bool {
	n := l.node(name)
	if n.known && n.sameInventory(inv) {
		return false
	}
	n.setInventory(inv, l.class)
	l.touch(n)
	return true
}

// RemoveNode forgets a node's inventory: nothing can be held there any more.
// Charges stay until their pods are released, and count again if the node
// returns. It reports whether that changed anything.
func (l *Ledger) RemoveNode(name string) bool {
	n := l.nodes[name]
	if n == nil || !n.known {
		return false
	}
	n.forgetInventory()
	l.touch(n)
	l.dropIfEmpty(n)
	return true
}

// Hold reserves c until expires, in place of the pod's earlier hold, whose
// shares may be used again by the new one. If it refuses, nothing changes: an
// earlier hold stays. Holding again what is held prolongs it.
func (l *Ledger) Hold(c Claim, expires time.Time) Refusal {
	before := l.records[c.Pod.UID]
	if before != nil && before.State == Allocated {
		return PodAllocated
	}
	r := &Record{Pod: c.Pod, Node: c.Node, State: Held, Plan: c.Plan, Expires: expires}
	r.Planned = l.charges(c.Node, c.Charges)
	r.Charges = r.Planned
	if c.Pod.UID == "" || c.Node == "" || len(r.Charges) != len(c.Charges) {
		return ClaimInvalid
	}
	if len(r.Charges) > 0 {
		n := l.nodes[c.Node]
		if n == nil || !n.known {
			return NodeUnknown
		}
		if refusal := n.admits(r, before); refusal != "" {
			return refusal
		}
	}
	l.put(before, r)
	return ""
}

// Commit turns the pod's hold into an allocation, so that it cannot expire
// while its Binding is on the way, and returns the record, whose Plan is the
// one to write. False: the pod has no hold.
func (l *Ledger) Commit(uid types.UID) (*Record, bool) {
	before := l.holds[uid]
	if before == nil {
		return nil, false
	}
	r := *before
	r.State, r.Expires = Allocated, time.Time{}
	l.put(before, &r)
	return &r, true
}

// Rollback turns a committed claim into a hold again, after its Binding was
// refused for certain. False: the pod has no claim that Commit made and neither
// Allocate nor Adopt has confirmed.
func (l *Ledger) Rollback(uid types.UID, expires time.Time) bool {
	before := l.records[uid]
	if before == nil || before.State != Allocated || !before.inFlight() {
		return false
	}
	r := *before
	r.State, r.Expires = Held, expires
	l.put(before, &r)
	return true
}

// Allocate records that c's pod is bound to c.Node with c's charges, whether
// or not they fit and whatever was claimed for it before. It reports whether
// that changed anything but the confirmation of a Commit. What Adopt said of the pod on the same
// node stays in force, so events may repeat in any order. A claim without UID
// is ignored.
func (l *Ledger) Allocate(c Claim) bool {
	if c.Pod.UID == "" {
		return false
	}
	before := l.records[c.Pod.UID]
	r := &Record{Pod: c.Pod, Node: c.Node, State: Allocated, Planned: l.charges(c.Node, c.Charges)}
	r.Charges = r.Planned
	if before != nil && before.State == Allocated && before.Node == c.Node && before.Adopted() {
		r.Charges = before.Charges
	}
	if before != nil && before.State == Allocated && before.sameCharge(r) {
		if before.inFlight() || !slices.Equal(before.Planned, r.Planned) {
			l.replaceQuietly(before, r)
		}
		return false
	}
	l.put(before, r)
	return true
}

// Adopt records that the kubelet gave an allocated pod these shares, whatever
// was planned. It reports whether that changed what the pod is charged. Pods
// that are not allocated, and empty charges, are ignored: call Allocate first.
func (l *Ledger) Adopt(uid types.UID, charges map[contract.GPUUUID]units.Shares) bool {
	before := l.records[uid]
	if before == nil || before.State != Allocated {
		return false
	}
	given := l.charges(before.Node, charges)
	if len(given) == 0 || slices.Equal(before.Charges, given) {
		return false
	}
	r := *before
	r.Charges, r.Plan = given, contract.Plan{} // only a bound pod gets GPUs: that confirms it
	l.put(before, &r)
	return true
}

// Release ends the pod's claim, held or allocated, and returns what it was.
// False: it had none.
func (l *Ledger) Release(uid types.UID) (*Record, bool) {
	before := l.records[uid]
	if before == nil {
		return nil, false
	}
	l.put(before, nil)
	return before, true
}

// Expire releases all holds that end at or before now and returns them, the
// oldest first, equally old ones by UID.
func (l *Ledger) Expire(now time.Time) []*Record {
	var expired []*Record
	for _, r := range l.holds {
		if !r.Expires.After(now) {
			expired = append(expired, r)
		}
	}
	slices.SortFunc(expired, func(a, b *Record) int {
		return cmp.Or(a.Expires.Compare(b.Expires), cmp.Compare(a.Pod.UID, b.Pod.UID))
	})
	for _, r := range expired {
		l.put(r, nil)
	}
	return expired
}

// NextExpiry returns when the next hold ends; false if there is none.
func (l *Ledger) NextExpiry() (time.Time, bool) {
	var next time.Time
	found := false
	for _, r := range l.holds {
		if !found || r.Expires.Before(next) {
			next, found = r.Expires, true
		}
	}
	return next, found
}

// Get returns the pod's claim.
func (l *Ledger) Get(uid types.UID) (*Record, bool) {
	r := l.records[uid]
	return r, r != nil
}

// Len returns the number of claims, held and allocated.
func (l *Ledger) Len() int { return len(l.records) }

// Records returns all claims, sorted by UID.
func (l *Ledger) Records() []*Record {
	all := make([]*Record, 0, len(l.records))
	for _, r := range l.records {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b *Record) int { return cmp.Compare(a.Pod.UID, b.Pod.UID) })
	return all
}

// put replaces one record of a pod by another; either may be nil.
func (l *Ledger) put(before, after *Record) {
	if before != nil {
		l.move(before.Pod.UID)
		n := l.node(before.Node)
		n.remove(before)
		delete(l.records, before.Pod.UID)
		delete(l.holds, before.Pod.UID)
		l.touch(n)
	}
	if after != nil {
		l.move(after.Pod.UID)
		n := l.node(after.Node)
		n.add(after)
		l.records[after.Pod.UID] = after
		if after.State == Held {
			l.holds[after.Pod.UID] = after
		}
		l.touch(n)
	}
	if before != nil && (after == nil || after.Node != before.Node) {
		l.dropIfEmpty(l.nodes[before.Node])
	}
}

// charges makes a record's charges. They use the inventory's own UUID strings
// where they can, so that a hundred thousand pods do not each keep a copy.
func (l *Ledger) charges(name string, charges map[contract.GPUUUID]units.Shares) []Charge {
	sorted := sortedCharges(charges)
	if n := l.nodes[name]; n != nil {
		for i := range sorted {
			if g := n.gpu(sorted[i].GPU); g != nil {
				sorted[i].GPU = g.facts.UUID
			}
		}
	}
	return sorted
}

// replaceQuietly swaps a record for one with the same charge: snapshots that
// hold the old one are as right as before, so no version moves.
func (l *Ledger) replaceQuietly(before, after *Record) {
	after.Charges = before.Charges
	l.nodes[before.Node].swap(before, after)
	l.records[after.Pod.UID] = after
}

// class returns the one pointer for c. A cluster has a handful of classes, so
// they are never forgotten.
func (l *Ledger) class(c Class) *Class {
	known := l.classes[c]
	if known == nil {
		known = &c
		l.classes[c] = known
	}
	return known
}

func (l *Ledger) node(name string) *node {
	n := l.nodes[name]
	if n == nil {
		n = &node{name: name}
		l.nodes[name] = n
		l.setChanged = true
	}
	return n
}

// dropIfEmpty forgets a node of which neither inventory nor charges are left.
func (l *Ledger) dropIfEmpty(n *node) {
	if n == nil || n.known || len(n.records) > 0 {
		return
	}
	delete(l.nodes, n.name)
	delete(l.changed, n.name)
	l.setChanged = true
}

// touch gives a changed node the next version.
func (l *Ledger) touch(n *node) {
	l.version++
	n.version = l.version
	l.changed[n.name] = n
}

// inFlight says that Commit made r and that nothing has confirmed it yet. The
// plan of a pod without GPUs has no containers, but every plan has a node.
func (r *Record) inFlight() bool {
	return r.State == Allocated && (r.Plan.Node != "" || len(r.Plan.Containers) > 0)
}

// sameCharge says whether both count the same, for the same pod and node.
func (r *Record) sameCharge(o *Record) bool {
	return r.Pod == o.Pod && r.Node == o.Node && slices.Equal(r.Charges, o.Charges)
}
