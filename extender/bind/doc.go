// Package bind writes to the API server: Bindings for kube-scheduler, and in
// the background what the planner asks for as planner.Effects: wake-up patches,
// events, and reads that settle what became of a call.
//
// No write is made under a lock or in the planner's goroutine. All writes are
// bounded by the client's rate and by limits of their own.
package bind
