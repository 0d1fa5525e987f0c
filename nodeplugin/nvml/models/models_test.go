package models_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/tranche-dev/tranche/nodeplugin/nvml/models"
	"github.com/tranche-dev/tranche/pkg/contract"
)

func TestLookupKnowsEveryModelByEachOfItsNames(t *testing.T) {
	for _, m := range models.All() {
		for _, name := range []string{m.Short, strings.ToLower(m.Short), m.Name(), m.Product} {
			got, err := models.Lookup(name)
			if err != nil || got != m {
				t.Errorf("Lookup(%q) = %+v, %v; want %+v", name, got, err, m)
			}
		}
		if strings.Contains(m.Name(), " ") {
			t.Errorf("%q has a space", m.Name())
		}
	}
	if !slices.IsSortedFunc(models.All(), func(a, b models.Model) int { return strings.Compare(a.Short, b.Short) }) {
		t.Error("All is not sorted")
	}
}

func TestLookupTakesAFamilyOnlyIfItHasOneMember(t *testing.T) {
	if m, err := models.Lookup("B200"); err != nil || m.Short != "B200-180GB" {
		t.Errorf("Lookup(B200) = %+v, %v", m, err)
	}
	if _, err := models.Lookup("A100"); err == nil || !strings.Contains(err.Error(), "A100-40GB, A100-80GB") {
		t.Errorf("Lookup(A100) = %v; want an error that lists the models", err)
	}
}

func TestUUIDIsStableUniqueAndFitsADeviceID(t *testing.T) {
	seen := map[contract.GPUUUID]bool{}
	for _, node := range []string{"a", "b"} {
		for i := range 16 {
			u := models.UUID(node, i)
			if seen[u] {
				t.Errorf("%s appears twice", u)
			}
			seen[u] = true
			if u != models.UUID(node, i) {
				t.Error("not stable")
			}
			id := contract.DeviceID{GPU: u, Slice: 99}.String()
			if back, err := contract.ParseDeviceID(id); err != nil || back.GPU != u || len(id) > 63 {
				t.Errorf("%q: %+v %v", id, back, err)
			}
		}
	}
}
