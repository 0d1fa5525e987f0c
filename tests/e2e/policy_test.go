package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/tranche-dev/tranche/pkg/contract"
)

// The policy that guards nodes, with the rights that each account really has.
func TestOnlyTheNodesOwnPluginWritesItsInventory(t *testing.T) {
	// A node of this test's own: nobody keeps it alive and nothing runs on it.
	const name, other = "policy-a", "policy-b"
	for _, n := range []string{name, other} {
		if _, err := client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := client.CoreV1().Nodes().Delete(context.WithoutCancel(t.Context()), n, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	plugin, err := kube.NodePluginClient(name)
	if err != nil {
		t.Fatal(err)
	}
	unbound, err := kube.ClientAs("system:serviceaccount:tranche-system:tranche-nodeplugin")
	if err != nil {
		t.Fatal(err)
	}
	annotate := func(text any) string { return metadata("annotations", contract.InventoryAnnotation, text) }
	cases := []struct {
		what    string
		as      kubernetes.Interface
		node    string
		patch   string
		through []string
		allowed bool
	}{
		{what: "its own node", as: plugin, node: name, patch: annotate("x"), allowed: true},
		{what: "its own node, again", as: plugin, node: name, patch: annotate("y"), allowed: true},
		{what: "another node", as: plugin, node: other, patch: annotate("x")},
		{what: "another node, something else", as: plugin, node: other, patch: metadata("annotations", "a", "b")},
		{what: "a label of its own node", as: plugin, node: name, patch: metadata("labels", "a", "b")},
		{what: "another annotation of its own node", as: plugin, node: name, patch: metadata("annotations", "a", "b")},
		{what: "another annotation beside it", as: plugin, node: name, patch: `{"metadata":{"annotations":{"tranche.dev/gpus":"z","a":"b"}}}`},
		{what: "a finalizer of its own node", as: plugin, node: name, patch: `{"metadata":{"finalizers":["example.com/keep"]}}`},
		{what: "an owner of its own node", as: plugin, node: name, patch: owned},
		{what: "cordoning its own node", as: plugin, node: name, patch: `{"spec":{"unschedulable":true}}`},
		{what: "with a token that is bound to no node", as: unbound, node: name, patch: annotate("z")},
		{what: "an administrator", as: client, node: name, patch: annotate("z")},
		{what: "an administrator removes it", as: client, node: name, patch: annotate(nil)},
		{what: "an administrator removes it through status", as: client, node: name, patch: annotate(nil), through: []string{"status"}},
		{what: "an administrator labels", as: client, node: name, patch: metadata("labels", "a", "b"), allowed: true},
		{what: "an administrator cordons", as: client, node: name, patch: `{"spec":{"unschedulable":true}}`, allowed: true},
		{what: "an administrator changes the status", as: client, node: name, patch: `{"status":{"capacity":{"example.com/x":"1"}}}`, through: []string{"status"}, allowed: true},
		{what: "the plugin removes it", as: plugin, node: name, patch: annotate(nil), allowed: true},
	}
	for _, tc := range cases { // in order: each sees what the one before has done
		_, err := tc.as.CoreV1().Nodes().Patch(t.Context(), tc.node, types.MergePatchType, []byte(tc.patch), metav1.PatchOptions{}, tc.through...)
		if tc.allowed && err != nil {
			t.Errorf("%s: %v", tc.what, err)
		}
		if !tc.allowed && !apierrors.IsForbidden(err) {
			t.Errorf("%s: error %v, want it forbidden", tc.what, err)
		}
	}
	_, err = client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "policy-c", Annotations: map[string]string{contract.InventoryAnnotation: "x"},
	}}, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("a new node with an inventory: error %v, want it forbidden", err)
	}
}

// owned is a merge patch that has the garbage collector remove the object.
const owned = `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"none","uid":"none"}]}}`

