package queue_test

import (
	"flag"
	"testing"
)

// TestMain makes rapid try more cases than its 100; the command line still has
// the last word.
func TestMain(m *testing.M) {
	if err := flag.Set("rapid.checks", "500"); err != nil {
		panic(err)
	}
	m.Run()
}
