// Package nodeplugin is the part of Tranche that runs on every GPU node. It
// finds the GPUs (nvml, health), says on the Node what there is (inventory),
// offers shares and whole GPUs to the kubelet (kubelet, slice), and makes the
// kubelet give each container exactly the GPU that the extender planned
// (assign, ledger, cdi).
//
// # What happens when
//
// The order at start: GPUs are read, the ledger file is opened, the kubelet is
// asked whether another plugin offers the same GPUs (then the program ends and
// says what to do), the inventory is written, and only then are the resources
// registered: without an inventory the extender would take the node for one
// that is not Tranche's.
//
// When a GPU falls ill, the kubelet learns it first and the Node right after;
// when it recovers likewise, so that nothing is planned on a GPU which the
// kubelet would not give.
//
// Whatever does not work, NVML, the kubelet or the API server, is said on
// /readyz and in the log, and tried again with growing pauses.
package nodeplugin
