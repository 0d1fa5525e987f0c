package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// eagerly is how often to look for what comes in milliseconds to seconds.
const eagerly = 50 * time.Millisecond

// hopelessError ends a wait at once.
type hopelessError struct{ error }

func (h hopelessError) Unwrap() error { return h.error }

// eventually calls check until it succeeds, every interval, for at most
// patience; then it returns the last failure. There are no other waits in this
// package: everything goes on as soon as it can.
func eventually(ctx context.Context, patience, interval time.Duration, check func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var last error
	for {
		err := check(limited)
		var hopeless hopelessError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &hopeless):
			return hopeless.error
		case last == nil || limited.Err() == nil:
			last = err // an attempt that the end of the wait cut short says nothing
		}
		select {
		case <-limited.Done():
			if ctx.Err() != nil {
				return fmt.Errorf("%w: %w", context.Cause(ctx), last)
			}
			return fmt.Errorf("not after %s: %w", patience, last)
		case <-ticker.C:
		}
	}
}
