// Package v1alpha1 holds the types of the API group tranche.dev: Queue, a
// share of the cluster that pods wait in, and Gang, pods that start together
// or not at all.
//
// These are what users write and what the system answers; nothing here has
// behaviour. Quantities of GPUs are decimal numbers, durations are Go
// durations such as "90s".
//
// +kubebuilder:object:generate=true
// +groupName=tranche.dev
package v1alpha1