// The policy that holds the extender to what it writes on pods, of which RBAC
// can only allow all.
func TestTheExtenderChangesNothingElseOfPods(t *testing.T) {
	ns := namespace(t, nil)
	const own, foreign = contract.AdmissionGate, "example.com/gate"
	pod := create(t, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "guarded", Namespace: ns, Annotations: map[string]string{"a": "b"}},
		Spec: corev1.PodSpec{
			SchedulerName: "nobody", SchedulingGates: []corev1.PodSchedulingGate{{Name: own}, {Name: foreign}},
			Containers: []corev1.Container{{Name: "main", Image: "example.com/none"}},
		},
	})
	extender, err := kube.ClientAs("system:serviceaccount:tranche-system:tranche-extender")
	if err != nil {
		t.Fatal(err)
	}
	lift := func(gate string) string {
		return `{"spec":{"schedulingGates":[{"$patch":"delete","name":"` + gate + `"}]}}`
	}
	nominate := func(node string) string { return `{"status":{"nominatedNodeName":` + node + `}}` }
	cases := []struct {
		what    string
		as      kubernetes.Interface
		patch   string
		through []string
		allowed bool
	}{
		{what: "another try", as: extender, patch: metadata("annotations", contract.RetryAnnotation, "1"), allowed: true},
		{what: "a nomination", as: extender, patch: nominate(`"a"`), through: []string{"status"}, allowed: true},
		{what: "a nomination taken back", as: extender, patch: nominate("null"), through: []string{"status"}, allowed: true},
		{what: "a plan", as: extender, patch: metadata("annotations", contract.PlanAnnotation, "x")},
		{what: "a plan through status", as: extender, patch: metadata("annotations", contract.PlanAnnotation, "x"), through: []string{"status"}},
		{what: "another annotation", as: extender, patch: metadata("annotations", "a", "c")},
		{what: "another annotation removed", as: extender, patch: metadata("annotations", "a", nil)},
		{what: "another annotation through status", as: extender, patch: metadata("annotations", "a", "c"), through: []string{"status"}},
		{what: "a label", as: extender, patch: metadata("labels", "a", "c")},
		{what: "a finalizer", as: extender, patch: `{"metadata":{"finalizers":["example.com/keep"]}}`},
		{what: "an owner", as: extender, patch: owned},
		{what: "an image", as: extender, patch: `{"spec":{"containers":[{"name":"main","image":"example.com/other"}]}}`},
		{what: "a deadline", as: extender, patch: `{"spec":{"activeDeadlineSeconds":1}}`},
		{what: "a toleration", as: extender, patch: `{"spec":{"tolerations":[{"key":"a","operator":"Exists"}]}}`},
		{what: "a gated pod's nodes", as: extender, patch: `{"spec":{"nodeSelector":{"a":"b"}}}`},
		{what: "the phase", as: extender, patch: `{"status":{"phase":"Failed"}}`, through: []string{"status"}},
		{what: "a condition", as: extender, patch: `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`, through: []string{"status"}},
		{what: "another gate", as: extender, patch: lift(foreign)},
		{what: "its gate with an image", as: extender, patch: `{"spec":{"containers":[{"name":"main","image":"example.com/other"}],"schedulingGates":[{"$patch":"delete","name":"` + own + `"}]}}`},
		{what: "its gate", as: extender, patch: lift(own), allowed: true},
		{what: "a plan by an administrator", as: client, patch: metadata("annotations", contract.PlanAnnotation, "x")},
		{what: "an image by an administrator", as: client, patch: `{"spec":{"containers":[{"name":"main","image":"example.com/other"}]}}`, allowed: true},
		{what: "the phase by an administrator", as: client, patch: `{"status":{"phase":"Failed"}}`, through: []string{"status"}, allowed: true},
		{what: "another gate by an administrator", as: client, patch: lift(foreign), allowed: true},
	}
	for _, tc := range cases { // in order: each sees what the one before has done
		_, err := tc.as.CoreV1().Pods(ns).Patch(t.Context(), pod.Name, types.StrategicMergePatchType, []byte(tc.patch), metav1.PatchOptions{}, tc.through...)
		if tc.allowed && err != nil {
			t.Errorf("%s: %v", tc.what, err)
		}
		if !tc.allowed && !apierrors.IsForbidden(err) {
			t.Errorf("%s: error %v, want it forbidden", tc.what, err)
		}
	}
}

