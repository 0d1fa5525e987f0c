//go:build !race

package simulate

// seeds is the number of replays that a mean is of.
const seeds = 5
