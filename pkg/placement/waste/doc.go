// Package waste estimates how much of a node's free GPU shares nobody will ever
// be able to use, given what pods usually ask for.
//
// A Learner counts the shapes of pods as they arrive. From its counts and the
// GPUs of the cluster it makes Tables, which say what any state of a node costs:
// the more, the worse its free shares suit the pods that come. The policy
// least-waste of package placement puts a pod where the cost grows least.
//
// # The cost of a state
//
// The state of a node is its free processors c and the free part g of each of
// its GPUs, T in all. Everything is in thousandths of a GPU and of a processor,
// so that weights mean the same in clusters of any size. A cost has four terms:
//
//   - Fragmentation: of T, what the usual pods cannot use at present, on
//     average over them. This is the measure of "Beware of Fragmentation"
//     (USENIX ATC 2023). Usual are the most frequent shapes that together make up
//     95 % of all pods.
//   - Stranded: of T, what would be left without processors if the node went on
//     to receive average GPU pods.
//   - Holes: over the GPUs, what is left in the end of a free part of that size.
//     It is looked up in a table of 100 sizes, see holes.
//   - Idle: the free processors that usual pods cannot use, in GPUs that
//     average pods have with as many. It counts only where processors are about
//     as scarce as GPUs.
//
// The weights of the terms were found by replaying the workloads of the public
// trace openb, with other seeds than the tests use but the same workloads. They
// are not settings: with any one of them half as high, the mean of five workloads
// changed by at most 0.04 percentage points of all GPUs, and no workload's by
// more than 0.14.
//
// Everything here is pure. Tables are immutable and may be shared.
package waste
