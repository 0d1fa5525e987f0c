// Package queue divides a cluster among a tree of queues.
//
// Queues are named; leaves take pods, inner queues divide what they have among
// their children. A pod's charge is an Amounts in one of three states: pending
// (it waits), held (planned) or allocated (bound). From specs, capacity and
// charges the Tree computes, exactly and in integers, what every queue is
// entitled to (its fair share), who is served next (Contest), and what may be
// taken from whom (Trial).
//
// # Fair share
//
// What a queue wants is what it uses (held and allocated) and waits for, cut by
// the limits below and of it. Pods that can never be admitted where they are
// (the queue is stopped, or has children) are wanted only as far as they run.
//
// From the top, every queue's fair share is divided among its children, each
// resource for itself:
//
//  1. Pods that name the inner queue itself keep what they use.
//  2. Every child gets what it deserves, as far as it wants that. If that is
//     more than there is, it is divided in proportion to what they deserve.
//  3. What is left goes to the children that want more: to those of the highest
//     priority first, and among them by weight.
//  4. What nobody wants is not divided. A fair share is never more than wanted.
//
// If children together deserve more than their parent does, all of theirs is
// cut in proportion. Fractions of a unit go to the largest remainders, and
// among equal ones to the first by name.
//
// # Invariants
//
//   - Every charge has one id and an id has at most one charge.
//   - What a queue uses is the sum over its children and its own pods.
//   - Fair shares of children are together at most their parent's.
//   - The order of calls for different queues and ids does not matter: a parent
//     may come after its children, a pod before its queue.
//   - Nothing depends on the order of a map.
//
// # Strays
//
// A queue that is not described, whose parent is not, or that has a cycle above
// it, is a stray. It admits nobody. What its pods use is set aside before the
// rest is divided and counts as its fair share, so that nothing is taken from
// it: an edit in progress must not evict anybody. When the missing queue
// arrives, everything falls into place.
//
// A Tree is a plain state machine without lock, clock or goroutine: one
// goroutine owns it.
package queue
