package cluster

import (
	"context"
	"errors"
	"sync"
)

// together runs all of do at once and returns all their errors.
func together(ctx context.Context, do ...func(context.Context) error) error {
	errs := make([]error, len(do))
	var wg sync.WaitGroup
	for i, f := range do {
		wg.Go(func() { errs[i] = f(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// inParallel calls do for every item, a few at once, and stops at an error.
func inParallel[T any](ctx context.Context, items []T, do func(context.Context, T) error) error {
	const workers = 16
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan T)
	var wg sync.WaitGroup
	for range min(workers, len(items)) {
		wg.Go(func() {
			for item := range next {
				if err := do(ctx, item); err != nil {
					cancel(err)
				}
			}
		})
	}
send:
	for _, item := range items {
		select {
		case next <- item:
		case <-ctx.Done():
			break send
		}
	}
	close(next)
	wg.Wait()
	return context.Cause(ctx)
}
