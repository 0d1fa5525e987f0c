package view

import (
	"maps"
	"slices"

	"github.com/tranche-dev/tranche/pkg/contract"
)

func sameRequest(a, b contract.Request) bool {
	return a.SameGPUs == b.SameGPUs && a.Placement == b.Placement && a.RequireIsolation == b.RequireIsolation &&
		slices.Equal(a.Models, b.Models) && slices.Equal(a.Demands, b.Demands)
}

func sameDevices(a, b map[string]Devices) bool {
	return maps.EqualFunc(a, b, func(x, y Devices) bool { return x.Whole == y.Whole && maps.Equal(x.Count, y.Count) })
}
