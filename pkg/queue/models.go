package queue

import "slices"

// ModelNames returns the GPU models that Model was asked for, in that order. The
// caller owns the slice.
func (t *Tree) ModelNames() []string { return slices.Clone(t.names) }
