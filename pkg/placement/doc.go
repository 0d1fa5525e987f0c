// Package placement decides which GPUs of a node a pod would get, and which
// node suits it best.
//
// A Query is one pod's request, prepared for asking many nodes: Check says
// whether the pod fits, Plan gives the GPUs, Score rates the node. All three
// give the same answer to whether it fits, and equal input gives equal output.
//
// A pod fits if all its containers find room at the same time. Each demand
// takes its count of different GPUs of the node, on each of them the shares
// that the demand costs there: what is asked in memory costs fewer shares of a
// bigger GPU, and a whole GPU must be wholly free. Containers may share a GPU.
// Where the request says SameGPUs, all containers sit on one set of GPUs, and
// each GPU is charged by contract.Plan.Charges.
//
// # Exactness
//
// The search is depth-first with pruning and finds a placement if there is
// one, up to a bound on the GPUs tried per node (maxSteps), beyond which the
// pod counts as not fitting: it never takes what is not free. Containers are
// placed hardest first and GPUs tried in the order of the policy, then in
// best-fit order. Pods with one GPU container, and practically all with up to
// eight, are decided exactly.
//
// # Policies
//
// A Policy sees the GPUs of a node with what is free on each, before and after. Binpack and
// Spread go by that alone; LeastWaste also by the node's processors, which the
// caller tells (ScoreIn, PlanIn, Options.MilliCPU), and by what other pods ask
// for, which package waste has learned.
//
// Everything here is pure.
package placement
