package contract_test

import (
	"testing"

	"github.com/tranche-dev/tranche/pkg/contract"
)

func TestDeviceIDIsTheUUIDAndANumber(t *testing.T) {
	d := contract.DeviceID{GPU: "GPU-8a5e", Slice: 42}
	if got := d.String(); got != "GPU-8a5e::42" {
		t.Errorf("String = %q", got)
	}
	for _, bad := range []string{"", "GPU-8a5e", "GPU-8a5e:42", "::42", "GPU-8a5e::", "GPU-8a5e::-1", "GPU-8a5e::+1", "GPU-8a5e::01", "GPU-8a5e::1000", "GPU-8a5e::1::2", "GPU-8a5e:: 1", "GPU-8a5e::x"} {
		if got, err := contract.ParseDeviceID(bad); err == nil {
			t.Errorf("ParseDeviceID(%q) = %+v, want an error", bad, got)
		}
	}
}

func FuzzParseDeviceID(f *testing.F) {
	for _, s := range []string{"GPU-8a5e::42", "a::0", "::::1", "GPU::999", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if d, err := contract.ParseDeviceID(s); err == nil && d.String() != s {
			t.Errorf("ParseDeviceID(%q) = %+v, which is %q", s, d, d)
		}
	})
}
