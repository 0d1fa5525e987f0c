package queue

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Spec describes a queue.
type Spec struct {
	Name string
	// Parent is the queue above; empty at the top.
	Parent string
	// Weight is the queue's part of the surplus, relative to its siblings of
	// the same priority. Below 1 is 1.
	Weight int64
	// Priority orders siblings for the surplus: the highest first.
	Priority int32
	// Deserved is guaranteed against siblings.
	Deserved Amounts
	// Limit is the most that the queue may have. Unlimited, and what is beyond
	// the length, is no limit.
	Limit Amounts
	// Stopped queues, and those below them, admit nobody.
	Stopped bool
}

func (s *Spec) equal(o *Spec) bool {
	return s.Name == o.Name && s.Parent == o.Parent && s.Weight == o.Weight && s.Priority == o.Priority &&
		s.Stopped == o.Stopped && slices.Equal(s.Deserved, o.Deserved) && slices.Equal(s.Limit, o.Limit)
}

// Tree is the state machine. The zero value is not usable; see New. It is not
// safe for concurrent use, not even for reading: it solves when it is asked.
type Tree struct {
	models map[string]Resource
	// names[i] is the model of FirstModel+i.
	names []string
	// width is the length of every vector below.
	width int

	nodes    map[string]*node
	charges  map[types.UID]charge
	capacity Amounts

	// wired says that everything which follows from specs is up to date: the
	// rest of this group, and in every node the links, limits and sums.
	wired bool
	// root is above all that have nobody above them. Its sums are the totals.
	root *node
	// order has all nodes but the root, parents before their children.
	order   []*node
	managed []bool

	// clock counts changes of what is held and allocated, and rewirings; rewired is
	// what it was at the last of these.
	clock, rewired uint64

	// solved says that fair shares are up to date. version counts how often
	// they ceased to be.
	solved  bool
	version uint64
	parts   []part
}

// New returns an empty tree.
func New() *Tree {
	return &Tree{
		models:  map[string]Resource{},
		width:   int(FirstModel),
		nodes:   map[string]*node{},
		charges: map[types.UID]charge{},
		root:    &node{},
	}
}

// Model returns the resource that counts shares of a GPU model, a new one if
// the model has none yet.
func (t *Tree) Model(name string) Resource {
	r, ok := t.models[name]
	if !ok {
		r = FirstModel + Resource(len(t.names))
		t.models[name] = r
		t.names = append(t.names, name)
		t.widen(int(r) + 1)
	}
	return r
}

// ModelName returns the GPU model that r counts; empty if it counts none.
func (t *Tree) ModelName(r Resource) string {
	if r < FirstModel || int(r-FirstModel) >= len(t.names) {
		return ""
	}
	return t.names[r-FirstModel]
}

// widen makes room for that many resources.
func (t *Tree) widen(width int) {
	if width > t.width {
		t.width = width
		t.unwire()
	}
}

// unwire notes that specs have changed.
func (t *Tree) unwire() {
	t.wired = false
	t.unsolve()
}

// unsolve notes that fair shares may have changed.
func (t *Tree) unsolve() {
	if t.solved {
		t.solved = false
		t.version++
	}
}

// Set puts spec in place of what was known of the queue. Its parent may come
// later. A spec without a name is ignored.
func (t *Tree) Set(spec Spec) {
	if spec.Name == "" {
		return
	}
	n := t.node(spec.Name)
	if n.known && n.spec.equal(&spec) {
		return
	}
	t.widen(max(len(spec.Deserved), len(spec.Limit)))
	n.known, n.spec = true, spec
	t.unwire()
}

// Delete forgets a queue's spec. What is charged to the queue stays.
func (t *Tree) Delete(name string) {
	if n := t.nodes[name]; n != nil && n.known {
		n.known, n.spec = false, Spec{}
		t.unwire()
	}
}

// SetCapacity says what the queues at the top divide.
func (t *Tree) SetCapacity(a Amounts) {
	a = a.bounded(Unlimited)
	t.widen(len(a))
	if !a.Equal(t.capacity) {
		t.capacity = a
		t.unsolve()
	}
}

// Managed says whether queues divide r: a resource of which no queue deserves
// anything is everybody's, but for limits. GPU is always managed.
func (t *Tree) Managed(r Resource) bool {
	t.wire()
	return r >= 0 && int(r) < t.width && t.managed[r]
}

// Exists says whether the queue has a spec.
func (t *Tree) Exists(name string) bool {
	n := t.nodes[name]
	return n != nil && n.known
}

// Leaf says whether the queue exists and none names it as parent.
func (t *Tree) Leaf(name string) bool {
	t.wire()
	return t.Exists(name) && len(t.nodes[name].children) == 0
}

// Children returns the queues that name this one as parent, sorted; those at
// the top for the empty name. The caller owns the slice.
func (t *Tree) Children(name string) []string {
	t.wire()
	n := t.nodes[name]
	if name == "" {
		n = t.root
	}
	if n == nil {
		return nil
	}
	var names []string
	for _, c := range n.children {
		names = append(names, c.name)
	}
	slices.Sort(names)
	return names
}

// Names returns the queues that have a spec, sorted. The caller owns the slice.
func (t *Tree) Names() []string {
	names := make([]string, 0, len(t.nodes))
	for name, n := range t.nodes {
		if n.known {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// node returns the node of that name, a new one without a spec if need be.
func (t *Tree) node(name string) *node {
	n := t.nodes[name]
	if n == nil {
		n = &node{name: name}
		t.nodes[name] = n
		t.unwire()
	}
	return n
}
