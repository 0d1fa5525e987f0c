package manifests

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/contract"
)

func TestObjectsAreInTheReleaseNamespaceAndLabelled(t *testing.T) {
	for name, values := range variants {
		t.Run(name, func(t *testing.T) {
			for _, o := range render(t, values...) {
				if ns := o.GetNamespace(); ns != "" && ns != namespace {
					t.Errorf("%T %s is in namespace %s", o, o.GetName(), ns)
				}
				if got := o.GetLabels()["app.kubernetes.io/instance"]; got != "tranche" {
					t.Errorf("%T %s has the instance label %q, so uninstalling by label misses it", o, o.GetName(), got)
				}
			}
		})
	}
}

func TestInstallYAMLHasEverything(t *testing.T) {
	all := install(t)
	for _, crd := range []string{"queues.tranche.dev", "gangs.tranche.dev"} {
		named[*apiextensionsv1.CustomResourceDefinition](t, all, crd)
	}
	if ns := named[*corev1.Namespace](t, all, namespace); ns.Labels["pod-security.kubernetes.io/enforce"] != "privileged" {
		t.Error("the namespace does not allow the node plugin's host paths")
	}
	named[*v1alpha1.Queue](t, all, "default")
	for _, account := range []string{"tranche-extender", "tranche-webhook", "tranche-nodeplugin"} {
		named[*corev1.ServiceAccount](t, all, account)
	}
	for _, secret := range of[*corev1.Secret](all) {
		if len(secret.Data)+len(secret.StringData) > 0 {
			t.Errorf("secret %s ships contents", secret.Name)
		}
	}
}

func TestServicesFindTheirPods(t *testing.T) {
	all := install(t)
	for _, service := range of[*corev1.Service](all) {
		var pods []string
		for _, tmpl := range templates(all) {
			if !labels.SelectorFromSet(service.Spec.Selector).Matches(labels.Set(tmpl.Labels)) {
				continue
			}
			pods = append(pods, tmpl.owner)
			for _, p := range service.Spec.Ports {
				if !slices.ContainsFunc(tmpl.Spec.Containers[0].Ports, func(c corev1.ContainerPort) bool { return c.Name == p.TargetPort.String() }) {
					t.Errorf("service %s: no port named %s in %s", service.Name, p.TargetPort.String(), tmpl.owner)
				}
			}
		}
		if diff := cmp.Diff([]string{service.Name}, pods); diff != "" {
			t.Errorf("service %s selects (-want +got):\n%s", service.Name, diff)
		}
	}
	for _, pdb := range of[*policyv1.PodDisruptionBudget](all) {
		selector, err := metav1.LabelSelectorAsSelector(pdb.Spec.Selector)
		if err != nil {
			t.Fatal(err)
		}
		if !selector.Matches(labels.Set(named[*appsv1.Deployment](t, all, pdb.Name).Spec.Template.Labels)) {
			t.Errorf("the disruption budget %s selects nothing", pdb.Name)
		}
	}
}

