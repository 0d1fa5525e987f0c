package mutate

import (
	"errors"
	"fmt"
	"strings"

	"github.com/tranche-dev/tranche/pkg/contract"
)

// Reason is a class of refusals, for metrics; the set is fixed.
type Reason string

// The classes of refusals.
const (
	// ReasonRequest: what is asked for makes no sense (contract.ParsePod).
	ReasonRequest Reason = "request"
	// ReasonMemory: more memory than any GPU of the cluster has.
	ReasonMemory Reason = "memory"
	// ReasonForged: an annotation that only Tranche may write.
	ReasonForged Reason = "forged"
	// ReasonEnvironment: variables or mounts that reach for GPUs by themselves.
	ReasonEnvironment Reason = "environment"
	// ReasonNodeName: a GPU pod that goes past the scheduler.
	ReasonNodeName Reason = "node_name"
	// ReasonGang: a gang declared in a way that makes no sense.
	ReasonGang Reason = "gang"
	// ReasonGate: Tranche's scheduling gate where nobody would lift it.
	ReasonGate Reason = "gate"
	// ReasonNamespace: the namespace's default cannot be read.
	ReasonNamespace Reason = "namespace"
	// ReasonUntranslated: a pod that mutation did not reach, or was undone.
	ReasonUntranslated Reason = "untranslated"
	// ReasonFrozen: a change of what is settled when a pod is created.
	ReasonFrozen Reason = "frozen"
)

// Refusal says why a pod may not be, and what to write instead.
type Refusal struct {
	Reason Reason
	// Message is a sentence without full stop that starts in lower case, since
	// the API server puts words of its own in front of it.
	Message string
}

// Refuse makes a Refusal.
func Refuse(reason Reason, format string, args ...any) Refusal {
	return Refusal{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// Text joins refusals into one line, since that is how events show it.
func Text(refusals []Refusal) string {
	if len(refusals) == 1 {
		return refusals[0].Message
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d problems:", len(refusals))
	for i, r := range refusals {
		if i > 0 {
			b.WriteString(";")
		}
		fmt.Fprintf(&b, " (%d) %s", i+1, r.Message)
	}
	return b.String()
}

func (r *review) refuse(reason Reason, format string, args ...any) {
	r.refusals = append(r.refusals, Refuse(reason, format, args...))
}

// refuseRequest takes apart what contract.ParsePod joined.
func (r *review) refuseRequest(err error) {
	problems := []error{err}
	if joined, ok := errors.AsType[interface {
		error
		Unwrap() []error
	}](err); ok {
		problems = joined.Unwrap()
	}
	for _, p := range problems {
		r.refuse(ReasonRequest, "%s", strings.TrimPrefix(p.Error(), contract.ErrRequest.Error()+": "))
	}
}
