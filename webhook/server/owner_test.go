package server

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/tranche-dev/tranche/webhook"
	"github.com/tranche-dev/tranche/webhook/mutate"
)

const ownedHalfGPU = `
metadata:
  generateName: job-
  annotations: {tranche.dev/gpu-fraction: "0.5"}
  ownerReferences: [{apiVersion: batch/v1, kind: Job, name: train, uid: u, controller: true}]
spec: {containers: [{name: main, image: x}]}`

func TestMembersGetTheirOwnersGangAndTheGate(t *testing.T) {
	var asked []string
	owner := &mutate.Owner{
		Kind: "Job", Name: "train",
		Labels: map[string]string{"tranche.dev/gang": "trio"}, Annotations: map[string]string{"tranche.dev/gang-min-count": "3"},
	}
	options := webhook.DefaultOptions()
	server := newWebhookServerWith(t, testCluster(t), ownersFunc(func(namespace string, pod *corev1.Pod) (*mutate.Owner, error) {
		asked = append(asked, namespace+"/"+pod.OwnerReferences[0].Name)
		return owner, nil
	}), options)

	// 1. The API server does not show a pod's namespace on the pod yet.
	req := request(t, "demo", "", ownedHalfGPU)
	dryRun := true
	req.DryRun = &dryRun
	pod := patched(t, req, server.review(t, MutatePath, req))
	if pod.Labels["tranche.dev/gang"] != "trio" || pod.Annotations["tranche.dev/gang-min-count"] != "3" ||
		!slices.Equal(pod.Spec.SchedulingGates, []corev1.PodSchedulingGate{{Name: "tranche.dev/admission"}}) {
		t.Errorf("labels %v, annotations %v, gates %v", pod.Labels, pod.Annotations, pod.Spec.SchedulingGates)
	}

	// 2. The second call, the validation and whatever does not concern gangs ask nobody.
	done := strings.Replace(ownedHalfGPU, "generateName: job-", "generateName: job-\n  labels: {tranche.dev/gang: trio, tranche.dev/queue: default}", 1)
	plain := strings.Replace(ownedHalfGPU, "tranche.dev/gpu-fraction", "example.com/none", 1)
	server.review(t, MutatePath, request(t, "demo", "", done))
	server.review(t, ValidatePath, request(t, "demo", "", ownedHalfGPU))
	server.review(t, MutatePath, request(t, "demo", ownedHalfGPU, ownedHalfGPU))
	server.review(t, MutatePath, request(t, "plain", "", ownedHalfGPU))
	server.review(t, MutatePath, request(t, "demo", "", strings.Replace(plain, "batch/v1, kind: Job", "apps/v1, kind: DaemonSet", 1)))
	server.review(t, MutatePath, request(t, "demo", "", strings.Replace(ownedHalfGPU, "0.5", "nonsense", 1)))
	if diff := cmp.Diff([]string{"demo/train"}, asked); diff != "" {
		t.Errorf("owners asked for (-want +got):\n%s", diff)
	}

	// 3. A member without GPUs is made to come to the extender with the others.
	req = request(t, "demo", "", plain)
	pod = patched(t, req, server.review(t, MutatePath, req))
	if q, asks := pod.Spec.Containers[0].Resources.Limits["tranche.dev/member"]; !asks || !q.IsZero() ||
		pod.Labels["tranche.dev/gang"] != "trio" || pod.Labels["tranche.dev/queue"] != "default" || len(pod.Spec.SchedulingGates) != 1 {
		t.Errorf("without GPUs: labels %v, gates %v, containers %v", pod.Labels, pod.Spec.SchedulingGates, pod.Spec.Containers)
	}
	answer := server.review(t, ValidatePath, request(t, "demo", "", strings.Replace(plain, "generateName: job-", "generateName: job-\n  labels: {tranche.dev/gang: trio}", 1)))
	if answer.Allowed || !strings.Contains(answer.Result.Message, "lack tranche.dev/member: 0") {
		t.Errorf("without GPUs and not mutated: %+v", answer.Result)
	}

	// 4. Without gates the rest is the same.
	options.GangGate = false
	server = newWebhookServerWith(t, testCluster(t), ownersFunc(func(string, *corev1.Pod) (*mutate.Owner, error) { return owner, nil }), options)
	req = request(t, "demo", "", ownedHalfGPU)
	pod = patched(t, req, server.review(t, MutatePath, req))
	if pod.Labels["tranche.dev/gang"] != "trio" || len(pod.Spec.SchedulingGates) > 0 {
		t.Errorf("labels %v, gates %v", pod.Labels, pod.Spec.SchedulingGates)
	}
}

// A member let through without its gang would start alone.
func TestPodsAreRefusedWhileTheirOwnerCannotBeRead(t *testing.T) {
	server := newWebhookServerWith(t, testCluster(t), ownersFunc(func(string, *corev1.Pod) (*mutate.Owner, error) {
		return nil, errors.New("could not read Job demo/train; try again")
	}), webhook.DefaultOptions())
	answer := server.review(t, MutatePath, request(t, "demo", "", ownedHalfGPU))
	if answer.Allowed || answer.Result.Code != http.StatusServiceUnavailable || !strings.Contains(answer.Result.Message, "could not read Job demo/train") {
		t.Errorf("%+v %+v", answer, answer.Result)
	}
	for name, pod := range map[string]string{
		"a pod without GPU of a DaemonSet":    strings.NewReplacer("tranche.dev/gpu-fraction", "example.com/none", "batch/v1, kind: Job", "apps/v1, kind: DaemonSet").Replace(ownedHalfGPU),
		"a pod that names its gang and queue": strings.Replace(ownedHalfGPU, "generateName: job-", "generateName: job-\n  labels: {tranche.dev/gang: trio, tranche.dev/queue: q}", 1),
		"a debugging container":               ownedHalfGPU,
	} {
		req := request(t, "demo", "", pod)
		if name == "a debugging container" {
			req.Operation, req.SubResource, req.OldObject = admissionv1.Update, "ephemeralcontainers", req.Object
		}
		if answer := server.review(t, MutatePath, req); !answer.Allowed {
			t.Errorf("%s: %+v", name, answer.Result)
		}
	}
}
