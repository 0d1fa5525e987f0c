package mutate

import (
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

// checkForgery refuses a plan from anyone but the extender, which writes it when
// it binds the pod: a pod that brings one would choose its own GPU. Refused, not
// removed, since whoever wrote it expects it to count.
func (r *review) checkForgery() {
	for _, key := range []string{contract.PlanAnnotation, contract.RetryAnnotation} {
		if _, ok := r.in.Pod.Annotations[key]; ok {
			r.refuse(ReasonForged, "annotation %s is for Tranche alone to write; remove it from the pod or from the template that it is made from", key)
		}
	}
}

// nvidiaDeviceMounts is where NVIDIA's container toolkit, if told to accept
// devices as volume mounts, looks for the names of GPUs.
const nvidiaDeviceMounts = "/var/run/nvidia-container-devices"

// checkVisibleDevices refuses what NVIDIA's container runtime reads as a wish
// for GPUs, in containers with and without a request.
func (r *review) checkVisibleDevices() {
	for _, c := range containers(&r.pod.Spec) {
		r.refusals = append(r.refusals, r.visibleDevices(c.Name, c.Env, c.VolumeMounts)...)
	}
}

func (r *review) visibleDevices(name string, env []corev1.EnvVar, mounts []corev1.VolumeMount) []Refusal {
	res := r.in.Defaults.Resources
	var refusals []Refusal
	for _, e := range env {
		if e.Name == contract.VisibleDevicesEnv && (e.Value != contract.VisibleDevicesVoid || e.ValueFrom != nil) {
			refusals = append(refusals, Refuse(ReasonEnvironment,
				"container %s sets %s, but a container sees the GPUs that it asks for and no others; remove the variable and ask with %s, %s or the annotation %s",
				name, e.Name, res.Share, res.GPU, contract.FractionAnnotation))
			break // a second entry would say the same
		}
	}
	for _, m := range mounts {
		if p := path.Clean(m.MountPath); p == nvidiaDeviceMounts || strings.HasPrefix(p, nvidiaDeviceMounts+"/") {
			refusals = append(refusals, Refuse(ReasonEnvironment,
				"container %s mounts %s, but a container sees the GPUs that it asks for and no others; remove the mount and ask with %s, %s or the annotation %s",
				name, m.MountPath, res.Share, res.GPU, contract.FractionAnnotation))
		}
	}
	return refusals
}

// reservedEnv are the beginnings of variables by which NVIDIA's runtime and MPS
// take memory limits; on a GPU container they are the node plugin's to set.
var reservedEnv = []string{"NVIDIA_GPU_MEMORY_", "CUDA_MPS_"}

func (r *review) checkGPUEnvironment() {
	for _, c := range containers(&r.pod.Spec) {
		if !r.gpu[c.Name] {
			continue
		}
		for _, e := range c.Env {
			for _, prefix := range reservedEnv {
				if strings.HasPrefix(e.Name, prefix) {
					r.refuse(ReasonEnvironment,
						"container %s sets %s, but on a container with a GPU the node sets the variables %s*; remove it and ask for the memory with %s or the annotation %s",
						c.Name, e.Name, prefix, r.in.Defaults.Resources.Share, contract.MemoryAnnotation)
				}
			}
		}
	}
}

func (r *review) checkNodeName() {
	if node := r.in.Pod.Spec.NodeName; node != "" && len(r.gpu) > 0 {
		r.refuse(ReasonNodeName,
			"the pod asks for a GPU and sets spec.nodeName, which goes past the scheduler, so that nobody chooses a GPU for it; remove spec.nodeName and write spec.nodeSelector with %s: %s",
			corev1.LabelHostname, node)
	}
}

// checkMemory refuses memory that no GPU has. What some have but the allowed
// models have not is only a hint: such a pod waits, and says why.
func (r *review) checkMemory() {
	top := r.in.Fleet.largest()
	if top.Memory == 0 {
		return
	}
	for _, d := range r.request.Demands {
		if d.Memory > top.Memory {
			r.refuse(ReasonMemory,
				"container %s asks for %s of memory on one GPU, but the largest GPU of this cluster, %s, has %s; write at most that, or spread it over several GPUs with the annotation %s",
				d.Name, memory(d.Memory), top.Name, memory(top.Memory), contract.CountAnnotation)
		}
	}
}

// memory formats an amount as users write it.
func memory(m units.MiB) string {
	return resource.NewQuantity(int64(m)<<20, resource.BinarySI).String()
}
