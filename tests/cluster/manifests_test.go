package cluster

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const manifest = `# a comment alone is a document
---
kind: ValidatingWebhookConfiguration
apiVersion: admissionregistration.k8s.io/v1
metadata: {name: w}
webhooks:
- name: a.tranche.dev
  clientConfig: {caBundle: "", service: {name: s, namespace: n, path: /validate-pods, port: 443}}
  failurePolicy: Fail
---
kind: ConfigMap
apiVersion: v1
metadata: {name: c}
---
kind: CustomResourceDefinition
apiVersion: apiextensions.k8s.io/v1
metadata: {name: d}
---
kind: Namespace
apiVersion: v1
metadata: {name: n}
---
`

func TestManifestIsAppliedDefinitionsFirst(t *testing.T) {
	t.Parallel()
	objects, err := parseManifest([]byte(manifest))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range inOrder(objects) {
		got = append(got, o.GetKind())
	}
	want := []string{"Namespace", "CustomResourceDefinition", "ConfigMap", "ValidatingWebhookConfiguration"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	if _, err := parseManifest([]byte("a: [")); err == nil {
		t.Error("broken YAML is no error")
	}
}

func TestWebhooksAreCalledOnThisMachine(t *testing.T) {
	t.Parallel()
	objects, err := parseManifest([]byte(manifest))
	if err != nil {
		t.Fatal(err)
	}
	c := &Cluster{ports: ports{portWebhook: 12345}}
	for _, o := range objects {
		if err := c.localWebhook(o); err != nil {
			t.Fatal(err)
		}
	}
	webhooks, _, err := unstructured.NestedSlice(objects[0].Object, "webhooks")
	if err != nil {
		t.Fatal(err)
	}
	want := []any{map[string]any{
		"name": "a.tranche.dev", "failurePolicy": "Fail",
		"clientConfig": map[string]any{"url": "https://localhost:12345/validate-pods"},
	}}
	if diff := cmp.Diff(want, webhooks); diff != "" {
		t.Errorf("webhooks (-want +got):\n%s", diff)
	}
}

func TestSchedulerConfigurationIsTheShippedOne(t *testing.T) {
	t.Parallel()
	c := &Cluster{paths: paths{dir: "/c"}, ports: ports{portExtender: 12345}}
	got, err := c.localSchedulerConfig([]byte(`
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: true}
profiles:
- schedulerName: default-scheduler
  plugins: {score: {disabled: [{name: NodeResourcesFit}]}}
  pluginConfig:
  - name: NodeAffinity
    args: {apiVersion: kubescheduler.config.k8s.io/v1, kind: NodeAffinityArgs}
extenders:
- urlPrefix: https://10.96.0.200:443/v1
  filterVerb: filter
  tlsConfig: {serverName: tranche-extender.tranche-system.svc, caFile: /x}
  httpTimeout: 5s
`))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"urlPrefix: https://127.0.0.1:12345/v1", "filterVerb: filter", "httpTimeout: 5s", "leaderElect: false", "enableHTTPS: true",
		"caFile: /c/pki/ca.crt", "certFile: /c/pki/kube-scheduler.crt", "kubeconfig: /c/conf/kube-scheduler.kubeconfig",
		"name: NodeResourcesFit", "kind: NodeAffinityArgs",
	} {
		if !strings.Contains(string(got), want) {
			t.Errorf("%q is not in:\n%s", want, got)
		}
	}
	if strings.Contains(string(got), "serverName") {
		t.Errorf("the certificate would be checked for another name:\n%s", got)
	}
	if _, err := c.localSchedulerConfig([]byte("kind: KubeSchedulerConfiguration\nextender: []\n")); err == nil {
		t.Error("an unknown key is no error")
	}
	if _, err := c.localSchedulerConfig([]byte("kind: KubeSchedulerConfiguration\n")); err == nil {
		t.Error("a configuration without extender is no error")
	}
}
