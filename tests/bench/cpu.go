package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ticksPerSecond is the kernel's USER_HZ, fixed at 100 on Linux for programs.
const ticksPerSecond = 100

// cpuTimes are the CPU seconds that each program of the cluster in dir has used,
// by /proc; empty where there is none.
func cpuTimes(dir string) map[string]time.Duration {
	times := map[string]time.Duration{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, stat := range stats {
		line, err := os.ReadFile(filepath.Join(filepath.Dir(stat), "cmdline"))
		if err != nil || !strings.Contains(string(line), dir) {
			continue
		}
		text, err := os.ReadFile(stat)
		if err != nil {
			continue
		}
		// The name in parentheses may have spaces; what follows has none.
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		const user, system = 11, 12 // counted from the state, field 3
		if len(fields) <= system {
			continue
		}
		u, _ := strconv.ParseInt(fields[user], 10, 64)
		s, _ := strconv.ParseInt(fields[system], 10, 64)
		name := filepath.Base(strings.SplitN(string(line), "\x00", 2)[0])
		times[name] += time.Duration(u+s) * time.Second / ticksPerSecond
	}
	return times
}

// spent says what was used between two readings.
func spent(before, after map[string]time.Duration) string {
	var parts []string
	for name, t := range after {
		if d := t - before[name]; d >= 50*time.Millisecond {
			parts = append(parts, fmt.Sprintf("%s %.1f s", name, d.Seconds()))
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}
