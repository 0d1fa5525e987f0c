package cluster

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var errNotYet = errors.New("not yet")

func TestEventuallyReturnsAsSoonAsItCan(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begin, calls := time.Now(), 0
		err := eventually(t.Context(), time.Minute, time.Second, func(context.Context) error {
			if calls++; calls < 4 {
				return errNotYet
			}
			return nil
		})
		if err != nil || time.Since(begin) != 3*time.Second {
			t.Errorf("%v after %s", err, time.Since(begin))
		}
	})
}

func TestEventuallySaysWhatWasMissing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		err := eventually(t.Context(), time.Minute, time.Second, func(ctx context.Context) error {
			if time.Since(begin) < 30*time.Second {
				return errNotYet
			}
			<-ctx.Done() // a call that hangs
			return ctx.Err()
		})
		if !errors.Is(err, errNotYet) || !strings.Contains(err.Error(), "1m0s") {
			t.Errorf("error %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err = eventually(ctx, time.Minute, time.Hour, func(context.Context) error { return errNotYet })
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, errNotYet) {
			t.Errorf("when the caller gives up: %v", err)
		}
	})
}

func TestEventuallyGivesUpWhenHopeless(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		err := eventually(t.Context(), time.Minute, time.Second, func(context.Context) error { return hopelessError{errNotYet} })
		if !errors.Is(err, errNotYet) || time.Since(begin) != 0 {
			t.Errorf("%v after %s", err, time.Since(begin))
		}
	})
}
