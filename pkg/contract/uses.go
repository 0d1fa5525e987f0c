package contract

import (
	corev1 "k8s.io/api/core/v1"
)

// InterestsExtender says whether any container has one of the two resources, or
// MemberResource, in its requests or limits, whatever the amount: exactly the pods
// that kube-scheduler sends to an extender which manages these resources. It looks
// at names alone (HTTPExtender.hasManagedResources, as of 1.37).
func InterestsExtender(spec *corev1.PodSpec, res Resources) bool {
	return anyContainer(spec, func(c *corev1.Container) bool {
		return mentions(c, res.Share) || mentions(c, res.GPU) || mentions(c, MemberResource)
	})
}

// UsesGPU says whether any container has more than 0 of one of the two resources
// in its requests or limits: what the scheduler and the kubelet count. It is
// false for a pod whose annotations have not been translated into limits yet.
func UsesGPU(spec *corev1.PodSpec, res Resources) bool {
	return anyContainer(spec, func(c *corev1.Container) bool { return AsksGPU(c, res) })
}

// AsksGPU says so of one container.
func AsksGPU(c *corev1.Container, res Resources) bool {
	for _, list := range []corev1.ResourceList{c.Resources.Limits, c.Resources.Requests} {
		for _, name := range []corev1.ResourceName{res.Share, res.GPU} {
			if q, ok := list[name]; ok && q.Sign() > 0 {
				return true
			}
		}
	}
	return false
}

// anyContainer looks through init and app containers.
func anyContainer(spec *corev1.PodSpec, is func(*corev1.Container) bool) bool {
	for _, list := range [][]corev1.Container{spec.Containers, spec.InitContainers} {
		for i := range list {
			if is(&list[i]) {
				return true
			}
		}
	}
	return false
}

// mentions says whether the container has the resource, whatever the value.
func mentions(c *corev1.Container, name corev1.ResourceName) bool {
	_, limited := c.Resources.Limits[name]
	_, requested := c.Resources.Requests[name]
	return limited || requested
}
