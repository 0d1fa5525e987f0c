package slice_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	dp "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"pgregory.net/rapid"

	"github.com/tranche-dev/tranche/nodeplugin/nvml/models"
	"github.com/tranche-dev/tranche/nodeplugin/slice"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

func ids(t *testing.T, text ...string) []contract.DeviceID {
	t.Helper()
	parsed, err := slice.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

func TestDevicesFollowTheHealthOfTheirGPU(t *testing.T) {
	gpus := []slice.GPU{{"a", true}, {"b", false}}
	want := []slice.Device{{"a::0", true}, {"a::1", true}, {"a::2", true}, {"b::0", false}, {"b::1", false}, {"b::2", false}}
	if diff := cmp.Diff(want, slice.Shares(gpus, 3)); diff != "" {
		t.Errorf("Shares (-want +got):\n%s", diff)
	}
	want = []slice.Device{{"a::0", true}, {"b::0", false}}
	if diff := cmp.Diff(want, slice.Whole(gpus)); diff != "" {
		t.Errorf("Whole (-want +got):\n%s", diff)
	}
}

// The kubelet's gRPC client refuses messages above 4 MiB, and then the node
// has no GPUs at all.
func TestDeviceListStaysFarBelowTheKubeletsMessageLimit(t *testing.T) {
	for _, perGPU := range []int{100, 1000} {
		var gpus []slice.GPU
		for i := range 8 {
			gpus = append(gpus, slice.GPU{UUID: models.UUID("n", i), Healthy: false})
		}
		list := &dp.ListAndWatchResponse{}
		for _, d := range slice.Shares(gpus, units.Shares(perGPU)) {
			list.Devices = append(list.Devices, &dp.Device{ID: d.ID, Health: dp.Unhealthy})
		}
		if size := proto.Size(list); size > 1<<20 {
			t.Errorf("8 GPUs with %d shares make %d bytes", perGPU, size)
		}
	}
}

func TestParseSortsAndRefuses(t *testing.T) {
	got := ids(t, "b::1", "a::10", "a::9")
	want := []contract.DeviceID{{GPU: "a", Slice: 9}, {GPU: "a", Slice: 10}, {GPU: "b", Slice: 1}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := slice.Parse([]string{"a"}); err == nil {
		t.Error("Parse takes an ID without a number")
	}
	var twice *slice.TwiceError
	if _, err := slice.Parse([]string{"a::1", "a::2", "a::1"}); !errors.As(err, &twice) || twice.ID.String() != "a::1" {
		t.Errorf("Parse of a list with an ID twice: %v", err)
	}
}

func TestChoose(t *testing.T) {
	type list = []string
	cases := map[string]struct {
		gpus            []contract.GPUUUID
		available, must list
		size            int
		want            list
		wantShortage    *slice.Shortage
	}{
		"only the planned GPU": {
			gpus: []contract.GPUUUID{"b"}, available: list{"a::0", "b::0", "b::1", "c::0"}, size: 2, want: list{"b::0", "b::1"},
		},
		"the lowest numbers": {
			gpus: []contract.GPUUUID{"a"}, available: list{"a::7", "a::2", "a::5"}, size: 2, want: list{"a::2", "a::5"},
		},
		"equal parts on several GPUs": {
			gpus: []contract.GPUUUID{"b", "a"}, available: list{"a::0", "a::1", "a::2", "b::5", "b::6"}, size: 4, want: list{"a::0", "a::1", "b::5", "b::6"},
		},
		"what must be in it is": {
			gpus: []contract.GPUUUID{"a"}, available: list{"a::0", "a::1", "a::2", "a::9"}, must: list{"a::9"}, size: 2, want: list{"a::0", "a::9"},
		},
		"too few free": {
			gpus: []contract.GPUUUID{"a", "b"}, available: list{"a::0", "a::1", "b::0"}, size: 4, wantShortage: &slice.Shortage{GPU: "b", Need: 2, Free: 1},
		},
		"must lies elsewhere": {
			gpus: []contract.GPUUUID{"a"}, available: list{"a::0", "b::0"}, must: list{"b::0"}, size: 1, wantShortage: &slice.Shortage{GPU: "b", Need: 1},
		},
		"an uneven number": {
			gpus: []contract.GPUUUID{"a", "b"}, available: list{"a::0", "a::1", "b::0"}, size: 3, wantShortage: &slice.Shortage{Need: 3},
		},
		"no GPU": {size: 1, available: list{"a::0"}, wantShortage: &slice.Shortage{Need: 1}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, shortage := slice.Choose(tc.gpus, ids(t, tc.available...), ids(t, tc.must...), tc.size)
			if diff := cmp.Diff(tc.wantShortage, shortage); diff != "" {
				t.Errorf("shortage (-want +got):\n%s", diff)
			}
			if tc.wantShortage == nil && !slices.Equal(slice.Strings(got), tc.want) {
				t.Errorf("Choose = %v; want %v", slice.Strings(got), tc.want)
			}
		})
	}
}

func TestAChoiceIsExactWhateverIsAvailable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var available []contract.DeviceID
		for _, g := range []contract.GPUUUID{"a", "b", "c"} {
			for n := range 10 {
				if rapid.Bool().Draw(t, "free") {
					available = append(available, contract.DeviceID{GPU: g, Slice: n})
				}
			}
		}
		gpus := rapid.SliceOfNDistinct(rapid.SampledFrom([]contract.GPUUUID{"a", "b", "c"}), 1, 3, rapid.ID).Draw(t, "gpus")
		each := rapid.IntRange(1, 10).Draw(t, "each")
		got, shortage := slice.Choose(gpus, available, nil, each*len(gpus))
		if shortage != nil {
			if slice.CountByGPU(available)[shortage.GPU] >= each {
				t.Fatalf("%+v although enough is free", shortage)
			}
			return
		}
		for _, id := range got {
			if !slices.Contains(available, id) {
				t.Fatalf("%s is not available", id)
			}
		}
		count := slice.CountByGPU(got)
		if len(count) != len(gpus) {
			t.Fatalf("%v on %v", got, gpus)
		}
		for _, g := range gpus {
			if count[g] != each {
				t.Fatalf("%d of GPU %s; want %d", count[g], g, each)
			}
		}
	})
}
