package mutate

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

// applyDefaultFraction gives containers that ask for exactly one whole GPU the
// namespace's default fraction instead, and returns the pod's new request.
func (r *review) applyDefaultFraction(request contract.Request) contract.Request {
	text, res := r.in.Namespace.DefaultFraction, r.in.Defaults.Resources
	whole := func(d contract.Demand) bool { return d.Whole && d.Count == 1 }
	if text == "" || !slices.ContainsFunc(request.Demands, whole) {
		return request
	}
	fraction, err := units.ParseFraction(text)
	if err != nil {
		r.refuse(ReasonNamespace,
			"the pod asks for %s: 1, in whose place namespace %s puts the fraction in its annotation %s, but that is %v; correct the annotation of the namespace, or ask for %s in the pod",
			res.GPU, r.in.Namespace.Name, contract.DefaultFractionAnnotation, err, res.Share)
		return request
	}
	want := slices.Clone(request.Demands)
	pod := r.edit()
	for i, d := range want {
		if !whole(d) {
			continue
		}
		want[i].Whole, want[i].Shares = false, fraction.Shares(res.PerGPU)
		c := container(&pod.Spec, d.Name)
		delete(c.Resources.Limits, res.GPU)
		delete(c.Resources.Requests, res.GPU)
		setResource(&c.Resources, res.Share, int64(want[i].Shares))
		record(pod, fmt.Sprintf("%s: %s=1 (default-gpu-fraction=%s)", d.Name, res.GPU, text))
	}
	// Fewer whole GPUs can change which container a pod-wide annotation means.
	got, err := contract.ParsePod(pod, res)
	if err != nil || !slices.Equal(got.Demands, want) {
		r.refuse(ReasonNamespace,
			"in namespace %s %s: 1 stands for %s of a GPU (its annotation %s), which leaves open what the pod's annotations mean; name the container with the annotation %s, or ask for %s instead of %s",
			r.in.Namespace.Name, res.GPU, text, contract.DefaultFractionAnnotation, contract.ContainerAnnotation, res.Share, res.GPU)
		return request
	}
	return got
}

// record notes a translation on the pod, once.
func record(pod *corev1.Pod, entry string) {
	const separator = "; "
	var entries []string
	if text := pod.Annotations[contract.TranslatedFromAnnotation]; text != "" {
		entries = strings.Split(text, separator)
	}
	if !slices.Contains(entries, entry) {
		entries = append(entries, entry)
	}
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[contract.TranslatedFromAnnotation] = strings.Join(entries, separator)
}

// setLimits writes every demand where the scheduler and the kubelet count it.
func (r *review) setLimits() {
	for _, d := range r.request.Demands {
		name, amount := r.limit(d)
		c := container(&r.pod.Spec, d.Name)
		if holds(c.Resources.Limits, name, amount) && holds(c.Resources.Requests, name, amount) {
			continue
		}
		setResource(&container(&r.edit().Spec, d.Name).Resources, name, amount)
	}
}

// limit is what d's container must show. Memory on an unknown fleet counts as
// little as possible: too little here costs the scheduler a second look, for
// the ledger is exact; too much could never be taken back.
func (r *review) limit(d contract.Demand) (corev1.ResourceName, int64) {
	top := r.in.Fleet.largest().Memory
	if d.Memory > 0 && top == 0 {
		return r.in.Defaults.Resources.Share, int64(d.Count)
	}
	return d.Limit(r.in.Defaults.Resources, top)
}

func holds(list corev1.ResourceList, name corev1.ResourceName, amount int64) bool {
	q, ok := list[name]
	n, whole := units.WholeNumber(q)
	return ok && whole && n == amount
}

// setResource sets limit and request: extended resources need both, equal.
func setResource(to *corev1.ResourceRequirements, name corev1.ResourceName, amount int64) {
	for _, list := range []*corev1.ResourceList{&to.Limits, &to.Requests} {
		if *list == nil {
			*list = corev1.ResourceList{}
		}
		(*list)[name] = *resource.NewQuantity(amount, resource.DecimalSI)
	}
}

// setToleration lets the pod onto nodes that keep others away from their GPUs.
// NoSchedule only, as the in-tree ExtendedResourceToleration does: a NoExecute
// taint is how an administrator clears a GPU node.
func (r *review) setToleration() {
	taint := corev1.Taint{Key: contract.GPUTaint, Effect: corev1.TaintEffectNoSchedule}
	tolerated := slices.ContainsFunc(r.pod.Spec.Tolerations, func(t corev1.Toleration) bool {
		return (t.Key == "" || t.Key == taint.Key) && (t.Effect == "" || t.Effect == taint.Effect) && t.Operator == corev1.TolerationOpExists
	})
	if !tolerated {
		spec := &r.edit().Spec
		spec.Tolerations = append(spec.Tolerations, corev1.Toleration{
			Key: taint.Key, Operator: corev1.TolerationOpExists, Effect: taint.Effect,
		})
	}
}

// hideGPUs keeps the GPUs of the node from containers beside those that asked:
// CUDA images say NVIDIA_VISIBLE_DEVICES=all by themselves.
func (r *review) hideGPUs() {
	// By index, since names may still be double: the API server checks them later.
	for i, c := range containers(&r.pod.Spec) {
		if !r.gpu[c.Name] && !HidesGPUs(c.Env) {
			copied := containers(&r.edit().Spec)[i]
			copied.Env = append(copied.Env, hide)
		}
	}
}

// hideFromEnvFrom does so in a pod without GPUs for containers whose environment
// comes from elsewhere: a ConfigMap may say NVIDIA_VISIBLE_DEVICES=all as well,
// where admission cannot see it. What env says wins over envFrom.
func (r *review) hideFromEnvFrom() {
	for i, c := range containers(&r.pod.Spec) {
		if len(c.EnvFrom) > 0 && !HidesGPUs(c.Env) {
			copied := containers(&r.edit().Spec)[i]
			copied.Env = append(copied.Env, hide)
		}
	}
}

var hide = corev1.EnvVar{Name: contract.VisibleDevicesEnv, Value: contract.VisibleDevicesVoid}

// HidesGPUs says whether a container with that environment sees no GPU, apart
// from those that the node plugin gives it.
func HidesGPUs(env []corev1.EnvVar) bool {
	return slices.Contains(env, hide)
}
