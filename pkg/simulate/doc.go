// Package simulate replays arrivals of pods on a cluster that exists only as a
// list of nodes, with the ledger and the placement that the extender runs. It
// answers how much of the GPUs a policy fills before pods find no room.
//
// Pods arrive one at a time, none leaves, and one that fits nowhere is dropped:
// the rules of "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with
// Fragmentation Gradient Descent" (USENIX ATC 2023), so that results compare with
// those of its authors' simulator on the same public trace. What the rules leave
// out are departures, gangs, queues and everything else that keeps a pod from a
// node.
//
// Everything here is pure: equal input, the seed included, gives equal output.
package simulate
