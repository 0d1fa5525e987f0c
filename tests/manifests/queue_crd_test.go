package manifests

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
)

func TestQueuesAreChecked(t *testing.T) {
	cases := map[string]struct {
		spec string
		// want is part of the problem, empty if there is none.
		want string
	}{
		"nothing":         {`{}`, ""},
		"decimals":        {`{deserved: {gpu: "3.5", cpu: 500m, memory: 64Gi, gpuModels: {A: "0.5", B: 2}}, limit: {gpu: 8}}`, ""},
		"an exponent":     {`{deserved: {gpu: "1e2"}}`, ""},
		"a time to run":   {`{reclaim: {delay: 30s, minRuntime: 10m}}`, ""},
		"a negative time": {`{reclaim: {minRuntime: -1s}}`, `write a duration that is not negative, such as "10m"`},
		"negative":        {`{deserved: {gpu: "-1"}}`, `write a number of GPUs that is not negative, such as "3.5"`},
		// Read as they are, these would keep a program busy for minutes. That this
		// test ends says that the API server does not read them.
		"tiny":                 {`{deserved: {gpu: "1e-999999999"}}`, "write a number of GPUs"},
		"huge":                 {`{limit: {gpu: "1E999999999"}}`, "write a number of GPUs"},
		"tiny number of cores": {`{limit: {cpu: "1e-999999999"}}`, "write a number of cores"},
		"tiny memory":          {`{limit: {memory: "1e-999999999"}}`, "write an amount of memory"},
		"tiny by model":        {`{limit: {gpuModels: {A: "1e-999999999"}}}`, "write numbers of GPUs"},
		"exponent by model":    {`{limit: {gpuModels: {A: "1E3"}}}`, "write numbers of GPUs"},
		"negative by model":    {`{limit: {gpuModels: {A: "1", B: "-1"}}}`, "write numbers of GPUs"},
		"negative integer":     {`{limit: {gpuModels: {A: -1}}}`, "write numbers of GPUs"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, problems := admitted(t, "tranche.dev_queues.yaml", "metadata: {name: q}\nspec: "+tc.spec+"\n")
			if tc.want == "" && len(problems) > 0 {
				t.Errorf("refused: %v", problems)
			}
			if tc.want != "" && !slices.ContainsFunc(problems, func(p string) bool { return strings.Contains(p, tc.want) }) {
				t.Errorf("problems %v, want %q", problems, tc.want)
			}
		})
	}
}

func TestQueuesHaveDefaults(t *testing.T) {
	stored, problems := admitted(t, "tranche.dev_queues.yaml", "metadata: {name: q}\n")
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	text, err := json.Marshal(stored["spec"])
	if err != nil {
		t.Fatal(err)
	}
	got := v1alpha1.QueueSpec{Reclaim: v1alpha1.ReclaimPolicy{MinRuntime: metav1.Duration{Duration: time.Hour}}} // to be replaced
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	want := v1alpha1.QueueSpec{
		Weight: 1, Reclaim: v1alpha1.ReclaimPolicy{Policy: v1alpha1.ReclaimAny}, StopPolicy: v1alpha1.StopNone,
		Admission: v1alpha1.AdmissionAuto, WhenFull: v1alpha1.WhenFullHold,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
}

// What "kubectl get queues" answers; with -o wide also the columns of priority 1.
func TestQueueColumnsSayWhyNothingStarts(t *testing.T) {
	crd := named[*apiextensionsv1.CustomResourceDefinition](t, install(t), "queues.tranche.dev")
	var narrow []string
	for _, c := range crd.Spec.Versions[0].AdditionalPrinterColumns {
		if c.Priority == 0 {
			narrow = append(narrow, c.Name+" "+c.JSONPath)
		}
	}
	want := []string{
		"Parent .spec.parent", "Weight .spec.weight", "Deserved .spec.deserved.gpu", "Limit .status.effectiveLimit.gpu",
		"Allocated .status.allocated.gpu", "FairShare .status.fairShare.gpu", "Pending .status.pendingGangs",
		`Status .status.conditions[?(@.type=="Ready")].reason`, "Age .metadata.creationTimestamp",
	}
	if diff := cmp.Diff(want, narrow); diff != "" {
		t.Errorf("columns (-want +got):\n%s", diff)
	}
}
