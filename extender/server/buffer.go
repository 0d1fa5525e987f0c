package server

import "sync"

// Requests and answers about thousands of nodes have a hundred thousand bytes. To
// make new ones for each call would be two thirds of what the garbage collector
// has to do.
const (
	// leastKept and mostKept bound the buffers that are used again, in bytes: small
	// ones are cheap, and a large one may have been the only one of its kind.
	leastKept = 4 << 10
	mostKept  = 4 << 20
)

var buffers sync.Pool // of *[]byte

// takeBuffer returns an empty buffer for about n bytes.
func takeBuffer(n int) []byte {
	if n < leastKept {
		return make([]byte, 0, n)
	}
	if kept, ok := buffers.Get().(*[]byte); ok && cap(*kept) >= n {
		return (*kept)[:0]
	}
	return make([]byte, 0, n)
}

// giveBuffer is for a buffer that nobody looks at any more.
func giveBuffer(b []byte) {
	if cap(b) >= leastKept && cap(b) <= mostKept {
		buffers.Put(&b)
	}
}
