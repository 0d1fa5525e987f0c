package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/tranche-dev/tranche/webhook"
	"github.com/tranche-dev/tranche/webhook/mutate"
	"github.com/tranche-dev/tranche/webhook/validate"
	"github.com/tranche-dev/tranche/webhook/workload"
)

// Paths of the two webhooks.
const (
	MutatePath   = "/mutate-pods"
	ValidatePath = "/validate-pods"
)

// facts is what decisions need to know of the cluster.
type facts interface {
	// Namespace says whether pods there are Tranche's business.
	Namespace(ctx context.Context, name string) (ns mutate.Namespace, enabled bool, err error)
	Fleet() mutate.Fleet
	// Queues is nil where nothing is known of them.
	Queues(ctx context.Context) mutate.Queues
}

var _ facts = (*cluster)(nil)

// owners finds what the controllers of pods say about them.
type owners interface {
	Owner(ctx context.Context, namespace string, pod *corev1.Pod) (*mutate.Owner, error)
}

var _ owners = (*workload.Reader)(nil)

// handler answers admission reviews of pods.
type handler struct {
	facts    facts
	owners   owners
	defaults mutate.Defaults
	// reserved are namespaces whose pods are never touched, trusted the users
	// who may change what is frozen.
	reserved, trusted map[string]bool
	decoder           admission.Decoder
	metrics           *Metrics
}

func newHandler(f facts, w owners, o *webhook.Options, scheme *runtime.Scheme, metrics *Metrics) *handler {
	h := &handler{
		facts:    f,
		owners:   w,
		defaults: mutate.Defaults{Resources: o.Resources, Queue: o.DefaultQueue, GangGate: o.GangGate, QueueGate: o.QueueGate, RateCPUOnly: o.RateCPUOnlyPods},
		reserved: map[string]bool{o.Namespace: true, "kube-system": true},
		trusted:  map[string]bool{},
		decoder:  admission.NewDecoder(scheme),
		metrics:  metrics,
	}
	for _, account := range []string{"tranche-extender", "tranche-webhook", "tranche-nodeplugin"} {
		h.trusted["system:serviceaccount:"+o.Namespace+":"+account] = true
	}
	return h
}

// badRequestError is what the API server would never send.
type badRequestError struct{ cause error }

func (e badRequestError) Error() string { return e.cause.Error() }
func (e badRequestError) Unwrap() error { return e.cause }

// question is an admission review, taken apart.
type question struct {
	pod *corev1.Pod
	// old is nil for a new pod.
	old *corev1.Pod
	// ephemeral: debugging containers are being added.
	ephemeral bool
	// enabled says whether the pod's namespace has opted in.
	enabled bool
	input   mutate.Input
}

// Mutate answers at MutatePath.
func (h *handler) Mutate(ctx context.Context, req admission.Request) admission.Response {
	return h.answer(ctx, req, operationMutate, func(q question) mutate.Outcome {
		switch {
		case q.enabled && q.ephemeral:
			return mutate.EphemeralContainers(q.old, q.input)
		case q.enabled && q.old == nil:
			return mutate.Pod(q.input)
		default:
			return mutate.Outcome{Pod: q.pod}
		}
	})
}

// Validate answers at ValidatePath.
func (h *handler) Validate(ctx context.Context, req admission.Request) admission.Response {
	operation := operationValidateCreate
	if req.Operation == admissionv1.Update {
		operation = operationValidateUpdate
	}
	return h.answer(ctx, req, operation, func(q question) mutate.Outcome {
		out := mutate.Outcome{Pod: q.pod}
		switch {
		case q.enabled && q.ephemeral:
			out.Refusals = validate.EphemeralContainers(q.old, q.input)
		case q.ephemeral:
		case q.old != nil:
			// Settled in an opted-in namespace, and so whatever its label says now.
			if !h.trusted[req.UserInfo.Username] {
				out.Refusals = validate.Update(q.old, q.pod)
			}
		case q.enabled:
			// Warnings were given when the pod was mutated.
			out.Refusals = validate.Create(q.input)
		}
		return out
	})
}

