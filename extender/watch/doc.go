// Package watch feeds the planner from the API server's pods and nodes; for
// gangs also from Gang objects and Kubernetes' own PodGroups, and for queues
// from Queue objects and namespaces.
//
// Objects are cut down as they arrive: a pod without GPUs leaves a name, a UID
// and, for gangs, what it takes of its node, so that a cluster of 100,000
// ordinary pods costs little. Lists are never answered from an API server's
// stale cache, for the last Bindings of an earlier leader must be in them. What
// the informers guarantee is relied on: every object that exists is told of,
// and every end, if late.
//
// Gangs, PodGroups and Queues may be missing in a cluster. They come and go as
// the API server begins and ceases to serve them; pods are placed all the while.
package watch
