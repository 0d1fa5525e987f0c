package queue

import "k8s.io/apimachinery/pkg/types"

// RefusalKind says why a queue does not admit.
type RefusalKind int

const (
	// UnknownQueue: the queue has no spec.
	UnknownQueue RefusalKind = iota
	// UnknownParent: Refusal.Queue names a parent that has no spec.
	UnknownParent
	// ParentCycle: Refusal.Queue is its own ancestor.
	ParentCycle
	// NotLeaf: the queue has children.
	NotLeaf
	// Stopped: Refusal.Queue is stopped.
	Stopped
	// LimitTooLow: the ask alone exceeds a limit of Refusal.Queue, so that
	// waiting does not help.
	LimitTooLow
	// LimitReached: the ask and what is used exceed a limit of Refusal.Queue.
	LimitReached
)

// String returns what is the matter in plain words, without names or numbers.
func (k RefusalKind) String() string {
	switch k {
	case UnknownQueue:
		return "the queue does not exist"
	case UnknownParent:
		return "the queue, or one above it, names a parent that does not exist"
	case ParentCycle:
		return "the queues above it form a cycle"
	case NotLeaf:
		return "the queue has queues below it, so it takes no pods itself"
	case Stopped:
		return "the queue, or one above it, is stopped"
	case LimitTooLow:
		return "more is asked than a limit of the queue, or of one above it, ever allows"
	case LimitReached:
		return "a limit of the queue, or of one above it, is reached"
	default:
		return "unknown"
	}
}

// Refusal says why a queue does not admit an ask.
type Refusal struct {
	Kind RefusalKind
	// Queue is the queue that refuses: the one asked, or one above it.
	Queue string
	// Parent is the missing one, if Kind is UnknownParent.
	Parent string
	// Resource, Limit, Used and Asked are set if Kind is about a limit. Used is
	// what Queue has held and allocated.
	Resource           Resource
	Limit, Used, Asked int64
}

// Check says whether ask may be admitted to queue now; nil means yes. What is
// held and allocated by the ids of replaced, each named once, does not count:
// the ask comes in their place.
func (t *Tree) Check(queue string, ask Amounts, replaced ...types.UID) *Refusal {
	t.wire()
	x := Trial{tree: t, name: queue, claimant: t.nodes[queue], ask: ask}
	for _, id := range replaced {
		if c, ok := t.charges[id]; ok && c.state != Pending {
			x.change(c.node, c.amounts, -1)
		}
	}
	return x.Fits()
}

// Mark is a number that is another one whenever Check may answer otherwise than
// before, because of specs or of what is held and allocated in queue and all above
// it. Of a queue of which nothing is known it is 0.
func (t *Tree) Mark(queue string) uint64 {
	t.wire()
	n := t.nodes[queue]
	if n == nil {
		return 0
	}
	last := t.rewired
	for ; n != t.root; n = n.up {
		last = max(last, n.changed)
	}
	return last
}

// misfit says what is wrong with the queue whatever is asked.
func (t *Tree) misfit(name string, n *node) *Refusal {
	if n == nil || !n.known {
		return &Refusal{Kind: UnknownQueue, Queue: name}
	}
	if n.stray {
		for n.up != t.root {
			n = n.up
		}
		if n.cyclic {
			return &Refusal{Kind: ParentCycle, Queue: n.name}
		}
		return &Refusal{Kind: UnknownParent, Queue: n.name, Parent: n.spec.Parent}
	}
	if len(n.children) > 0 {
		return &Refusal{Kind: NotLeaf, Queue: name}
	}
	for ; n.stopped; n = n.up {
		if n.spec.Stopped {
			return &Refusal{Kind: Stopped, Queue: n.name}
		}
	}
	return nil
}

// Room returns how much more the limits of queue and of all above it leave,
// never below zero; Unlimited where there is no limit. A stray has no room.
func (t *Tree) Room(queue string) Amounts {
	t.wire()
	room := make(Amounts, t.width)
	n := t.nodes[queue]
	if n == nil || n.stray {
		return room
	}
	for r := range room {
		room[r] = Unlimited
		for m := n; m != t.root; m = m.up {
			if m.limit[r] != Unlimited {
				room[r] = min(room[r], max(m.limit[r]-m.used[r], 0))
			}
		}
	}
	return room
}
