package main

import (
	"context"
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

// usage is what a program has used up to now.
type usage struct {
	cpu time.Duration
	// resident is its memory, peak the most that it had since it was started, in
	// MiB.
	resident, peak int64
}

// usages are those of each program of the cluster in dir, by /proc; empty where
// there is none.
func usages(dir string) map[string]usage {
	all := map[string]usage{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, stat := range stats {
		line, err := os.ReadFile(filepath.Join(filepath.Dir(stat), "cmdline"))
		// With the slash: another cluster's folder may begin with the same name.
		if err != nil || !strings.Contains(string(line), dir+"/") {
			continue
		}
		text, err := os.ReadFile(stat)
		if err != nil {
			continue
		}
		// The name in parentheses may have spaces; what follows has none.
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		const user, system, resident = 11, 12, 21 // counted from the state, field 3
		if len(fields) <= resident {
			continue
		}
		u, _ := strconv.ParseInt(fields[user], 10, 64)
		s, _ := strconv.ParseInt(fields[system], 10, 64)
		pages, _ := strconv.ParseInt(fields[resident], 10, 64)
		name := filepath.Base(strings.SplitN(string(line), "\x00", 2)[0])
		has := all[name]
		has.cpu += time.Duration(u+s) * time.Second / ticksPerSecond
		has.resident += pages * int64(os.Getpagesize()) >> 20
		has.peak += peak(filepath.Join(filepath.Dir(stat), "status"))
		all[name] = has
	}
	return all
}

// peak reads the most memory in MiB from /proc/PID/status, 0 if it has ended.
func peak(status string) int64 {
	text, err := os.ReadFile(status)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, _ := strconv.ParseInt(strings.Fields(value)[0], 10, 64)
			return kib >> 10
		}
	}
	return 0
}

// spent says what was used between two readings.
func spent(before, after map[string]usage) string {
	var parts []string
	for name := range after {
		if d := cpuOf(before, after, name); d >= 50*time.Millisecond {
			parts = append(parts, fmt.Sprintf("%s %.1f s", name, d.Seconds()))
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

// cpuOf is what some programs used together between two readings.
func cpuOf(before, after map[string]usage, names ...string) time.Duration {
	var sum time.Duration
	for _, name := range names {
		sum += after[name].cpu - before[name].cpu
	}
	return sum
}

// during measures the cluster for a while in which nothing is asked of it, after
// it has come to rest.
func (k *kit) during(ctx context.Context, what string, d time.Duration) (before, after map[string]usage, err error) {
	for _, pause := range []time.Duration{settling, d} {
		before = usages(k.kube.Dir())
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
	after = usages(k.kube.Dir())
	fmt.Printf("%s, CPU in %v: %s\n", what, d, spent(before, after))
	return before, after, nil
}

// settling is how long what was begun before goes on: informers, garbage collection,
// kwok.
const settling = 10 * time.Second
