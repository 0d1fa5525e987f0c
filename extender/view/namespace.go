package view

import "maps"

// Namespace is what the extender keeps of a namespace: what queues select it by.
type Namespace struct {
	Name   string
	Labels map[string]string
}

// Same says whether n and o are equal.
func (n *Namespace) Same(o *Namespace) bool {
	return n.Name == o.Name && maps.Equal(n.Labels, o.Labels)
}
