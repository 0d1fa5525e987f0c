package nodeplugin_test

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/tranche-dev/tranche/nodeplugin"
)

func TestDefaultsAreValidAndEveryProblemIsNamedAtOnce(t *testing.T) {
	o := nodeplugin.NewOptions()
	o.NodeName = "n"
	o.AddFlags(pflag.NewFlagSet("x", pflag.ContinueOnError))
	if err := o.Validate(); err != nil {
		t.Errorf("defaults: %v", err)
	}
	bad := nodeplugin.Options{
		NVML: "amd", PodSource: "x", Isolation: "mps", KubeletRootDir: "a", DevicePluginDir: "/" + strings.Repeat("d", 100), CDIDir: "c", StateDir: "s",
		NVIDIACDIKind: "gpu", HealthRecoveryPeriod: -time.Second, ApplicationXIDs: []string{"x"}, MetricsBindAddress: "8083",
		ShareResource: "gpu", GPUResource: "gpu", SharesPerGPU: 1001, SimulationFile: "f",
	}
	err := bad.Validate()
	if err == nil {
		t.Fatal("valid")
	}
	for _, want := range []string{
		"--node-name", "--nvml=", "--simulation-file", "--pod-source", "--isolation", "--kubelet-root-dir", "--cdi-dir", "--state-dir",
		"--device-plugin-dir", "--nvidia-cdi-kind", "--health-check-interval", "--health-recovery-period", "--application-xids",
		"--metrics-bind-address", "--share-resource=", "--gpu-resource=", "are both gpu", "--shares-per-gpu",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("not named: %s", want)
		}
	}
}
