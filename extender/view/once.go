package view

import "unique"

// Once returns a text equal to s that many objects share. Each decoded object has
// a copy of its own of every name in it, and what is made of it lives as long as
// the pod does. A shared text is found again only while somebody keeps its
// handle: nodes do so for their own name. Of others there may be one after each
// garbage collection. A shared text costs 250 bytes, which is too much for those
// that few have, as UUIDs of GPUs.
func Once(s string) string { return unique.Make(s).Value() }
