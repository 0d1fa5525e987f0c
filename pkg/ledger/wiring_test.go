package ledger_test

import (
	"testing"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
)

// wired is a node of GPUs A to D with links between them, each said by one end.
func wired(numa []int, links map[[2]int]contract.Link) *ledger.NodeView {
	inv := inventory("A", "B", "C", "D")
	for i := range inv.GPUs {
		if numa != nil {
			inv.GPUs[i].NUMA = numa[i]
		}
	}
	for pair, link := range links {
		link.To = pair[1]
		inv.GPUs[pair[0]].Links = append(inv.GPUs[pair[0]].Links, link)
	}
	l := ledger.New()
	l.SetNode("n", inv)
	return l.Node("n")
}

func nvlinks(n int) contract.Link        { return contract.Link{Type: contract.LinkNVLink, Count: n} }
func pcie(ancestor string) contract.Link { return contract.Link{Type: ancestor} }

func TestNearnessOfGPUs(t *testing.T) {
	pairs := [][2]int{{0, 1}, {2, 3}, {1, 2}, {0, 2}, {0, 3}, {1, 3}}
	all := func(link contract.Link) map[[2]int]contract.Link {
		links := map[[2]int]contract.Link{}
		for _, pair := range pairs {
			links[pair] = link
		}
		return links
	}
	for name, tc := range map[string]struct {
		numa  []int
		links map[[2]int]contract.Link
		// order are pairs, each nearer than the one after it; far are neighbours of
		// nobody.
		order [][2]int
		far   [][2]int
	}{
		"more NVLinks are nearer, and any is nearer than PCIe": {
			links: map[[2]int]contract.Link{{0, 1}: nvlinks(4), {1, 2}: nvlinks(0), {2, 3}: pcie(contract.LinkBoard), {0, 3}: pcie(contract.LinkSwitch)},
			order: [][2]int{{0, 1}, {1, 2}, {2, 3}, {0, 3}, {0, 2}}, far: [][2]int{{0, 2}, {1, 3}},
		},
		"the nearest common ancestor counts": {
			links: map[[2]int]contract.Link{
				{0, 1}: pcie(contract.LinkSwitch), {2, 3}: pcie(contract.LinkBridge), {1, 2}: pcie(contract.LinkHost), {0, 2}: pcie(contract.LinkNUMA),
				{0, 3}: pcie(contract.LinkSystem), {1, 3}: pcie(contract.LinkSystem),
			},
			order: [][2]int{{0, 1}, {2, 3}, {1, 2}, {0, 2}, {0, 3}}, far: [][2]int{{0, 3}, {1, 3}},
		},
		"without links the memory nodes count": {
			numa: []int{0, 0, 1, 1}, order: [][2]int{{0, 1}, {0, 2}}, far: [][2]int{{0, 2}, {0, 3}, {1, 2}, {1, 3}},
		},
		"what a link says counts before the memory nodes": {
			numa: []int{0, 0, 1, 1}, links: map[[2]int]contract.Link{{1, 2}: nvlinks(2)}, order: [][2]int{{1, 2}, {0, 1}, {0, 3}}, far: [][2]int{{0, 2}, {0, 3}, {1, 3}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := wired(tc.numa, tc.links)
			if !n.NearnessDiffers() {
				t.Fatal("all are said to be as near")
			}
			for i, pair := range tc.order {
				if a, b := n.Nearness(pair[0], pair[1]), n.Nearness(pair[1], pair[0]); a != b {
					t.Errorf("nearness of %v: %d and %d from the other end", pair, a, b)
				}
				if i > 0 {
					if before := tc.order[i-1]; n.Nearness(before[0], before[1]) <= n.Nearness(pair[0], pair[1]) {
						t.Errorf("%v are not nearer than %v", before, pair)
					}
				}
			}
			for _, pair := range pairs {
				far := false
				for _, f := range tc.far {
					far = far || f == pair
				}
				if n.Neighbours(pair[0], pair[1]) == far {
					t.Errorf("neighbours %v: %v", pair, !far)
				}
			}
		})
	}
	for name, n := range map[string]*ledger.NodeView{
		"all by NVLink": wired([]int{0, 0, 1, 1}, all(nvlinks(12))), "all over one bridge": wired(nil, all(pcie(contract.LinkBridge))),
		"nothing is known": wired(nil, nil), "one memory node": wired([]int{0, 0, 0, 0}, nil),
	} {
		if n.NearnessDiffers() || n.Nearness(0, 1) != 0 || n.Neighbours(0, 1) {
			t.Errorf("%s: some are said to be nearer than others", name)
		}
	}
}
