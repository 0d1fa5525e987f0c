// Package cluster is the real local Kubernetes cluster behind `make
// cluster-up`: etcd, kube-apiserver, kube-controller-manager and
// kube-scheduler of a release, built from the Go module proxy and run as
// plain processes; simulated GPU nodes, played by kwok; and, as root on Linux,
// one real kubelet with containerd. Tranche's own programs run beside them as
// host processes with their real service-account tokens. No container engine
// and no image registry is needed.
//
// Everything of a cluster is in one directory, its certificates, data, logs
// and pid files, so that two checkouts can have a cluster each at the same
// time. What the kubelet insists to have at fixed paths (/var/lib/kubelet,
// /run/containerd, /var/log/containers) exists only in a mount namespace of
// the node's processes. What cannot be in a directory, a bridge interface, a
// subnet and a cgroup, has a name derived from the directory's path.
//
// Up is declarative and idempotent: it starts what is missing or has died,
// restarts what runs with other arguments, files or binaries than now wanted,
// and leaves the rest alone. Down removes every trace, whatever state Up, a
// crash or a reboot has left. Both are what the command tests/cluster/cmd/cluster
// calls; tests use the same package to kill and restart single programs.
//
// Processes are identified by process id, start time and boot, or by a mark in
// their environment, never by their name.
package cluster
