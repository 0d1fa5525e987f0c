// Package bind writes to the API server what the planner decided: Bindings
// that carry the plan, and in the background wake-up patches, nominations,
// lifted gates, evictions and events.
//
// A Binding never leaves its charge in doubt. A clear refusal is rolled back;
// anything else is settled by reading the pod; if even that fails, the charge
// stays until the pod could be read.
//
// What is done in the background is never in doubt either: it is tried again
// until it has happened, the pod is gone, or the planner wants something else.
package bind