// answer takes a review through decide, and counts and logs what came of it.
func (h *handler) answer(ctx context.Context, req admission.Request, op operation, decide func(question) mutate.Outcome) admission.Response {
	defer prometheus.NewTimer(h.metrics.duration.WithLabelValues(string(op))).ObserveDuration()
	log := klog.FromContext(ctx)
	q, concerned, err := h.question(ctx, req, op)
	if err != nil {
		log.Error(err, "Could not decide about a pod", "operation", op, "pod", klog.KRef(req.Namespace, req.Name), "user", req.UserInfo.Username)
		h.metrics.requests.WithLabelValues(string(op), resultError).Inc()
		code := int32(http.StatusServiceUnavailable)
		if bad := (badRequestError{}); errors.As(err, &bad) {
			code = http.StatusBadRequest
		}
		return admission.Errored(code, err)
	}
	if !concerned {
		h.metrics.requests.WithLabelValues(string(op), resultAllowed).Inc()
		return admission.Allowed("")
	}

	out := decide(q)
	pod := []any{"pod", klog.KRef(req.Namespace, podName(q.pod)), "user", req.UserInfo.Username, "dryRun", req.DryRun != nil && *req.DryRun}
	if len(out.Refusals) > 0 {
		text := mutate.Text(out.Refusals)
		log.V(2).Info("Refused a pod", append(pod, "operation", op, "because", text)...)
		h.metrics.requests.WithLabelValues(string(op), resultRefused).Inc()
		for _, r := range out.Refusals {
			h.metrics.refusals.WithLabelValues(string(op), string(r.Reason)).Inc()
		}
		return admission.Denied(text).WithWarnings(out.Warnings...)
	}
	patch := mutate.Patch(q.pod, out.Pod)
	if len(patch) == 0 {
		h.metrics.requests.WithLabelValues(string(op), resultAllowed).Inc()
		return admission.Allowed("").WithWarnings(out.Warnings...)
	}
	log.V(2).Info("Changed a pod", append(pod, "operation", op, "patches", len(patch))...)
	h.metrics.requests.WithLabelValues(string(op), resultChanged).Inc()
	return admission.Patched("", patch...).WithWarnings(out.Warnings...)
}

// question decodes a review. The second result is false for what is none of
// our business, whatever the webhook configuration sends.
func (h *handler) question(ctx context.Context, req admission.Request, op operation) (question, bool, error) {
	q := question{ephemeral: req.SubResource == "ephemeralcontainers"}
	create := req.Operation == admissionv1.Create && req.SubResource == ""
	// A status update may change annotations as well.
	update := req.Operation == admissionv1.Update && (req.SubResource == "" || req.SubResource == "status" || q.ephemeral)
	if req.Resource.Group != "" || req.Resource.Resource != "pods" || !create && !update || h.reserved[req.Namespace] {
		return question{}, false, nil
	}

	q.pod = &corev1.Pod{}
	if err := h.decoder.DecodeRaw(req.Object, q.pod); err != nil {
		return question{}, false, badRequestError{fmt.Errorf("decode pod: %w", err)}
	}
	if update {
		q.old = &corev1.Pod{}
		if err := h.decoder.DecodeRaw(req.OldObject, q.old); err != nil {
			return question{}, false, badRequestError{fmt.Errorf("decode old pod: %w", err)}
		}
		if !q.ephemeral {
			// Needs no facts: kubelet and controllers must get through at once.
			return q, true, nil
		}
	}
	ns, enabled, err := h.facts.Namespace(ctx, req.Namespace)
	if err != nil {
		return question{}, false, err
	}
	q.enabled = enabled
	q.input = mutate.Input{Pod: q.pod, Namespace: ns, Fleet: h.facts.Fleet(), Defaults: h.defaults}
	if op != operationMutate || !enabled || !create {
		return q, true, nil
	}
	// Only mutation copies from the owner and adds gates, so only it needs to know:
	// a pod that comes to be validated carries what there was to copy.
	if metav1.GetControllerOfNoCopy(q.pod) != nil && mutate.WantsOwner(q.pod, h.defaults.Resources) {
		if q.input.Owner, err = h.owners.Owner(ctx, req.Namespace, q.pod); err != nil {
			return question{}, false, err
		}
	}
	if h.defaults.QueueGate {
		q.input.Queues = h.facts.Queues(ctx)
	}
	return q, true, nil
}

// podName is what a pod without a name yet is called in logs.
func podName(pod *corev1.Pod) string {
	if pod.Name == "" {
		return pod.GenerateName + "*"
	}
	return pod.Name
}
