package objectwriter

import (
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

var (
	// ErrRaced says that the object is not what it was when it was read.
	ErrRaced = errors.New("the object has changed")
	// ErrGone says that there is nothing that the report is about, so nothing to
	// write and to remember.
	ErrGone = errors.New("there is no such object")
	// ErrNoKind says that the API server does not know the kind, which the
	// watcher tells the operator.
	ErrNoKind = errors.New("no CustomResourceDefinition")
)

// Result counts a request by its verb and result, and sorts its error.
func (w *Writer[R, S]) Result(verb string, err error) error {
	result := "failed"
	switch {
	case err == nil:
		w.o.Requests.WithLabelValues(verb, "ok").Inc()
		return nil
	case errors.Is(err, ErrNoKind):
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err):
		// The end of an object that was just there is looked at anew, too.
		result, err = "conflict", fmt.Errorf("%w: %w", ErrRaced, err)
	}
	w.o.Requests.WithLabelValues(verb, result).Inc()
	return fmt.Errorf("%s %s: %w", verb, strings.ToLower(w.o.Kind), err)
}
