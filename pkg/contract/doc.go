// Package contract is where Tranche's parts and its users meet: the resource
// names, labels and annotations, and the only code that reads or writes them.
//
// Users write a request (Request, ParsePod). The node plugin writes what a
// node has (Inventory). The extender writes what a pod gets (Plan), inside the
// Binding, so that node and GPU arrive in one transaction. The kubelet is given
// device IDs (DeviceID) that carry the GPU's UUID. Charges is the one function
// that says what a pod costs on each GPU.
//
// Everything here is pure: values in, values out.
package contract
