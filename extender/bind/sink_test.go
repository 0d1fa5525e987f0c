package bind

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
)

// sink refuses for a while.
type sink struct {
	mu       sync.Mutex
	refusals []error
	created  int
}

func (s *sink) Create(event *corev1.Event) (*corev1.Event, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.refusals) > 0 {
		err := s.refusals[0]
		s.refusals = s.refusals[1:]
		return nil, err
	}
	s.created++
	return event, nil
}

func (s *sink) Update(event *corev1.Event) (*corev1.Event, error)          { return event, nil }
func (s *sink) Patch(event *corev1.Event, _ []byte) (*corev1.Event, error) { return event, nil }

func TestEventsSurviveAnAPIServerThatHasJustStarted(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "e", errors.New("no role"))
	ending := &apierrors.StatusError{ErrStatus: *forbidden.ErrStatus.DeepCopy()}
	ending.ErrStatus.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}}
	cases := map[string]struct {
		refusals []error
		want     int
	}{
		"forbidden at first":       {[]error{forbidden, forbidden}, 1},
		"in a namespace that ends": {[]error{ending, ending}, 0},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &sink{refusals: tc.refusals}
				broadcaster := record.NewBroadcaster()
				broadcaster.StartRecordingToSink(NewEventSink(s, nil))
				recorder := broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "test"})
				recorder.Event(&corev1.ObjectReference{Kind: "Pod", Name: "p", Namespace: "demo"}, corev1.EventTypeWarning, "R", "m")
				time.Sleep(time.Minute)
				s.mu.Lock()
				if s.created != tc.want {
					t.Errorf("%d events written, want %d", s.created, tc.want)
				}
				s.mu.Unlock()
				broadcaster.Shutdown()
				synctest.Wait()
			})
		})
	}
}

// stuckSink takes no event before it is told to.
type stuckSink struct {
	record.EventSink
	free  chan struct{}
	taken atomic.Int64
}

func (s *stuckSink) Create(event *corev1.Event) (*corev1.Event, error) {
	<-s.free
	s.taken.Add(1)
	return event, nil
}

// Every one of thousands of pods that begin to wait at once gets its event,
// however slow the API server.
func TestNoEventIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pods = 3000
		broadcaster := record.NewBroadcaster()
		defer broadcaster.Shutdown()
		backlog, sink := &EventBacklog{}, &stuckSink{free: make(chan struct{})}
		broadcaster.StartRecordingToSink(NewEventSink(sink, backlog))
		recorder := broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "test"})
		go func() {
			for range pods {
				time.Sleep(5 * time.Millisecond)
				sink.free <- struct{}{}
			}
		}()
		for i := range pods {
			backlog.add(t.Context(), clock.RealClock{})
			name := fmt.Sprint("p", i)
			recorder.Event(&corev1.ObjectReference{Kind: "Pod", Namespace: "demo", Name: name, UID: types.UID(name)}, corev1.EventTypeWarning, "R", "m")
		}
		time.Sleep(time.Minute)
		if n := sink.taken.Load(); n != pods {
			t.Errorf("%d of %d events arrived", n, pods)
		}
	})
}
