package bind

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
)

// patientSink has refused events tried again. client-go gives an event up when
// it is forbidden, but an API server that has just started forbids everything
// until it has read its roles, and a pending pod must have its reason.
type patientSink struct {
	record.EventSink
	backlog *EventBacklog
}

// NewEventSink returns sink with that patience. backlog may be nil.
func NewEventSink(sink record.EventSink, backlog *EventBacklog) record.EventSink {
	return patientSink{sink, backlog}
}

func (s patientSink) Create(event *corev1.Event) (*corev1.Event, error) {
	defer s.backlog.done()
	e, err := s.EventSink.Create(event)
	return e, patient(err)
}

func (s patientSink) Patch(event *corev1.Event, patch []byte) (*corev1.Event, error) {
	defer s.backlog.done()
	e, err := s.EventSink.Patch(event, patch)
	return e, patient(err)
}

// EventBacklog counts events between their recorder and their sink. client-go
// drops what is beyond a thousand, and thousands of pods may begin to wait at
// once on an API server that is slow because of that.
type EventBacklog struct{ count atomic.Int64 }

const (
	// mostEvents is well below what client-go's broadcaster holds, which others
	// use too.
	mostEvents = 500
	// eventPatience bounds the wait for room: some events never reach the sink.
	eventPatience = 10 * time.Second
)

// add waits for room and counts one more event.
func (b *EventBacklog) add(ctx context.Context, clk clock.Clock) {
	if b == nil {
		return
	}
	for began := clk.Now(); b.count.Load() >= mostEvents; {
		if clk.Since(began) >= eventPatience {
			b.count.Store(0) // they are lost
			break
		}
		select {
		case <-ctx.Done():
			return
		case <-clk.After(10 * time.Millisecond):
		}
	}
	b.count.Add(1)
}

// done counts one less.
func (b *EventBacklog) done() {
	if b != nil && b.count.Add(-1) < 0 {
		b.count.Store(0)
	}
}

// patient hides from client-go that err is an answer, if another may come. A
// namespace that is being deleted forbids events for good.
func patient(err error) error {
	forbidden := apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)
	if !forbidden || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return err
	}
	return fmt.Errorf("event: %w", err)
}
