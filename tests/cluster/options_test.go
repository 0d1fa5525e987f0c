package cluster

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func lookup(env map[string]string) func(string) (string, bool) {
	return func(key string) (string, bool) { v, ok := env[key]; return v, ok }
}

func TestOptionsFromEnvironment(t *testing.T) {
	t.Parallel()
	got, err := OptionsFromEnv(lookup(map[string]string{
		"SIM_NODES": "7", "SIM_GPUS": "", "SIM_MODELS": "T4-16GB, H100-80GB,", "REAL_NODE": "0", "REAL_GPUS": "A30-24GB",
	}))
	if err != nil {
		t.Fatal(err)
	}
	want := Options{SimNodes: 7, SimGPUs: 8, SimModels: []string{"T4-16GB", "H100-80GB"}, RealGPUs: []string{"A30-24GB"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("options (-want +got):\n%s", diff)
	}
	if _, err := OptionsFromEnv(lookup(map[string]string{"SIM_NODES": "many", "REAL_NODE": "perhaps"})); err == nil ||
		!strings.Contains(err.Error(), "SIM_NODES") || !strings.Contains(err.Error(), "REAL_NODE") {
		t.Errorf("bad variables: %v; want both named", err)
	}
}

func TestValidateNamesEveryProblem(t *testing.T) {
	t.Parallel()
	err := Options{SimNodes: -1, SimGPUs: 65, SimModels: []string{"GTX-970"}, RealGPUs: []string{"Voodoo2"}}.validate()
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"SIM_NODES is -1", "SIM_GPUS is 65", `"GTX-970" is not known`, `"Voodoo2" is not known`, "A100-80GB"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
	if err := (Options{SimNodes: 1, SimGPUs: 1}).validate(); err == nil || !strings.Contains(err.Error(), "SIM_MODELS is empty") {
		t.Errorf("nodes without models: %v", err)
	}
	o := DefaultOptions()
	o.RealNode = false
	if err := o.validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
}
