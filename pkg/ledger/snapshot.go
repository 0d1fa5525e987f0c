package ledger

import (
	"cmp"
	"iter"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

// Snapshot is the ledger at one version. It never changes, so any number of
// goroutines may read it, typically through an atomic.Pointer. Snapshots share
// the views of all nodes that did not change between them.
type Snapshot struct {
	version uint64
	// chunks hold the nodes by name, chunkSize to a chunk, so that a change of
	// one node copies one chunk and the list of chunks.
	chunks []*[chunkSize]*NodeView
	// at is the position of each node; shared until nodes come or go, which they did
	// last at the version set.
	at     map[string]int
	set    uint64
	totals Totals
}

// chunkSize is about the square root of the number of nodes that the design
// aims at (5,000): then both halves of a copy are about equally big.
const chunkSize = 64

// Totals are sums over the known GPUs of all nodes.
type Totals struct {
	// Nodes have an inventory. GPUs are theirs.
	Nodes, GPUs int
	// Shares is their capacity, in healthy and unhealthy GPUs.
	Shares, Allocated, Held units.Shares
	// Overcommitted is the number of GPUs that are charged beyond their
	// shares; 0 unless kubelet or API server say otherwise.
	Overcommitted int
}

func (t *Totals) add(n *NodeView, sign int) {
	if !n.known {
		return
	}
	t.Nodes += sign
	t.GPUs += sign * len(n.gpus)
	for i := range n.gpus {
		g := &n.gpus[i]
		t.Shares += units.Shares(sign) * n.perGPU
		t.Allocated += units.Shares(sign) * g.Allocated
		t.Held += units.Shares(sign) * g.Held
		if g.Free < 0 {
			t.Overcommitted += sign
		}
	}
}

// Snapshot returns the present state. After changes to k nodes it costs O(k),
// and O(nodes) if nodes came or went, so take one after a batch of changes.
func (l *Ledger) Snapshot() *Snapshot {
	if l.last.version == l.version {
		return l.last
	}
	s := &Snapshot{version: l.version, totals: l.last.totals}
	if l.setChanged {
		s.build(l.nodes)
		s.set = l.version
	} else {
		s.at, s.set = l.last.at, l.last.set
		s.chunks = slices.Clone(l.last.chunks)
		copied := make(map[int]bool, len(l.changed))
		for name, n := range l.changed {
			at := s.at[name]
			if c := at / chunkSize; !copied[c] {
				chunk := *s.chunks[c]
				s.chunks[c], copied[c] = &chunk, true
			}
			slot := &s.chunks[at/chunkSize][at%chunkSize]
			s.totals.add(*slot, -1)
			*slot = n.makeView()
			s.totals.add(*slot, 1)
		}
	}
	l.last, l.setChanged = s, false
	clear(l.changed)
	return s
}

// build fills an empty snapshot.
func (s *Snapshot) build(nodes map[string]*node) {
	views := make([]*NodeView, 0, len(nodes))
	for _, n := range nodes {
		views = append(views, n.makeView())
	}
	slices.SortFunc(views, func(a, b *NodeView) int { return cmp.Compare(a.name, b.name) })
	s.totals = Totals{}
	s.at = make(map[string]int, len(views))
	for i, v := range views {
		s.at[v.name] = i
		s.totals.add(v, 1)
	}
	for chunk := range slices.Chunk(views, chunkSize) {
		c := new([chunkSize]*NodeView)
		copy(c[:], chunk)
		s.chunks = append(s.chunks, c)
	}
}

// Version is the ledger's version at which the snapshot was taken.
func (s *Snapshot) Version() uint64 { return s.version }

// Totals returns sums over all nodes.
func (s *Snapshot) Totals() Totals { return s.totals }

// Len returns the number of nodes, including those of which only charges are
// known.
func (s *Snapshot) Len() int { return len(s.at) }

// Node returns the view of one node, or nil if the ledger knows neither an
// inventory nor a charge of it. All of NodeView's methods accept nil.
func (s *Snapshot) Node(name string) *NodeView {
	at, ok := s.at[name]
	if !ok {
		return nil
	}
	return s.At(at)
}

// Set tells apart which nodes there are: snapshots with the same have the same
// nodes, at the same positions.
func (s *Snapshot) Set() uint64 { return s.set }

// Position is where a node is among all by name, from 0 to below Len; false if it
// is not known. Who looks at many nodes again and again remembers things by it.
func (s *Snapshot) Position(name string) (int, bool) {
	at, ok := s.at[name]
	return at, ok
}

// At returns the view of the node at a position.
func (s *Snapshot) At(position int) *NodeView {
	return s.chunks[position/chunkSize][position%chunkSize]
}

// Nodes yields all nodes in the order of their names.
func (s *Snapshot) Nodes() iter.Seq[*NodeView] {
	return func(yield func(*NodeView) bool) {
		for _, chunk := range s.chunks {
			for _, v := range chunk {
				if v == nil || !yield(v) {
					return
				}
			}
		}
	}
}

// Overcommit is a GPU that is charged beyond its shares.
type Overcommit struct {
	Node           string
	GPU            contract.GPUUUID
	Total, Charged units.Shares
}

// Overcommitted lists all such GPUs, by node and index.
func (s *Snapshot) Overcommitted() []Overcommit {
	var all []Overcommit
	if s.totals.Overcommitted == 0 {
		return nil
	}
	for n := range s.Nodes() {
		for i := range n.gpus {
			if g := &n.gpus[i]; g.Free < 0 {
				all = append(all, Overcommit{n.name, g.Facts.UUID, n.perGPU, n.perGPU - g.Free})
			}
		}
	}
	return all
}

// NodeView is one node at one version; it never changes. Its methods work on a
// nil view, which is a node without inventory and charges.
type NodeView struct {
	name    string
	version uint64
	known   bool
	perGPU  units.Shares
	gpus    []GPUView
	wiring  *wiring
	class   *Class
	// records are all claims by UID, holds those of them that are held.
	records, holds []*Record
	// maxFree is the most free shares of any healthy GPU, free and capacity
	// are sums over the healthy ones, wholly how many of them are unused.
	maxFree, free, capacity units.Shares
	wholly                  int
}

// GPUView is one GPU of a NodeView.
type GPUView struct {
	// Facts is the inventory's entry; read-only.
	Facts *contract.GPU
	// Class is what Facts say of the kind of GPU, and Healthy whether it is.
	Class   *Class
	Healthy bool
	// Free is what is neither allocated nor held; negative if the GPU is
	// overcommitted.
	Free, Allocated, Held units.Shares
	// Pods is the number of claims on the GPU.
	Pods int
}

// Class is all that decides what a demand takes of a GPU, and whether a pod may
// use it. Of equal classes a Ledger makes one pointer, so that whoever looks at
// many nodes can remember what a class means to it.
type Class struct {
	Model        string
	MemoryMiB    units.MiB
	Isolation    contract.Isolation
	SharesPerGPU units.Shares
}

// WhollyFree says whether nobody is charged for the GPU.
func (g *GPUView) WhollyFree() bool { return g.Pods == 0 }

func (n *node) makeView() *NodeView {
	if n.view != nil {
		return n.view
	}
	v := &NodeView{name: n.name, version: n.version, known: n.known, perGPU: n.perGPU, wiring: n.wiring, records: n.records}
	v.gpus = make([]GPUView, len(n.gpus))
	for i := range n.gpus {
		g := &n.gpus[i]
		w := GPUView{Facts: g.facts, Class: g.class, Healthy: g.facts.Healthy, Free: g.free(n.perGPU), Allocated: g.allocated, Held: g.held, Pods: g.pods}
		v.gpus[i] = w
		if !g.facts.Healthy {
			continue
		}
		v.maxFree = max(v.maxFree, w.Free)
		v.free += w.Free
		v.capacity += n.perGPU
		if w.WhollyFree() {
			v.wholly++
		}
	}
	uniform := func(g gpu) bool { return g.class == n.gpus[0].class && g.facts.Healthy }
	if len(n.gpus) > 0 && !slices.ContainsFunc(n.gpus, func(g gpu) bool { return !uniform(g) }) {
		v.class = n.gpus[0].class
	}
	for _, r := range n.records {
		if r.State == Held {
			v.holds = append(v.holds, r)
		}
	}
	n.view = v
	return v
}

// Node returns the present view of one node, as Snapshot.Node would.
func (l *Ledger) Node(name string) *NodeView {
	n := l.nodes[name]
	if n == nil {
		return nil
	}
	return n.makeView()
}

// Name is the node's name.
func (n *NodeView) Name() string {
	if n == nil {
		return ""
	}
	return n.name
}

// Version is the ledger's version at which the node last changed. Two views of
// one name with the same version are equal.
func (n *NodeView) Version() uint64 {
	if n == nil {
		return 0
	}
	return n.version
}

// Known says whether the node has an inventory. Without one there are no GPUs,
// though there may be charges.
func (n *NodeView) Known() bool { return n != nil && n.known }

// SharesPerGPU is the node's grain, 0 if it is not known.
func (n *NodeView) SharesPerGPU() units.Shares {
	if n == nil {
		return 0
	}
	return n.perGPU
}

// GPUs are the inventory's GPUs in the order of their index. The slice is
// shared and must not be changed.
func (n *NodeView) GPUs() []GPUView {
	if n == nil {
		return nil
	}
	return n.gpus
}

// Class is the class of all GPUs of the node, if they have the same one and are
// all healthy; else nil.
func (n *NodeView) Class() *Class {
	if n == nil {
		return nil
	}
	return n.class
}

// MaxFree is the most free shares that any healthy GPU has, at least 0: no
// demand for more can fit.
func (n *NodeView) MaxFree() units.Shares {
	if n == nil {
		return 0
	}
	return n.maxFree
}

// WhollyFree is the number of healthy GPUs that nobody is charged for.
func (n *NodeView) WhollyFree() int {
	if n == nil {
		return 0
	}
	return n.wholly
}

// Free and Capacity are sums over the healthy GPUs. Free may be negative.
func (n *NodeView) Free() units.Shares {
	if n == nil {
		return 0
	}
	return n.free
}

// Capacity is the sum of the shares of the healthy GPUs.
func (n *NodeView) Capacity() units.Shares {
	if n == nil {
		return 0
	}
	return n.capacity
}

// Claims are all claims on the node, sorted by UID. The slice is shared and
// must not be changed.
func (n *NodeView) Claims() []*Record {
	if n == nil {
		return nil
	}
	return n.records
}

// HeldBy returns the charges that the pod holds on this node, nil if none.
// Whoever plans that pod again adds them to what is free. Allocated claims are
// not found: a bound pod is not planned again. The cost grows with the node's
// holds only, not with its running pods.
func (n *NodeView) HeldBy(uid types.UID) []Charge {
	if n == nil {
		return nil
	}
	for _, r := range n.holds {
		if r.Pod.UID == uid {
			return r.Charges
		}
	}
	return nil
}
