package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"

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
	config, err := k.kube.RESTConfig()
	if err != nil {
		return err
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		return err
	}
	url := fmt.Sprintf("%s/debug/pprof/profile?seconds=%d", k.kube.OpsURL(program), int(profileFor.Seconds()))
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s: %.200s", url, response.Status, body)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, body, 0o644)
}
