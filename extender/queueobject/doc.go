// Package queueobject writes what the planner knows of each queue into its
// Queue object, and keeps queues that are in use from vanishing.
//
// What decides whether pods start is written at once, mere numbers seldom: see
// Writer. The object as it was last read or written is remembered, so that a
// write is one request, and goes with its version, so that what somebody else
// made of the object meanwhile counts.
package queueobject
