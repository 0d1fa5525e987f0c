// Package watch feeds the planner from the API server's pods and nodes.
//
// Objects are cut down as they arrive: a pod without GPUs leaves a name and a
// UID, so that a cluster of 100,000 ordinary pods costs little. Lists are never
// answered from an API server's stale cache, for the last Bindings of an
// earlier leader must be in them. What the informers guarantee is relied on:
// every object that exists is told of, and every end, if late.
package watch
