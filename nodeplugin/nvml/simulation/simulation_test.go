package simulation_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tranche-dev/tranche/nodeplugin/nvml/models"
	"github.com/tranche-dev/tranche/nodeplugin/nvml/simulation"
)

func TestParseIsTheInverseOfFormat(t *testing.T) {
	numa := 1
	f := simulation.Machine("A100-80GB", "A30-24GB")
	f.Failure = "ERROR_UNKNOWN"
	f.GPUs[1] = simulation.GPU{
		Model: "A30-24GB", UUID: "GPU-01234567-89ab-cdef-0123-456789abcdef", NUMA: &numa, NVLinks: 12, XIDs: []uint64{13, 79},
		Lost: true, Gone: true, MIG: true, RecoveryAction: 1, UsedMiB: 5, Processes: []simulation.Process{{PID: 7, MemoryMiB: 9}},
	}
	text, err := f.Format()
	if err != nil {
		t.Fatal(err)
	}
	got, err := simulation.Parse(text, "n")
	if err != nil {
		t.Fatal(err)
	}
	f.GPUs[0].UUID = models.UUID("n", 0)
	if diff := cmp.Diff(f, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParseRefusesWithASentence(t *testing.T) {
	cases := map[string]struct{ text, want string }{
		"a file being written":  {"", `no key "gpus"`},
		"an unknown key":        {"gpus: []\ngups: 1", "gups"},
		"an unknown model":      {"gpus: [{model: A1000}]", "write one of A100-40GB"},
		"a bad uuid":            {"gpus: [{model: T4-16GB, uuid: x}]", "write it as NVML does"},
		"one uuid twice":        {"gpus: [{model: T4-16GB, uuid: GPU-01234567-89ab-cdef-0123-456789abcdef}, {model: T4-16GB, uuid: GPU-01234567-89ab-cdef-0123-456789abcdef}]", "has the uuid of gpus[0]"},
		"more memory than fits": {"gpus: [{model: T4-16GB, usedMiB: 15000, processes: [{pid: 1, memoryMiB: 361}]}]", "15361 MiB in use of 15360"},
		"a failure in words":    {"failure: broken\ngpus: []", "ERROR_DRIVER_NOT_LOADED"},
		"not YAML":              {"gpus: [", "simulation file"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := simulation.Parse([]byte(tc.text), "n")
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Parse = %v; want %q in it", err, tc.want)
			}
		})
	}
}

func TestParseTakesAMachineWithoutGPUs(t *testing.T) {
	f, err := simulation.Parse([]byte("gpus: []"), "n")
	if err != nil || len(f.GPUs) != 0 || f.Driver != simulation.DefaultDriver {
		t.Errorf("Parse = %+v, %v", f, err)
	}
}