func TestWebhooksSeeOptedInNamespacesOnly(t *testing.T) {
	all := install(t)
	mutating := named[*admissionregistrationv1.MutatingWebhookConfiguration](t, all, "tranche").Webhooks
	validating := named[*admissionregistrationv1.ValidatingWebhookConfiguration](t, all, "tranche").Webhooks
	if len(mutating) != 1 || len(validating) != 1 {
		t.Fatalf("%d mutating and %d validating webhooks, want one each", len(mutating), len(validating))
	}
	m, v := mutating[0], validating[0]
	if *m.ReinvocationPolicy != admissionregistrationv1.IfNeededReinvocationPolicy {
		t.Errorf("reinvocationPolicy %s, want IfNeeded", *m.ReinvocationPolicy)
	}
	if *m.ClientConfig.Service.Path != "/mutate-pods" || *v.ClientConfig.Service.Path != "/validate-pods" {
		t.Errorf("paths %s and %s", *m.ClientConfig.Service.Path, *v.ClientConfig.Service.Path)
	}
	for name, w := range map[string]struct {
		policy   *admissionregistrationv1.FailurePolicyType
		match    *admissionregistrationv1.MatchPolicyType
		effects  *admissionregistrationv1.SideEffectClass
		timeout  *int32
		selector *metav1.LabelSelector
	}{
		"mutating":   {m.FailurePolicy, m.MatchPolicy, m.SideEffects, m.TimeoutSeconds, m.NamespaceSelector},
		"validating": {v.FailurePolicy, v.MatchPolicy, v.SideEffects, v.TimeoutSeconds, v.NamespaceSelector},
	} {
		t.Run(name, func(t *testing.T) {
			if *w.policy != admissionregistrationv1.Fail || *w.match != admissionregistrationv1.Equivalent ||
				*w.effects != admissionregistrationv1.SideEffectClassNone || *w.timeout > 10 {
				t.Errorf("failurePolicy %s, matchPolicy %s, sideEffects %s, timeoutSeconds %d", *w.policy, *w.match, *w.effects, *w.timeout)
			}
			selector, err := metav1.LabelSelectorAsSelector(w.selector)
			if err != nil {
				t.Fatal(err)
			}
			cases := map[string]struct {
				namespace string
				label     string
				want      bool
			}{
				"opted in":                  {"team-a", contract.InjectEnabled, true},
				"not labelled":              {"team-a", "", false},
				"label with another value":  {"team-a", "disabled", false},
				"kube-system, labelled":     {"kube-system", contract.InjectEnabled, false},
				"Tranche's own, labelled":   {namespace, contract.InjectEnabled, false},
				"kube-system, not labelled": {"kube-system", "", false},
			}
			for name, tc := range cases {
				set := labels.Set{"kubernetes.io/metadata.name": tc.namespace}
				if tc.label != "" {
					set[contract.InjectLabel] = tc.label
				}
				if got := selector.Matches(set); got != tc.want {
					t.Errorf("%s: the webhook is called: %t, want %t", name, got, tc.want)
				}
			}
		})
	}
}

func TestPoliciesTrustTheServiceAccountsOfTheRelease(t *testing.T) {
	all := decode(t, mustRender(t, "team-gpu", "names.extender=ex", "names.nodePlugin=np", "names.admission=guard"))
	want := map[string]string{
		"guard-pod-plan":      "", // once written, a plan is nobody's to change
		"guard-binding-plan":  "system:serviceaccount:team-gpu:ex",
		"guard-node-gpus":     "system:serviceaccount:team-gpu:np",
		"guard-extender-pods": "system:serviceaccount:team-gpu:ex",
	}
	for policy, user := range want {
		p := named[*admissionregistrationv1.ValidatingAdmissionPolicy](t, all, policy)
		text := ""
		for _, c := range p.Spec.MatchConditions {
			text += c.Expression + "\n"
		}
		for _, v := range p.Spec.Variables {
			text += v.Expression + "\n"
		}
		for _, v := range p.Spec.Validations {
			text += v.Expression + "\n"
			if v.Message == "" || strings.Contains(v.Message, "\n") {
				t.Errorf("%s: the message %q is not one line", policy, v.Message)
			}
		}
		names := 0
		if user != "" {
			names = 1
		}
		if user != "" && !strings.Contains(text, "'"+user+"'") || strings.Count(text, "system:serviceaccount:") != names {
			t.Errorf("%s is not about the account %q alone:\n%s", policy, user, text)
		}
		if *p.Spec.FailurePolicy != admissionregistrationv1.Fail {
			t.Errorf("%s: failurePolicy %s", policy, *p.Spec.FailurePolicy)
		}
		b := named[*admissionregistrationv1.ValidatingAdmissionPolicyBinding](t, all, policy)
		if b.Spec.PolicyName != policy || !slices.Equal(b.Spec.ValidationActions, []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny}) {
			t.Errorf("binding %s: policy %s, actions %v", b.Name, b.Spec.PolicyName, b.Spec.ValidationActions)
		}
	}
}

