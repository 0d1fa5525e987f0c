package ledger

import "github.com/tranche-dev/tranche/pkg/contract"

// wiring says how near the GPUs of a node are to each other.
type wiring struct {
	gpus int
	// near is the nearness of each two GPUs, row by row; farthest is the least of
	// all pairs.
	near     []int
	farthest int
}

// nvlinkNearness is what one NVLink counts: more than any way over PCIe.
const nvlinkNearness = 8

// pcieNearness ranks the ways over PCIe, which Link.Type names.
var pcieNearness = map[string]int{
	contract.LinkSystem: 1, contract.LinkNUMA: 2, contract.LinkHost: 3, contract.LinkBridge: 4, contract.LinkSwitch: 5, contract.LinkBoard: 6,
}

// wiringOf returns nil if it makes no difference which GPUs are taken together.
// The word of either end of a link counts.
func wiringOf(facts []*contract.GPU) *wiring {
	w := &wiring{gpus: len(facts), near: make([]int, len(facts)*len(facts))}
	at := make(map[int]int, len(facts))
	for i, f := range facts {
		at[f.Index] = i
	}
	for a, f := range facts {
		for b, o := range facts {
			if a != b {
				w.tie(a, b, pcieNearness[viaNUMA(f.NUMA, o.NUMA)])
			}
		}
		for _, l := range f.Links {
			b, ok := at[l.To]
			switch {
			case !ok || a == b:
			case l.Type == contract.LinkNVLink:
				w.tie(a, b, nvlinkNearness*max(l.Count, 1))
			default:
				w.tie(a, b, pcieNearness[l.Type])
			}
		}
	}
	differ := false
	for a := range facts {
		for b := range a {
			n := w.near[a*w.gpus+b]
			if a == 1 && b == 0 {
				w.farthest = n
			}
			differ = differ || n != w.farthest
			w.farthest = min(w.farthest, n)
		}
	}
	if !differ {
		return nil
	}
	return w
}

// viaNUMA is the way between two GPUs of which no more is known than the memory
// nodes beside them; empty if not even that is.
func viaNUMA(a, b int) string {
	switch {
	case a < 0 || b < 0:
		return ""
	case a == b:
		return contract.LinkNUMA
	default:
		return contract.LinkSystem
	}
}

// tie notes that two GPUs are that near at least.
func (w *wiring) tie(a, b, nearness int) {
	n := max(nearness, w.near[a*w.gpus+b], w.near[b*w.gpus+a])
	w.near[a*w.gpus+b], w.near[b*w.gpus+a] = n, n
}

// NearnessDiffers says whether some pairs of GPUs are nearer to each other than
// others, so that it matters which are taken together.
func (n *NodeView) NearnessDiffers() bool { return n != nil && n.wiring != nil }

// Nearness says how near the GPUs at two positions of GPUs are to each other: the
// more NVLinks the nearer, then by the nearest common ancestor on PCIe, then by
// memory node. 0 for all where NearnessDiffers is false, and where nothing is
// known.
func (n *NodeView) Nearness(a, b int) int {
	if n == nil || n.wiring == nil {
		return 0
	}
	return n.wiring.near[a*n.wiring.gpus+b]
}

// Neighbours says whether the GPUs at two positions are nearer to each other than
// the farthest two of the node are.
func (n *NodeView) Neighbours(a, b int) bool {
	return n != nil && n.wiring != nil && n.Nearness(a, b) > n.wiring.farthest
}
