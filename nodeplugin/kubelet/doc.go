// Package kubelet talks with the kubelet: it serves the device plugins
// (Server), registers them and does so again whenever the kubelet restarts
// (Registrar), asks which pods there are (PodsAPI, or Informer where the
// kubelet has none), and which devices they hold (PodResources).
//
// What decides is elsewhere: Server passes questions on to a Decider.
package kubelet
