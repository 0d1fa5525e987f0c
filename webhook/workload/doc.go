// Package workload finds out what a pod's owner says about all of its pods: the
// labels and the annotation by which a Job, for instance, makes its pods a gang.
//
// An owner is read from the API server, at most once per pod and not at all for
// kinds that nobody has put on the list in kind.go: each costs our service
// account a right. Pods of one owner come in bursts, so what was read is kept
// for a few seconds and shared by those who wait for the same answer.
package workload
