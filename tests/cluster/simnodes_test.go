package cluster

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tranche-dev/tranche/pkg/contract"
)

func TestModelsAreDealtOutInTurn(t *testing.T) {
	t.Parallel()
	nodes, err := simNodes(Options{SimNodes: 3, SimGPUs: 2, SimModels: []string{"A100-80GB", "A30-24GB"}})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	seen := map[contract.GPUUUID]bool{}
	for _, n := range nodes {
		inv, err := contract.ParseInventory(n.inventory)
		if err != nil {
			t.Fatal(err)
		}
		for i, g := range inv.GPUs {
			got[n.name] += g.Model + " "
			if seen[g.UUID] || g.Index != i || !g.Healthy {
				t.Errorf("%s: GPU %+v", n.name, g)
			}
			seen[g.UUID] = true
		}
		if q := n.capacity["nvidia.com/gpu-share"]; q.Value() != 200 {
			t.Errorf("%s has %d shares", n.name, q.Value())
		}
		if q := n.capacity["nvidia.com/gpu"]; q.Value() != 2 {
			t.Errorf("%s has %d GPUs", n.name, q.Value())
		}
	}
	want := map[string]string{
		"tranche-sim-0": "NVIDIA-A100-SXM4-80GB NVIDIA-A100-SXM4-80GB ",
		"tranche-sim-1": "NVIDIA-A30 NVIDIA-A30 ",
		"tranche-sim-2": "NVIDIA-A100-SXM4-80GB NVIDIA-A100-SXM4-80GB ",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("models (-want +got):\n%s", diff)
	}
	again, err := simNodes(Options{SimNodes: 3, SimGPUs: 2, SimModels: []string{"A100-80GB", "A30-24GB"}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range nodes {
		if nodes[i].inventory != again[i].inventory {
			t.Errorf("the inventory of %s differs from one Up to the next", nodes[i].name)
		}
	}
}

func TestNodesWithoutGPUsOfferNone(t *testing.T) {
	t.Parallel()
	nodes, err := simNodes(Options{SimNodes: 1, SimModels: []string{"T4-16GB"}})
	if err != nil {
		t.Fatal(err)
	}
	for r := range nodes[0].capacity {
		if strings.HasPrefix(string(r), "nvidia.com/") {
			t.Errorf("it offers %s", r)
		}
	}
	if inv, err := contract.ParseInventory(nodes[0].inventory); err != nil || len(inv.GPUs) != 0 {
		t.Errorf("inventory %q: %v", nodes[0].inventory, err)
	}
}

func TestNodesOfAListAreAsListed(t *testing.T) {
	t.Parallel()
	list := []SimNode{{Name: "odd", MilliCPU: 1500, Memory: 3 << 30, Inventory: contract.Inventory{SharesPerGPU: 100, GPUs: []contract.GPU{
		{UUID: "GPU-odd-0", Model: "G2", MemoryMiB: 100, Healthy: true},
	}}}}
	nodes, err := simNodes(Options{SimNodes: 3, SimGPUs: 2, SimModels: []string{"T4-16GB"}, SimList: list})
	if err != nil {
		t.Fatal(err)
	}
	if len(nodes) != 1 || nodes[0].name != "odd" {
		t.Fatalf("nodes %+v, want the one of the list", nodes)
	}
	want := map[string]string{"cpu": "1500m", "memory": "3Gi", "nvidia.com/gpu": "1", "nvidia.com/gpu-share": "100"}
	got := map[string]string{}
	for r, q := range nodes[0].capacity {
		if _, ok := want[string(r)]; ok {
			got[string(r)] = q.String()
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("capacity (-want +got):\n%s", diff)
	}
	if inv, err := contract.ParseInventory(nodes[0].inventory); err != nil || len(inv.GPUs) != 1 || inv.GPUs[0].Model != "G2" {
		t.Errorf("inventory %q: %v", nodes[0].inventory, err)
	}
}
