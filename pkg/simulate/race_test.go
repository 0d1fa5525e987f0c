//go:build race

package simulate

// seeds is 1 with the race detector, which makes replays ten times as slow and
// finds nothing in code without goroutines.
const seeds = 1
