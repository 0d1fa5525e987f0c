// Package extender is the scheduler extender: it wires the parts below it into
// one process and owns its life, from the first listener to the last goroutine.
//
//   - server answers kube-scheduler over HTTPS, and people over plain HTTP;
//   - planner owns the ledger in one goroutine and decides;
//   - watch turns the API server's pods, nodes and gangs into the planner's
//     events;
//   - bind writes to the API server: Bindings, wake-up patches, nominations,
//     lifted gates, evictions, events;
//   - gangobject and queueobject write Gang and Queue objects, when objectwriter
//     says;
//   - certificate keeps the serving certificate and the client CA fresh;
//   - view is what the parts keep of a pod and of a node.
//
// Only the leader watches and answers. A new leader reads everything afresh,
// with lists that no stale cache may answer, before it says that it is ready:
// what an earlier leader bound last must be counted. A leader that loses its
// lease ends the process, as kube-scheduler does.
package extender
