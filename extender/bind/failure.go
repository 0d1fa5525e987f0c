package bind

import (
	"context"
	"errors"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/tranche-dev/tranche/extender/planner"
)

// failure is an error with a word for metrics and advice for people.
type failure struct {
	label, advice string
	cause         error
}

func (f *failure) Error() string {
	if f.cause == nil {
		return f.advice
	}
	return f.cause.Error() + "; " + f.advice
}

func (f *failure) Unwrap() error { return f.cause }

var (
	errGone  = &failure{label: "gone", advice: "the pod is gone, or another one has its name now; nothing is left to do"}
	errNoGPU = &failure{label: "no_gpu", advice: "the pod asks for no GPU, so it is not for this extender; the scheduler's managedResources should name the GPU resources and tranche.dev/member only"}
)

// certainty says what a failed Binding tells about the pod.
type certainty int

const (
	// certain: the API server refused, so nothing was written.
	certain certainty = iota
	// conflict: refused because the pod is not what it was: bound, replaced,
	// gated or being deleted.
	conflict
	// doubtful: the Binding may have been written.
	doubtful
)

func classify(err error) certainty {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return doubtful // the connection broke, or time ran out
	}
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return conflict
	}
	code := int(status.Status().Code)
	if code >= http.StatusBadRequest && code < http.StatusInternalServerError && !apierrors.IsTimeout(err) {
		return certain
	}
	return doubtful
}

// explain adds what to do to an API error.
func explain(err error) error {
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause): // which is Forbidden, too
		return &failure{"terminating", "the pod's namespace is being deleted, and the pod with it; nothing is left to do", err}
	case apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err):
		return &failure{"forbidden", "grant the extender's service account create on pods/binding, and look whether an admission policy refused the plan", err}
	case apierrors.IsNotFound(err):
		return &failure{"gone", "the pod is gone; nothing is left to do", err}
	case apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err):
		return &failure{"conflict", "the pod changed meanwhile; it will be tried again if it still waits", err}
	case apierrors.IsTooManyRequests(err):
		return &failure{"throttled", "the API server is overloaded; it will be tried again", err}
	case apierrors.IsInvalid(err) || apierrors.IsBadRequest(err):
		return &failure{"invalid", "the API server does not take this Binding; report it with the pod's manifest", err}
	case errors.Is(err, context.DeadlineExceeded) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err):
		return &failure{"timeout", "the API server did not answer in time; it will be tried again", err}
	default:
		return &failure{"error", "it will be tried again", err}
	}
}

// label is the word for an error in metrics.
func label(err error) string {
	var f *failure
	var refused *planner.RefusedError
	switch {
	case errors.As(err, &f):
		return f.label
	case errors.As(err, &refused):
		return "refused"
	case errors.Is(err, planner.ErrInProgress):
		return "in_progress"
	case errors.Is(err, planner.ErrBoundElsewhere):
		return "bound_elsewhere"
	default:
		return "error"
	}
}
