// Package planner decides. One goroutine (Run) owns the ledger and everything
// that changes it; whoever wants a change sends it a command and waits for the
// answer. Readers load an immutable Snapshot and never wait, so that Filter and
// Prioritize cost the owner nothing but the hold that they may place.
//
// How a pod gets its GPUs:
//
//  1. Filter passes every node on which the pod fits beside the charges of all
//     other pods. If only one is left, the pod holds its GPUs there at once,
//     for the scheduler then asks no further.
//  2. Prioritize rates the nodes and places the hold on the best one.
//  3. Reserve, the first half of Bind, takes the hold, or plans anew if the
//     scheduler chose another node, and charges it as if the pod were bound:
//     nothing can expire while the Binding is on its way. Bound, Abort and
//     Truth, the second half, say what became of it.
//  4. Observe tells what the API server says. It always wins.
//
// Members of gangs go another way, which gang.go describes: their places are
// found and held together before the scheduler sees them, Filter only looks up,
// and Reserve lets them wait for each other.
//
// Holds are kept by pod UID and overwritten, never added, so all calls may be
// repeated.
//
// A pod that no node takes is remembered. When shares become free, the pods
// that now fit are woken, by priority and age and no more than fit: the scheduler
// may have seen the cause before we did and been refused.
//
// What is where:
//
//   - planner, state, snapshot, effects: the goroutine, what it owns, what readers
//     see, and what it asks for.
//   - observe, hearsay, truth, unplanned: what the watch, the scheduler's calls and
//     the kubelets tell.
//   - filter, prioritize (ratings, learn), bind, preempt (veto): the scheduler's
//     calls. reason has the sentences of refusals.
//   - waiting, wake, preemptor, elsewhere: pods that were refused or nominated.
//   - gang*: gangs, from their members (gang_observe) to their plans (gang_plan).
//   - queue*, gates, line, lane: what queues have, and who waits in them.
//   - gang_round, serve, single, board, spot, journal: rounds, which serve gangs and
//     pods behind the gate, and what is kept from one to the next.
//   - want, reclaim*, reservation, effort, standby, drain: room that is made, and to
//     whom it is kept.
//   - dump: what an operator may look at.
//
// The planner makes no API call and no log line of its own except one per
// decision; what it wants done it asks of its Effects.
package planner
