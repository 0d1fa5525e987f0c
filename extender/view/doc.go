// Package view holds what the extender keeps of a pod and of a node: a tenth of
// the API objects' size, parsed once. It is pure.
package view
