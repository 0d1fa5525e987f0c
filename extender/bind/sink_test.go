package bind

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
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
				broadcaster.StartRecordingToSink(NewEventSink(s))
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
