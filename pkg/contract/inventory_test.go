package contract_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

func TestInventoryIsTheJSONOfTheDesign(t *testing.T) {
	inv := contract.Inventory{SharesPerGPU: 100, GPUs: []contract.GPU{
		{
			UUID: "GPU-a", Index: 0, Model: "NVIDIA-A100-SXM4-80GB", MemoryMiB: 81920, Driver: "580.65.06", Healthy: true, NUMA: 0,
			Links: []contract.Link{{To: 1, Type: contract.LinkNVLink, Count: 12}}, Isolation: contract.IsolationCgroup,
		},
		{UUID: "GPU-b", Index: 1, Model: "NVIDIA-A30", MemoryMiB: 24576, Driver: "580.65.06", Reason: "XID 79", NUMA: -1, Isolation: contract.IsolationNone},
	}}
	want := `{"v":1,"sharesPerGPU":100,"gpus":[` +
		`{"uuid":"GPU-a","index":0,"model":"NVIDIA-A100-SXM4-80GB","memoryMiB":81920,"driver":"580.65.06","healthy":true,"numa":0,"links":[{"to":1,"type":"nvlink","count":12}],"isolation":"cgroup"},` +
		`{"uuid":"GPU-b","index":1,"model":"NVIDIA-A30","memoryMiB":24576,"driver":"580.65.06","healthy":false,"reason":"XID 79","numa":-1,"isolation":"none"}]}`
	got, err := inv.Format()
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("Format: %v (-want +got):\n%s", err, diff)
	}
	if !inv.GPUs[0].Isolation.Enforced() || inv.GPUs[1].Isolation.Enforced() {
		t.Error("Enforced must be true of cgroup and false of none")
	}
}

func TestParseInventoryRefuses(t *testing.T) {
	gpu := func(s string) string { return `{"v":1,"sharesPerGPU":100,"gpus":[` + s + `]}` }
	good := `{"uuid":"GPU-a","memoryMiB":1}`
	cases := map[string]struct{ text, want string }{
		"nothing":               {text: "", want: "unexpected end"},
		"no JSON":               {text: "GPU-a", want: "invalid character"},
		"text behind":           {text: gpu(good) + "x", want: "invalid character"},
		"another version":       {text: `{"v":2,"sharesPerGPU":100}`, want: "of different releases"},
		"no version":            {text: `{"sharesPerGPU":100}`, want: "of different releases"},
		"no shares":             {text: `{"v":1}`, want: "sharesPerGPU 0 is not between 1 and 1000"},
		"too many shares":       {text: `{"v":1,"sharesPerGPU":1001}`, want: "sharesPerGPU 1001 is not between 1 and 1000"},
		"no UUID":               {text: gpu(`{"memoryMiB":1}`), want: `gpus[0] has uuid ""`},
		"a UUID with separator": {text: gpu(`{"uuid":"a::b","memoryMiB":1}`), want: `gpus[0] has uuid "a::b"`},
		"a UUID with a space":   {text: gpu(`{"uuid":"a b","memoryMiB":1}`), want: `gpus[0] has uuid "a b"`},
		"a UUID twice":          {text: gpu(good + "," + good), want: "uuid GPU-a appears twice"},
		"no memory":             {text: gpu(`{"uuid":"GPU-a"}`), want: "GPU GPU-a has memoryMiB 0"},
		"negative memory":       {text: gpu(`{"uuid":"GPU-a","memoryMiB":-1}`), want: "GPU GPU-a has memoryMiB -1"},
		"too much memory":       {text: gpu(`{"uuid":"GPU-a","memoryMiB":1073741825}`), want: "GPU GPU-a has memoryMiB 1073741825"},
		"memory as text":        {text: gpu(`{"uuid":"GPU-a","memoryMiB":"80Gi"}`), want: "cannot unmarshal string"},
		"memory out of range":   {text: gpu(`{"uuid":"GPU-a","memoryMiB":99999999999999999999}`), want: "cannot unmarshal number"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := contract.ParseInventory(tc.text)
			if !errors.Is(err, contract.ErrInventory) || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), contract.InventoryAnnotation) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
	for _, text := range []string{gpu(""), gpu(good), `{"v":1,"sharesPerGPU":1,"gpus":null}`} {
		if _, err := contract.ParseInventory(text); err != nil {
			t.Errorf("ParseInventory(%s): %v", text, err)
		}
	}
}

func TestInventoryParsesAsItWasFormatted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := contract.Inventory{Version: 1, SharesPerGPU: units.Shares(rapid.Int64Range(0, 1001).Draw(t, "perGPU"))}
		for i := range rapid.IntRange(0, 8).Draw(t, "gpus") {
			g := contract.GPU{
				UUID: contract.GPUUUID(fmt.Sprintf("GPU-%d", rapid.IntRange(0, 20).Draw(t, "uuid"))), Index: i, Model: rapid.String().Draw(t, "model"),
				MemoryMiB: units.MiB(rapid.Int64Range(0, 1<<31).Draw(t, "memory")), Driver: rapid.String().Draw(t, "driver"), Healthy: rapid.Bool().Draw(t, "healthy"),
				Reason: rapid.String().Draw(t, "reason"), NUMA: rapid.IntRange(-1, 8).Draw(t, "numa"), Isolation: contract.Isolation(rapid.String().Draw(t, "isolation")),
			}
			for range rapid.IntRange(0, 2).Draw(t, "links") {
				g.Links = append(g.Links, contract.Link{To: rapid.Int().Draw(t, "to"), Type: rapid.String().Draw(t, "type"), Count: rapid.Int().Draw(t, "count")})
			}
			want.GPUs = append(want.GPUs, g)
		}
		text, err := want.Format()
		if err != nil {
			if !errors.Is(err, contract.ErrInventory) {
				t.Fatalf("Format: %v", err)
			}
			return
		}
		got, err := contract.ParseInventory(text)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Fatalf("ParseInventory(%s): %v (-want +got):\n%s", text, err, diff)
		}
	})
}

func FuzzParseInventory(f *testing.F) {
	f.Add(`{"v":1,"sharesPerGPU":100,"gpus":[{"uuid":"GPU-a","index":0,"memoryMiB":81920,"links":[{"to":1,"type":"nvlink"}]}]}`)
	f.Add(`{"v":1,"sharesPerGPU":-1,"gpus":[null,{}]}`)
	f.Add(`[]`)
	f.Fuzz(func(t *testing.T, s string) {
		inv, err := contract.ParseInventory(s)
		if err != nil {
			return
		}
		text, err := inv.Format()
		if err != nil {
			t.Fatalf("what was parsed cannot be formatted: %v", err)
		}
		if again, err := contract.ParseInventory(text); err != nil || len(again.GPUs) != len(inv.GPUs) {
			t.Errorf("ParseInventory(%s) = %+v, %v; want %+v", text, again, err, inv)
		}
	})
}
