// Package assign decides which GPU a container gets on its node, by finding out
// for which container the kubelet asks and reading that container's plan.
//
// A device plugin is told how many devices are wanted, or which, but not by
// whom. The kubelet admits pods one after the other, though, and lets anyone on
// the node ask for its pods. So, while it waits for our answer, exactly one
// container is next in line: it asks for that many devices of that resource,
// all containers before it in its pod have theirs, and it has none. What has
// devices is known from our own ledger; pod-resources is asked only if more
// than one container is left, for its rate is limited.
//
// That the kubelet admits one pod at a time is how it is built, not a promise.
// So Allocate takes nothing on trust: the device IDs that arrive are the
// decision. They must lie on exactly the GPUs of a waiting container's plan,
// nobody alive may hold them, and no GPU may be charged beyond its shares.
// Whatever was assumed about who asked, totals are right; Reconciler corrects
// names later from what the kubelet recorded.
//
// Views of pods and the choice among them (Pod, candidates) are pure; Assigner
// and Reconciler do the asking and writing.
package assign
