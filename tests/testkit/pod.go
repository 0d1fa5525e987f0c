// Package testkit builds the objects that Tranche's tests share.
package testkit

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/tranche-dev/tranche/pkg/contract"
)

// ProbeImage is on the local cluster's real node: its program prints its
// environment, then sleeps, or `probe exit CODE AFTER`.
const ProbeImage = "tranche.local/probe:dev"

// PodBuilder assembles a pod step by step; Obj returns it.
type PodBuilder struct{ pod *corev1.Pod }

// MakePod starts a pod without containers. Obj adds one named "main" if no
// container was added.
func MakePod(namespace, name string) *PodBuilder {
	return &PodBuilder{&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{}, Labels: map[string]string{}},
		Spec: corev1.PodSpec{
			AutomountServiceAccountToken:  new(false),
			DNSPolicy:                     corev1.DNSDefault,
			EnableServiceLinks:            new(false),
			TerminationGracePeriodSeconds: new(int64(2)),
		},
	}}
}

// Container is one of the pod's containers while it is being built.
type Container func(*corev1.Container)

// Limit sets a limit; quantity is written as a user would, e.g. "50".
func Limit(name corev1.ResourceName, quantity string) Container {
	return func(c *corev1.Container) {
		if c.Resources.Limits == nil {
			c.Resources.Limits = corev1.ResourceList{}
		}
		c.Resources.Limits[name] = resource.MustParse(quantity)
	}
}

// Shares asks for shares of one GPU.
func Shares(n string) Container { return Limit("nvidia.com/gpu-share", n) }

// GPUs asks for whole GPUs.
func GPUs(n string) Container { return Limit("nvidia.com/gpu", n) }

// Env sets an environment variable.
func Env(name, value string) Container {
	return func(c *corev1.Container) { c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: value}) }
}

// Command sets the arguments of the probe.
func Command(args ...string) Container {
	return func(c *corev1.Container) { c.Args = args }
}

// Sidecar makes an init container run to the pod's end.
func Sidecar(c *corev1.Container) { c.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways) }

func container(name string, with []Container) corev1.Container {
	c := corev1.Container{Name: name, Image: ProbeImage, ImagePullPolicy: corev1.PullNever}
	for _, f := range with {
		f(&c)
	}
	return c
}

// Container adds an app container.
func (b *PodBuilder) Container(name string, with ...Container) *PodBuilder {
	b.pod.Spec.Containers = append(b.pod.Spec.Containers, container(name, with))
	return b
}

// InitContainer adds an init container.
func (b *PodBuilder) InitContainer(name string, with ...Container) *PodBuilder {
	b.pod.Spec.InitContainers = append(b.pod.Spec.InitContainers, container(name, with))
	return b
}

// Annotation sets one annotation.
func (b *PodBuilder) Annotation(key, value string) *PodBuilder {
	b.pod.Annotations[key] = value
	return b
}

// Label sets one label.
func (b *PodBuilder) Label(key, value string) *PodBuilder {
	b.pod.Labels[key] = value
	return b
}

// Fraction asks for part of a GPU by annotation.
func (b *PodBuilder) Fraction(f string) *PodBuilder {
	return b.Annotation(contract.FractionAnnotation, f)
}

// Memory asks for GPU memory by annotation.
func (b *PodBuilder) Memory(m string) *PodBuilder { return b.Annotation(contract.MemoryAnnotation, m) }

// Count asks for that on several GPUs.
func (b *PodBuilder) Count(n string) *PodBuilder { return b.Annotation(contract.CountAnnotation, n) }

// OnNode restricts the pod to one node by its host name label.
func (b *PodBuilder) OnNode(name string) *PodBuilder {
	b.pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: name}
	return b
}

// Spec changes whatever has no method of its own.
func (b *PodBuilder) Spec(change func(*corev1.PodSpec)) *PodBuilder {
	change(&b.pod.Spec)
	return b
}

// Obj returns the pod.
func (b *PodBuilder) Obj() *corev1.Pod {
	if len(b.pod.Spec.Containers) == 0 {
		b.Container("main")
	}
	return b.pod
}
