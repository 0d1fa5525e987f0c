package manifests

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/contract"
)

// admitted is an object as the API server stores it, after defaults, or why it
// does not: the same code decides here, CEL rules included.
func admitted(t *testing.T, crd, object string) (map[string]any, []string) {
	t.Helper()
	props, structural := gangSchema(t, crd)
	text, err := yaml.YAMLToJSONStrict([]byte(object))
	if err != nil {
		t.Fatal(err)
	}
	var o map[string]any
	if err := utiljson.Unmarshal(text, &o); err != nil { // whole numbers are integers, as in the API server
		t.Fatal(err)
	}
	defaulting.Default(o, structural)
	validator, _, err := validation.NewSchemaValidator(props)
	if err != nil {
		t.Fatal(err)
	}
	problems := validation.ValidateCustomResource(nil, o, validator)
	problems = append(problems, listtype.ValidateListSetsAndMaps(field.NewPath(""), structural, o)...)
	rules := cel.NewValidator(structural, true, celconfig.PerCallLimit)
	found, _ := rules.Validate(t.Context(), nil, structural, o, nil, celconfig.RuntimeCELCostBudget)
	var texts []string
	for _, p := range append(problems, found...) {
		texts = append(texts, p.Error())
	}
	return o, texts
}

func gangSchema(t *testing.T, file string) (*apiextensions.JSONSchemaProps, *schema.Structural) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "manifests", "crd", file))
	if err != nil {
		t.Fatal(err)
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(text, &crd); err != nil {
		t.Fatal(err)
	}
	props := &apiextensions.JSONSchemaProps{}
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(crd.Spec.Versions[0].Schema.OpenAPIV3Schema, props, nil); err != nil {
		t.Fatal(err)
	}
	structural, err := schema.NewStructural(props)
	if err != nil {
		t.Fatal(err)
	}
	return props, structural
}

func TestGangsAreCheckedAndCompleted(t *testing.T) {
	cases := map[string]struct {
		spec, status string
		// want are parts of the problems.
		want []string
	}{
		"the least":                 {spec: `{minCount: 1}`},
		"everything":                {spec: `{minCount: 100000, queue: q, disruptionMode: All, stalenessGracePeriod: 1m30s, topology: {nodeLabel: topology.kubernetes.io/zone, mode: Required}}`},
		"never stale":               {spec: `{minCount: 1, stalenessGracePeriod: 0s}`},
		"a plain label":             {spec: `{minCount: 1, topology: {nodeLabel: rack}}`},
		"no minCount":               {spec: `{queue: q}`, want: []string{"spec.minCount: Required value"}},
		"minCount 0":                {spec: `{minCount: 0}`, want: []string{"spec.minCount in body should be greater than or equal to 1"}},
		"minCount too large":        {spec: `{minCount: 100001}`, want: []string{"spec.minCount in body should be less than or equal to 100000"}},
		"a mode that is none":       {spec: `{minCount: 1, topology: {nodeLabel: rack, mode: Must}}`, want: []string{`spec.topology.mode: Unsupported value: "Must": supported values: "Required", "Preferred"`}},
		"no key":                    {spec: `{minCount: 1, topology: {mode: Required}}`, want: []string{"spec.topology.nodeLabel: Required value"}},
		"a key that is none":        {spec: `{minCount: 1, topology: {nodeLabel: "a/b/c"}}`, want: []string{`write the key of a node label, such as "topology.kubernetes.io/zone"`}},
		"a key with a value":        {spec: `{minCount: 1, topology: {nodeLabel: "zone=a"}}`, want: []string{"write the key of a node label"}},
		"a negative grace period":   {spec: `{minCount: 1, stalenessGracePeriod: -1s}`, want: []string{`write a duration that is not negative, such as "60s"`}},
		"a status":                  {spec: `{minCount: 4}`, status: `{observedGeneration: 3, phase: Held, ready: 0/4, members: 4, held: 4, bound: 0, running: 0, reasons: [{type: NoPlace, message: m}], placement: [{node: a, pods: [p, q]}, {node: b, pods: [r]}]}`},
		"a node twice":              {spec: `{minCount: 4}`, status: `{placement: [{node: a, pods: [p]}, {node: a, pods: [q]}]}`, want: []string{"status.placement[1]: Duplicate value"}},
		"a pod twice on a node":     {spec: `{minCount: 4}`, status: `{placement: [{node: a, pods: [p, p]}]}`, want: []string{"status.placement[0].pods[1]: Duplicate value"}},
		"a phase that is none":      {spec: `{minCount: 4}`, status: `{phase: Waiting}`, want: []string{`status.phase: Unsupported value: "Waiting"`}},
		"more nodes than allowed":   {spec: `{minCount: 4}`, status: `{placement: [` + strings.Repeat(`{node: a, pods: []}, `, v1alpha1.MaxGangPlacements+1) + `]}`, want: []string{"status.placement: Too many: 513: must have at most 512 items"}},
		"more reasons than allowed": {spec: `{minCount: 4}`, status: `{reasons: [` + strings.Repeat(`{type: T, message: m}, `, v1alpha1.MaxGangReasons+1) + `]}`, want: []string{"status.reasons: Too many: 17: must have at most 16 items"}},
		"a sentence too long":       {spec: `{minCount: 4}`, status: `{reasons: [{type: T, message: ` + strings.Repeat("x", v1alpha1.MaxGangReasonMessage+1) + `}]}`, want: []string{"status.reasons[0].message: Too long"}},
		"more pods than allowed":    {spec: `{minCount: 4}`, status: `{placement: [{node: a, pods: [` + strings.Repeat(`p, `, v1alpha1.MaxGangPlacementPods+1) + `]}]}`, want: []string{"status.placement[0].pods: Too many: 257: must have at most 256 items"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			text := "apiVersion: tranche.dev/v1alpha1\nkind: Gang\nmetadata: {name: g}\nspec: " + tc.spec + "\n"
			if tc.status != "" {
				text += "status: " + tc.status + "\n"
			}
			_, problems := admitted(t, "tranche.dev_gangs.yaml", text)
			if len(tc.want) == 0 && len(problems) > 0 {
				t.Fatalf("refused: %v", problems)
			}
			for _, want := range tc.want {
				if !slices.ContainsFunc(problems, func(p string) bool { return strings.Contains(p, want) }) {
					t.Errorf("problems %v, want %q", problems, want)
				}
			}
		})
	}
}