func mustRender(t *testing.T, inNamespace string, values ...string) string {
	t.Helper()
	args := templateArgs(values...)
	args[slices.Index(args, "--namespace")+1] = inNamespace
	text, err := helm(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestResourceNamesReachEveryProgram(t *testing.T) {
	all := render(t, "resources.share=example.com/share", "resources.gpu=example.com/gpu", "resources.sharesPerGPU=10", "defaultQueue.name=main")
	for _, tmpl := range templates(all) {
		for _, flag := range []string{"--share-resource=example.com/share", "--gpu-resource=example.com/gpu", "--shares-per-gpu=10"} {
			if !slices.Contains(tmpl.Spec.Containers[0].Args, flag) {
				t.Errorf("%s is run without %s: %v", tmpl.owner, flag, tmpl.Spec.Containers[0].Args)
			}
		}
	}
	if args := named[*appsv1.Deployment](t, all, "tranche-webhook").Spec.Template.Spec.Containers[0].Args; !slices.Contains(args, "--default-queue=main") {
		t.Errorf("webhook: %v", args)
	}
	named[*v1alpha1.Queue](t, all, "main")
}

func TestValuesSwitchPartsOnAndOff(t *testing.T) {
	cases := map[string]struct {
		values []string
		// kinds counts objects of kinds that differ from the defaults.
		kinds map[string]int
	}{
		"no node plugin":   {[]string{"nodePlugin.enabled=false"}, map[string]int{"DaemonSet": 0}},
		"no policies":      {[]string{"admissionPolicies.enabled=false"}, map[string]int{"ValidatingAdmissionPolicy": 0, "ValidatingAdmissionPolicyBinding": 0}},
		"no queue":         {[]string{"defaultQueue.create=false"}, map[string]int{"Queue": 0}},
		"namespace":        {[]string{"namespace.create=true"}, map[string]int{"Namespace": 1}},
		"pod monitors":     {[]string{"monitoring.podMonitor=true"}, map[string]int{"PodMonitor": 3}},
		"service monitors": {[]string{"monitoring.serviceMonitor=true"}, map[string]int{"ServiceMonitor": 2}},
		// The webhook then neither makes certificates nor may touch a Secret.
		"cert-manager":        {[]string{"certManager.enabled=true"}, map[string]int{"Certificate": 1, "Issuer": 1, "Secret": 1, "Role": 1, "RoleBinding": 1}},
		"cert-manager issuer": {[]string{"certManager.enabled=true", "certManager.issuerRef.name=ca"}, map[string]int{"Certificate": 1, "Secret": 1, "Role": 1, "RoleBinding": 1}},
	}
	defaults := kinds(render(t))
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			want := maps.Clone(defaults)
			for kind, n := range tc.kinds {
				want[kind] = n
				if n == 0 {
					delete(want, kind)
				}
			}
			if diff := cmp.Diff(want, kinds(render(t, tc.values...))); diff != "" {
				t.Errorf("objects by kind (-want +got):\n%s", diff)
			}
		})
	}
}

func kinds(all objects) map[string]int {
	count := map[string]int{}
	for _, o := range all {
		count[o.GetObjectKind().GroupVersionKind().Kind]++
	}
	return count
}

func TestCertManagerTakesOverTheWebhooksCertificate(t *testing.T) {
	all := render(t, "certManager.enabled=true")
	var certificate *unstructured.Unstructured
	for _, o := range of[*unstructured.Unstructured](all) {
		if o.GetKind() == "Certificate" {
			certificate = o
		}
	}
	if certificate == nil {
		t.Fatal("no Certificate")
	}
	secret, _, err := unstructured.NestedString(certificate.Object, "spec", "secretName")
	if err != nil {
		t.Fatal(err)
	}
	pod := named[*appsv1.Deployment](t, all, "tranche-webhook").Spec.Template.Spec
	if !slices.Contains(pod.Containers[0].Args, "--self-signed=false") || pod.Volumes[0].Secret == nil || pod.Volumes[0].Secret.SecretName != secret {
		t.Errorf("the webhook does not serve cert-manager's Secret %s: %v %v", secret, pod.Containers[0].Args, pod.Volumes)
	}
	want := namespace + "/" + certificate.GetName()
	for _, o := range []metav1.Object{
		named[*admissionregistrationv1.MutatingWebhookConfiguration](t, all, "tranche"),
		named[*admissionregistrationv1.ValidatingWebhookConfiguration](t, all, "tranche"),
	} {
		if got := o.GetAnnotations()["cert-manager.io/inject-ca-from"]; got != want {
			t.Errorf("CA from %q, want %q", got, want)
		}
	}
}
