package inventory_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tranche-dev/tranche/nodeplugin/health"
	"github.com/tranche-dev/tranche/nodeplugin/inventory"
	"github.com/tranche-dev/tranche/nodeplugin/nvml"
	"github.com/tranche-dev/tranche/pkg/contract"
)

func TestBuildSaysWhyAGPUMayNotBeUsed(t *testing.T) {
	s := health.State{Known: true, Driver: "1", GPUs: []health.GPU{
		{GPU: nvml.GPU{UUID: "a", Index: 0, Product: "NVIDIA H100 80GB HBM3", Memory: 10, NUMA: 1}, Healthy: true},
		{GPU: nvml.GPU{UUID: "b", Index: 1, Product: "NVIDIA A30", Memory: 20, NUMA: -1}, Reason: "XID 79"},
	}}
	want := contract.Inventory{SharesPerGPU: 100, GPUs: []contract.GPU{
		{UUID: "a", Index: 0, Model: "NVIDIA-H100-80GB-HBM3", MemoryMiB: 10, Driver: "1", Healthy: true, NUMA: 1, Isolation: "none"},
		{UUID: "b", Index: 1, Model: "NVIDIA-A30", MemoryMiB: 20, Driver: "1", Reason: "XID 79", NUMA: -1, Isolation: "none"},
	}}
	if diff := cmp.Diff(want, inventory.Build(s, 100, contract.IsolationNone, "")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	want.GPUs[0].Healthy, want.GPUs[0].Reason = false, "another plugin"
	got := inventory.Build(s, 100, contract.IsolationNone, "another plugin")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("with an objection (-want +got):\n%s", diff)
	}
	want.GPUs[0].Reason, want.GPUs[1].Reason = "no driver", "no driver"
	if diff := cmp.Diff(want, inventory.Unfit(got, "no driver")); diff != "" {
		t.Errorf("unfit (-want +got):\n%s", diff)
	}
	if got.GPUs[1].Reason != "XID 79" {
		t.Error("Unfit changed its argument")
	}
}
