// Command probe is the workload of tests on the real node. Without arguments,
// or with `env`, it prints its environment, one variable a line, and sleeps
// until SIGTERM. `probe exit CODE AFTER` prints it as well and exits with CODE
// after the duration AFTER; `probe linger AFTER` goes on for that long after
// SIGTERM, as a process does that saves its work.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM, syscall.SIGINT)
	var ends <-chan time.Time
	var linger time.Duration
	code := 0
	switch {
	case len(args) == 0, len(args) == 1 && args[0] == "env":
	case len(args) == 3 && args[0] == "exit":
		var err error
		if code, err = strconv.Atoi(args[1]); err != nil || code < 0 || code > 255 {
			fmt.Fprintf(os.Stderr, "probe: exit code %q is not a number from 0 to 255\n", args[1])
			return 64
		}
		after, err := time.ParseDuration(args[2])
		if err != nil {
			fmt.Fprintf(os.Stderr, "probe: duration %q: %v\n", args[2], err)
			return 64
		}
		ends = time.After(after)
	case len(args) == 2 && args[0] == "linger":
		var err error
		if linger, err = time.ParseDuration(args[1]); err != nil {
			fmt.Fprintf(os.Stderr, "probe: duration %q: %v\n", args[1], err)
			return 64
		}
	default:
		fmt.Fprintln(os.Stderr, "usage: probe [env | exit CODE AFTER | linger AFTER]")
		return 64
	}
	for _, variable := range os.Environ() {
		fmt.Println(variable)
	}
	select {
	case <-terminated:
		time.Sleep(linger)
		return 0
	case <-ends:
		return code
	}
}