// metadata is a merge patch of one label or annotation; nil removes it.
func metadata(kind, key string, value any) string {
	b, err := json.Marshal(map[string]any{"metadata": map[string]any{kind: map[string]any{key: value}}})
	if err != nil {
		panic(err) // strings always marshal
	}
	return string(b)
}

// POST .../bindings is the older path to the same as pods/NAME/binding.
func TestPlansAreGuardedOnTheOldPathOfBindingsToo(t *testing.T) {
	ns := optedIn(t)
	pod := create(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "waiting", Namespace: ns}, Spec: corev1.PodSpec{
		SchedulerName: "nobody", Containers: []corev1.Container{{Name: "main", Image: "example.com/none"}},
	}})
	bind := func(annotations map[string]string) error {
		return client.CoreV1().RESTClient().Post().Namespace(ns).Resource("bindings").Body(&corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: ns, Annotations: annotations},
			Target:     corev1.ObjectReference{Kind: "Node", Name: "tranche-sim-0"},
		}).Do(t.Context()).Error()
	}
	if err := bind(map[string]string{contract.PlanAnnotation: "x"}); !apierrors.IsForbidden(err) {
		t.Errorf("with a plan: error %v, want it forbidden", err)
	}
	if err := bind(nil); err != nil {
		t.Errorf("without a plan: %v", err)
	}
}

func TestPoliciesCompileWithoutWarnings(t *testing.T) {
	policies, err := client.AdmissionregistrationV1().ValidatingAdmissionPolicies().List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=tranche"})
	if err != nil {
		t.Fatal(err)
	}
	if len(policies.Items) != 4 {
		t.Errorf("%d policies, want 4", len(policies.Items))
	}
	for _, p := range policies.Items {
		eventually(t, p.Name+" is checked", func(ctx context.Context) error {
			got, err := client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(ctx, p.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if got.Status.TypeChecking == nil {
				return fmt.Errorf("status %v", got.Status)
			}
			for _, w := range got.Status.TypeChecking.ExpressionWarnings {
				t.Errorf("%s: %s: %s", p.Name, w.FieldRef, w.Warning)
			}
			return nil
		})
	}
}

func TestQueuesAndGangsAreChecked(t *testing.T) {
	dynamic, err := kube.Dynamic()
	if err != nil {
		t.Fatal(err)
	}
	queue := func(spec map[string]any) error {
		o := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "tranche.dev/v1alpha1", "kind": "Queue", "metadata": map[string]any{"name": "checked"}, "spec": spec,
		}}
		_, err := dynamic.Resource(schema.GroupVersionResource{Group: "tranche.dev", Version: "v1alpha1", Resource: "queues"}).
			Create(t.Context(), o, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	gpus := func(n any) map[string]any { return map[string]any{"deserved": map[string]any{"gpu": n}} }
	cases := map[string]struct {
		spec  map[string]any
		valid bool
	}{
		"nothing said":          {map[string]any{}, true},
		"decimal GPUs":          {gpus("3.5"), true},
		"whole GPUs, a number":  {gpus(int64(4)), true},
		"by model":              {map[string]any{"limit": map[string]any{"gpuModels": map[string]any{"NVIDIA-A30": "2.5"}}}, true},
		"negative GPUs":         {gpus("-1"), false},
		"negative by model":     {map[string]any{"limit": map[string]any{"gpuModels": map[string]any{"NVIDIA-A30": "-2"}}}, false},
		"no number":             {gpus("many"), false},
		"weight 0":              {map[string]any{"weight": int64(0)}, false},
		"its own parent":        {map[string]any{"parent": "checked"}, false},
		"unknown policy":        {map[string]any{"stopPolicy": "Halt"}, false},
		"a duration":            {map[string]any{"reclaim": map[string]any{"delay": "1m30s"}}, true},
		"a negative duration":   {map[string]any{"reclaim": map[string]any{"delay": "-1s"}}, false},
		"a hold of no duration": {map[string]any{"gang": map[string]any{"holdTimeout": "0s"}}, false},
	}
	for name, tc := range cases {
		if err := queue(maps.Clone(tc.spec)); (err == nil) != tc.valid {
			t.Errorf("%s: error %v, valid %t", name, err, tc.valid)
		}
	}
}
