package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/wait"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/tranche-dev/tranche/tests/cluster"
	"github.com/tranche-dev/tranche/tests/testkit"
)

// start kills the extender and returns the time from when it is started again
// until it says that it is ready and its answer is right. An answer that is not
// right fails the measurement: before it knows all pods it must not give any.
func (b *scaleBench) start(ctx context.Context, s size) (time.Duration, error) {
	pod, err := b.like(ctx, withCPU(testkit.MakePod(namespace, "big").Container("main", testkit.GPUs(fmt.Sprint(b.gpus/b.nodes))).Obj()))
	if err != nil {
		return 0, err
	}
	want := b.caller.nodes
	if s.each > 0 {
		want = want[:spares]
	}
	if err := b.kube.Kill(ctx, cluster.Extender); err != nil {
		return 0, err
	}
	began := time.Now()
	started := make(chan error, 1)
	go func() { started <- b.kube.Start(ctx, cluster.Extender) }()
	var took time.Duration
	err = wait.PollUntilContextTimeout(ctx, 5*time.Millisecond, longPatience, true, func(ctx context.Context) (bool, error) {
		_, notReady := b.get(ctx, cluster.Extender, "/readyz")
		ready := notReady == nil
		var answer extenderv1.ExtenderFilterResult
		asked := *pod
		asked.UID = uuid.NewUUID()
		if _, err := b.caller.ask(ctx, b.caller.extender.FilterVerb, &asked, &answer); err != nil || answer.Error != "" {
			if ready {
				return false, fmt.Errorf("ready, but Filter answers %q: %w", answer.Error, err)
			}
			return false, nil
		}
		if answer.NodeNames == nil || !slices.Equal(*answer.NodeNames, want) {
			return false, fmt.Errorf("ready %v, Filter passes other nodes than the %d that are right", ready, len(want))
		}
		took = time.Since(began)
		return ready, nil
	})
	return took, errors.Join(err, <-started)
}

// calm returns when the cluster's programs do nearly nothing.
func (b *scaleBench) calm(ctx context.Context) error {
	const pause, little = 5 * time.Second, 250 * time.Millisecond
	before := usages(b.kube.Dir())
	err := wait.PollUntilContextTimeout(ctx, pause, patience, false, func(context.Context) (bool, error) {
		after := usages(b.kube.Dir())
		var sum time.Duration
		for name := range after {
			sum += cpuOf(before, after, name)
		}
		before = after
		return sum < little, nil
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "the cluster does not come to rest; it is measured as it is")
		return nil
	}
	return err
}

// memory is what the extender takes.
type memory struct {
	// resident is its resident memory, peak the most since it was started, in MiB.
	resident, peak int64
	// live are the bytes of the heap that are in use.
	live int64
}

func (m memory) String() string {
	return fmt.Sprintf("%d MiB resident (%d at most), %d MiB live", m.resident, m.peak, m.live>>20)
}

// memory looks at the extender at rest. To see what is in use it asks for a
// garbage collection, after it has seen what is resident.
func (b *scaleBench) memory(ctx context.Context, what string) (memory, error) {
	if err := b.calm(ctx); err != nil {
		return memory{}, err
	}
	u := usages(b.kube.Dir())[cluster.Extender]
	heap, err := b.get(ctx, cluster.Extender, "/debug/pprof/heap?gc=1")
	if err != nil {
		return memory{}, err
	}
	if b.profiles != "" {
		if err := write(filepath.Join(b.profiles, what+"."+cluster.Extender+".heap.pprof"), heap); err != nil {
			return memory{}, err
		}
	}
	live, err := b.gauge(ctx, "go_memstats_heap_alloc_bytes")
	return memory{resident: u.resident, peak: u.peak, live: int64(live)}, err
}
