package mutate_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/tests/testkit"
	"github.com/tranche-dev/tranche/webhook/mutate"
)

func TestEnvironmentFromElsewhereShowsNoGPUToAPodWithoutOne(t *testing.T) {
	pod := testkit.MakePod("ns", "p").Container("plain").Container("from", func(c *corev1.Container) {
		c.EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "all"}}}}
	}).Obj()
	in := mutate.Input{Pod: pod, Defaults: mutate.Defaults{Resources: contract.DefaultResources()}}
	out := mutate.Pod(in)
	if len(out.Refusals) > 0 {
		t.Fatal(out.Refusals)
	}
	if env := out.Pod.Spec.Containers[0].Env; len(env) > 0 {
		t.Errorf("the container without envFrom got %v", env)
	}
	if !mutate.HidesGPUs(out.Pod.Spec.Containers[1].Env) {
		t.Error("the container with envFrom may see every GPU of the node")
	}
	in.Pod = out.Pod
	if again := mutate.Pod(in); len(again.Pod.Spec.Containers[1].Env) != 1 {
		t.Errorf("a second look changed it again: %v", again.Pod.Spec.Containers[1].Env)
	}
}

func TestEnvironmentFromElsewhereShowsNoGPUToDebuggingContainersEither(t *testing.T) {
	old := testkit.MakePod("ns", "p").Container("main").Obj()
	pod := old.DeepCopy()
	for _, name := range []string{"plain", "from"} {
		pod.Spec.EphemeralContainers = append(pod.Spec.EphemeralContainers, corev1.EphemeralContainer{
			EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: name},
		})
	}
	pod.Spec.EphemeralContainers[1].EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "all"}}}}
	in := mutate.Input{Pod: pod, Defaults: mutate.Defaults{Resources: contract.DefaultResources()}}
	out := mutate.EphemeralContainers(old, in)
	if len(out.Refusals) > 0 {
		t.Fatal(out.Refusals)
	}
	if env := out.Pod.Spec.EphemeralContainers[0].Env; len(env) > 0 {
		t.Errorf("the container without envFrom got %v", env)
	}
	if !mutate.HidesGPUs(out.Pod.Spec.EphemeralContainers[1].Env) {
		t.Error("the container with envFrom may see every GPU of the node")
	}
	in.Pod = out.Pod
	if again := mutate.EphemeralContainers(old, in); again.Pod != out.Pod {
		t.Error("a second look changed it again")
	}
}
