// Package mutate decides what becomes of a pod that is created in a namespace
// where Tranche works: the pod with its GPU wishes translated into what the
// scheduler and the kubelet count, or refusals that say what to write instead.
//
// It is pure: everything a decision depends on is in Input, nothing in it is
// changed, and equal inputs give equal outcomes. Deciding about an outcome's
// pod again gives that same pod, so the API server may call as often as it
// likes, for instance after another webhook has added a container.
//
// What a request means, and which requests make no sense, is contract.ParsePod's
// to say. This package adds what can only be judged, or must be changed, on the
// way in: what the user may not write at all, and what the cluster lacks. The
// same goes for gangs and contract.GangOf.
//
// Of queues it decides only which one a pod is in, and whether the pod waits for
// the extender, as the Queue object says. Who gets what, and when, is for the
// extender alone: admission sees one pod at a time, and never the whole.
package mutate
