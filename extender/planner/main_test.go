package planner

import (
	"flag"
	"testing"

	"go.uber.org/goleak"
)

// TestMain has rapid try so many sequences of events, of so many states on
// average; the command line still has the last word. The time for shrinking a
// failure is that of the test's own clock, which runs fast.
func TestMain(m *testing.M) {
	for name, value := range map[string]string{"rapid.checks": "50", "rapid.steps": "100", "rapid.shrinktime": "30m"} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}
