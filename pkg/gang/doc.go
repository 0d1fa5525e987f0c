// Package gang decides where the members of a gang go: all of them, or none.
//
// Plan takes the nodes with what is free on them and the members with what they
// ask for, and returns a place for every member or a Shortfall, which says why
// not in numbers and in a sentence. It changes nothing and is pure: equal input
// gives equal output, whatever the order of the nodes.
//
// A place respects what kube-scheduler would check without looking at other
// pods: requests against what the node has left (Resources), taints, node
// selector and required node affinity (Constraints), and what package placement
// says of the GPUs. What the planner does not know of, such as volumes, ports
// and pod affinity, comes back to it in Member.Avoid.
//
// Members without GPUs, such as a launcher, are placed by all of that but the
// GPUs, after the members with GPUs, and rather on nodes that have none. Their
// plans have a node and no containers.
//
// Members are placed one after the other, each on the node that the policy
// rates best and there on the GPUs that it chooses, as single pods are. If that
// leaves members over, nodes are packed as full as they can be; see filling.
//
// # Exactness
//
// Whatever Plan returns is valid. It finds a placement whenever there is one
// for members of one Shape, whichever nodes each of them avoids, whose request
// is one container, or several of which one is an ordinary init container
// (Request.SameGPUs). It does so within one topology domain as well. For
// members of one Shape with several containers the same is true as far as
// placement's search for several copies on one node reaches, which is bounded.
//
// For members of several shapes it is a heuristic: it tries a few orders of the
// shapes, each of which is placed as above on what the ones before have left,
// and then gives up; maxWork bounds what that may cost. Where each shape alone
// would fit, Shortfall.Message says how many were placed together, not that
// more is impossible. Topology.Required is decided domain by domain, so it is
// as exact as that. The number of domains that Preferred uses is what a greedy
// choice of the biggest ones needs.
package gang