func TestGangsHaveDefaults(t *testing.T) {
	stored, problems := admitted(t, "tranche.dev_gangs.yaml", "metadata: {name: g}\nspec: {minCount: 2, topology: {nodeLabel: rack}}\n")
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	text, err := json.Marshal(stored["spec"])
	if err != nil {
		t.Fatal(err)
	}
	var got v1alpha1.GangSpec
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	want := v1alpha1.GangSpec{MinCount: 2, DisruptionMode: v1alpha1.DisruptSingle, Topology: &v1alpha1.GangTopology{NodeLabel: "rack", Mode: v1alpha1.TopologyPreferred}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
}

// What contract calls a gang's name and size, the API server takes for a Gang.
func TestGangsCanBeNamedAndSizedAsPodsDeclareThem(t *testing.T) {
	for _, name := range []string{"g", "a.b-1", strings.Repeat("a", 63), strings.Repeat("a", 64)} {
		_, problems := admitted(t, "tranche.dev_gangs.yaml", "metadata: {name: "+name+"}\nspec: {minCount: 1}\n")
		if fits := len(name) <= 63; fits != (len(problems) == 0) {
			t.Errorf("a name of %d characters: %v", len(name), problems)
		}
	}
	props, _ := gangSchema(t, "tranche.dev_gangs.yaml")
	if got := *props.Properties["spec"].Properties["minCount"].Maximum; got != contract.MaxGangMinCount {
		t.Errorf("minCount may be %v, contract says %d", got, contract.MaxGangMinCount)
	}
}

// What "kubectl get gangs" answers; with -o wide also the columns of priority 1.
// The reason comes last: it is a sentence, and would push what follows it off
// the screen.
func TestGangColumnsSayWhyItWaits(t *testing.T) {
	crd := named[*apiextensionsv1.CustomResourceDefinition](t, install(t), "gangs.tranche.dev")
	var narrow, wide []string
	for _, c := range crd.Spec.Versions[0].AdditionalPrinterColumns {
		if c.Priority == 0 {
			narrow = append(narrow, c.Name+" "+c.JSONPath)
		} else {
			wide = append(wide, c.Name+" "+c.JSONPath)
		}
	}
	wantNarrow := []string{"Phase .status.phase", "Ready .status.ready", "Members .status.members", "Queue .spec.queue", "Age .metadata.creationTimestamp", "Reason .status.reasons[0].message"}
	wantWide := []string{"Held .status.held", "Bound .status.bound", "Running .status.running", "Min .spec.minCount"}
	if diff := cmp.Diff([][]string{wantNarrow, wantWide}, [][]string{narrow, wide}); diff != "" {
		t.Errorf("columns (-want +got):\n%s", diff)
	}
}
