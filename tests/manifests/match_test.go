package manifests

import (
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/cel/environment"
	"sigs.k8s.io/yaml"
)

// The validating webhook must not be asked about updates that are none of its
// business: while it is down, they would fail. The API server's own code decides.
func TestValidatingWebhookIsAskedOnlyWhereItHasASay(t *testing.T) {
	hook := named[*admissionregistrationv1.ValidatingWebhookConfiguration](t, install(t), "tranche").Webhooks[0]
	var expressions []cel.ExpressionAccessor
	for _, c := range hook.MatchConditions {
		expressions = append(expressions, &matchconditions.MatchCondition{Name: c.Name, Expression: c.Expression})
	}
	compiler := cel.NewConditionCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	matcher := matchconditions.NewMatcher(
		compiler.CompileCondition(expressions, cel.OptionalVariableDeclarations{HasAuthorizer: true}, environment.NewExpressions),
		hook.FailurePolicy, "webhook", "validating", hook.Name)
	cases := map[string]struct {
		// old is empty for a new pod.
		old, pod    string
		subresource string
		want        bool
	}{
		"a new pod":                     {pod: `{}`, want: true},
		"nothing":                       {old: `{}`, pod: `{}`},
		"finalizers":                    {old: `{finalizers: [a], labels: {a: b}}`, pod: `{labels: {a: b}}`},
		"a label":                       {old: `{labels: {a: b}}`, pod: `{labels: {a: c}}`},
		"the first label":               {old: `{}`, pod: `{labels: {a: c}}`},
		"an annotation of others":       {old: `{annotations: {a: b}}`, pod: `{annotations: {c: d}}`},
		"an annotation changed":         {old: `{annotations: {tranche.dev/plan: b}}`, pod: `{annotations: {tranche.dev/plan: c}}`, want: true},
		"an annotation added":           {old: `{}`, pod: `{annotations: {tranche.dev/gang-min-count: "4"}}`, want: true},
		"an annotation removed":         {old: `{annotations: {tranche.dev/plan: b}}`, pod: `{}`, want: true},
		"an annotation that stays":      {old: `{annotations: {tranche.dev/plan: b}}`, pod: `{labels: {a: b}, annotations: {tranche.dev/plan: b}}`},
		"the gang changed":              {old: `{labels: {tranche.dev/gang: a}}`, pod: `{labels: {tranche.dev/gang: b}}`, want: true},
		"the gang left":                 {old: `{labels: {tranche.dev/gang: a}}`, pod: `{}`, want: true},
		"a gang joined":                 {old: `{labels: {a: b}}`, pod: `{labels: {tranche.dev/gang: a}}`, want: true},
		"the queue changed":             {old: `{labels: {tranche.dev/queue: a}}`, pod: `{labels: {tranche.dev/queue: b}}`, want: true},
		"the queue left":                {old: `{labels: {tranche.dev/queue: a, b: c}}`, pod: `{labels: {b: c}}`, want: true},
		"a queue joined":                {old: `{}`, pod: `{labels: {tranche.dev/queue: a}}`, want: true},
		"the queue stays":               {old: `{labels: {tranche.dev/queue: a}}`, pod: `{labels: {tranche.dev/queue: a, b: c}}`},
		"the gang stays":                {old: `{finalizers: [a], labels: {tranche.dev/gang: a}}`, pod: `{labels: {tranche.dev/gang: a, b: c}}`},
		"the status, with nothing":      {old: `{labels: {tranche.dev/gang: a}}`, pod: `{labels: {tranche.dev/gang: a}}`, subresource: "status"},
		"the status, with another gang": {old: `{labels: {tranche.dev/gang: a}}`, pod: `{}`, subresource: "status", want: true},
		"a debugging container":         {old: `{}`, pod: `{}`, subresource: "ephemeralcontainers", want: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			pod := func(metadata string) *corev1.Pod {
				p := &corev1.Pod{}
				if err := yaml.UnmarshalStrict([]byte("metadata: "+metadata), p); err != nil {
					t.Fatal(err)
				}
				return p
			}
			gvk := corev1.SchemeGroupVersion.WithKind("Pod")
			operation, object := admission.Create, pod(tc.pod)
			var old runtime.Object
			if tc.old != "" {
				operation, old = admission.Update, pod(tc.old)
			}
			attributes := &admission.VersionedAttributes{
				Attributes: admission.NewAttributesRecord(object, old, gvk, "demo", "p", corev1.SchemeGroupVersion.WithResource("pods"),
					tc.subresource, operation, nil, false, &user.DefaultInfo{Name: "jane"}),
				VersionedKind: gvk,
			}
			attributes.VersionedObject.Set(object)
			if old != nil {
				attributes.VersionedOldObject.Set(old)
			}
			result := matcher.Match(t.Context(), attributes, nil, nil)
			if result.Error != nil || result.Matches != tc.want {
				t.Errorf("asked %t, want %t (error %v)", result.Matches, tc.want, result.Error)
			}
		})
	}
}
