package mutate

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/tranche-dev/tranche/pkg/contract"
)

// EphemeralContainers decides about debugging containers that are added to the
// running pod old and make it in.Pod. They cannot ask for a GPU, so they must not
// see one: in a pod that uses one not by way of their image either, and nowhere
// by way of an environment from elsewhere, as hideFromEnvFrom explains.
func EphemeralContainers(old *corev1.Pod, in Input) Outcome {
	r := &review{in: in, pod: in.Pod}
	existing := make(map[string]bool, len(old.Spec.EphemeralContainers))
	for i := range old.Spec.EphemeralContainers {
		existing[old.Spec.EphemeralContainers[i].Name] = true
	}
	usesGPU := contract.UsesGPU(&in.Pod.Spec, in.Defaults.Resources)
	for i := range in.Pod.Spec.EphemeralContainers {
		c := &in.Pod.Spec.EphemeralContainers[i]
		if existing[c.Name] {
			continue // settled when it was added, and unchangeable since
		}
		r.refusals = append(r.refusals, r.visibleDevices(c.Name, c.Env, c.VolumeMounts)...)
		if (usesGPU || len(c.EnvFrom) > 0) && !HidesGPUs(c.Env) {
			copied := &r.edit().Spec.EphemeralContainers[i]
			copied.Env = append(copied.Env, hide)
		}
	}
	if len(r.refusals) > 0 {
		return Outcome{Pod: in.Pod, Refusals: r.refusals}
	}
	return Outcome{Pod: r.pod}
}
