package gang_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/gang"
	"github.com/tranche-dev/tranche/pkg/units"
)

// ragged is nodes of 8 GPUs of which no two are alike.
func ragged(nodes int) *world {
	w := newWorld()
	r := rand.New(rand.NewPCG(1, 1))
	for i := range nodes {
		free := make([]units.Shares, 8)
		for g := range free {
			free[g] = units.Shares(r.IntN(101))
		}
		w.free(fmt.Sprintf("n%d", i), h200, free...)
	}
	return w
}

// BenchmarkHard is about gangs that nearly fit, so that all is tried.
func BenchmarkHard(b *testing.B) {
	cases := []struct {
		name    string
		nodes   int
		members []int
		req     []contract.Request
	}{
		{"nodes=500/two-containers", 500, []int{2400}, []contract.Request{ask(part(40), part(33))}},
		{"nodes=500/four-containers", 500, []int{2650}, []contract.Request{ask(part(17), part(19), part(23), part(11))}},
		{"nodes=500/two-shapes", 500, []int{1900, 1900}, []contract.Request{ask(part(40)), ask(several(2, 25))}},
		{"nodes=500/two-shapes-two-containers", 500, []int{1650, 1650}, []contract.Request{ask(part(40), part(20)), ask(part(30), part(30))}},
		{"nodes=5000/two-containers", 5000, []int{24000}, []contract.Request{ask(part(40), part(33))}},
	}
	for _, c := range cases {
		b.Run(c.name, func(b *testing.B) {
			w := ragged(c.nodes)
			for i, req := range c.req {
				w.want(c.members[i], req, gang.Resources{})
			}
			said := ""
			for b.Loop() {
				places, shortfall := w.plan()
				if said = fmt.Sprintf("%d places", len(places)); shortfall != nil {
					said = shortfall.Message()
				}
			}
			b.Log(said)
		})
	}
}
