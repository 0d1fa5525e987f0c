package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/tranche-dev/tranche/tests/cluster"
)

// profileFor is how long each CPU profile takes.
const profileFor = 15 * time.Second

// profile takes CPU profiles of the extender, the scheduler and the API server
// while something is measured, if PROFILE names a folder for them. They cost
// some CPU themselves. wait returns when they are written.
func (k *kit) profile(ctx context.Context, what string) (wait func()) {
	if k.profiles == "" {
		return func() {}
	}
	var running sync.WaitGroup
	for _, program := range []string{cluster.Extender, cluster.Scheduler, cluster.APIServer} {
		if !k.kube.Running(program) {
			continue
		}
		running.Go(func() {
			file := filepath.Join(k.profiles, strings.ReplaceAll(what, " ", "-")+"."+program+".pprof")
			if err := k.writeProfile(ctx, program, file); err != nil {
				fmt.Fprintf(os.Stderr, "profile of %s: %v\n", program, err)
			}
		})
	}
	return running.Wait
}

func (k *kit) writeProfile(ctx context.Context, program, file string) error {
	body, err := k.get(ctx, program, fmt.Sprintf("/debug/pprof/profile?seconds=%d", int(profileFor.Seconds())))
	if err != nil {
		return err
	}
	return write(file, body)
}

func write(file, body string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(body), 0o644)
}
