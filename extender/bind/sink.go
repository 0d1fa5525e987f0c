package bind

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/record"
)

// patientSink has refused events tried again. client-go gives an event up when
// it is forbidden, but an API server that has just started forbids everything
// until it has read its roles, and a pending pod must have its reason.
type patientSink struct{ record.EventSink }

// NewEventSink returns sink with that patience.
func NewEventSink(sink record.EventSink) record.EventSink { return patientSink{sink} }

func (s patientSink) Create(event *corev1.Event) (*corev1.Event, error) {
	e, err := s.EventSink.Create(event)
	return e, patient(err)
}

func (s patientSink) Patch(event *corev1.Event, patch []byte) (*corev1.Event, error) {
	e, err := s.EventSink.Patch(event, patch)
	return e, patient(err)
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
