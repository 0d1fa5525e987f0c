// Package ledger counts who is charged for which GPU.
//
// A GPU is cut into shares. A pod's charge is a number of shares on each of
// some GPUs of one node, or of none if the pod is there for its gang only. It is held (planned, until it expires) or allocated
// (bound, until the pod has ended). The caller computes charges with
// contract.Plan.Charges; the ledger only adds them up.
//
// Invariants:
//
//   - Every charge belongs to exactly one pod UID, and a UID has at most one
//     claim: claiming again overwrites, never adds.
//   - Hold never takes a GPU beyond its shares. Allocate and Adopt do as they
//     are told, because they report what already is: the truth may overcommit
//     a GPU, name one that the node does not have (yet), or a node that nobody
//     has described. Free shares are then negative and Overcommitted says so.
//   - Charges outlive inventories: a node whose annotation is missing for a
//     while, or a GPU that drops out and returns, finds its charges again.
//   - The order of calls for different pods and nodes does not matter, so
//     replaying the pods of the API server gives an equal ledger.
//
// A Ledger is a plain state machine without lock, clock or goroutine: one
// goroutine owns it. Readers get a Snapshot, which never changes.
package ledger
