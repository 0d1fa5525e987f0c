package queue_test

import (
	"cmp"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/tranche-dev/tranche/pkg/queue"
)

// oracle is the tree as one would write it without any thought of speed: what
// was said last of every queue and id, and every number computed anew from
// that, with fractions.
type oracle struct {
	specs    map[string]queue.Spec
	charges  map[types.UID]queue.Charge
	capacity queue.Amounts
}

func newOracle() *oracle {
	return &oracle{specs: map[string]queue.Spec{}, charges: map[types.UID]queue.Charge{}}
}

// cyclic says whether going up from a queue leads back to it.
func (o *oracle) cyclic(name string) bool {
	up := o.specs[name].Parent
	for range o.specs {
		if up == name {
			return true
		}
		up = o.specs[up].Parent
	}
	return false
}

// line is a queue and those above it, as far as can be told. Whole is true if
// that reaches the top.
func (o *oracle) line(name string) (line []string, whole bool) {
	for {
		spec, known := o.specs[name]
		line = append(line, name)
		switch {
		case !known || o.cyclic(name):
			return line, false
		case spec.Parent == "":
			return line, true
		}
		if _, known := o.specs[spec.Parent]; !known {
			return line, false
		}
		name = spec.Parent
	}
}

func (o *oracle) children(name string) []string {
	var names []string
	for child, spec := range o.specs {
		if spec.Parent == name && child != "" {
			names = append(names, child)
		}
	}
	slices.Sort(names)
	return names
}

// sum adds up what is charged in the states to name and all below it.
func (o *oracle) sum(name string, r queue.Resource, states ...queue.State) (sum int64) {
	for _, c := range o.charges {
		if line, _ := o.line(c.Queue); slices.Contains(line, name) && slices.Contains(states, c.State) {
			sum += c.Amounts.Get(r)
		}
	}
	return sum
}

func (o *oracle) used(name string, r queue.Resource) int64 {
	return o.sum(name, r, queue.Held, queue.Allocated)
}

// own adds up what names exactly this queue.
func (o *oracle) own(name string, r queue.Resource, waiting bool) (sum int64) {
	for _, c := range o.charges {
		if c.Queue == name && (waiting || c.State != queue.Pending) {
			sum += c.Amounts.Get(r)
		}
	}
	return sum
}

func (o *oracle) limit(name string, r queue.Resource) int64 {
	if limit := o.specs[name].Limit; int(r) < len(limit) {
		return limit[r]
	}
	return queue.Unlimited
}

func (o *oracle) managed(r queue.Resource) bool {
	for _, spec := range o.specs {
		if spec.Deserved.Get(r) > 0 {
			return true
		}
	}
	return r == queue.GPU
}

// admits says whether the queue admits anybody at all.
func (o *oracle) admits(name string) bool {
	line, whole := o.line(name)
	return whole && len(o.children(name)) == 0 &&
		!slices.ContainsFunc(line, func(above string) bool { return o.specs[above].Stopped })
}

func (o *oracle) want(name string, r queue.Resource) int64 {
	sum := o.own(name, r, o.admits(name))
	for _, child := range o.children(name) {
		sum += o.want(child, r)
	}
	return min(sum, o.limit(name, r))
}

func (o *oracle) deserved(name string, r queue.Resource) int64 {
	parent := o.specs[name].Parent
	if o.specs[parent].Deserved.Get(r) == 0 {
		return o.specs[name].Deserved.Get(r)
	}
	vessels := map[string]vessel{}
	for _, sibling := range o.children(parent) {
		own := o.specs[sibling].Deserved.Get(r)
		vessels[sibling] = vessel{own, own}
	}
	return pour(o.deserved(parent, r), vessels)[name]
}

func (o *oracle) fair(name string, r queue.Resource) int64 {
	if !o.managed(r) {
		return queue.Unlimited
	}
	if _, whole := o.line(name); !whole {
		return o.used(name, r)
	}
	parent := o.specs[name].Parent
	left := o.capacity.Get(r)
	if parent != "" {
		left = o.fair(parent, r) - o.own(parent, r, false)
	} else {
		for _, c := range o.charges {
			if _, whole := o.line(c.Queue); !whole && c.State != queue.Pending {
				left -= c.Amounts.Get(r)
			}
		}
	}
	left = max(left, 0)

	vessels := map[string]vessel{}
	bands := map[int32]bool{}
	for _, sibling := range o.children(parent) {
		deserved := o.deserved(sibling, r)
		vessels[sibling] = vessel{deserved, min(deserved, o.want(sibling, r))}
		bands[o.specs[sibling].Priority] = true
	}
	got := pour(left, vessels)
	for _, n := range got {
		left -= n
	}
	for _, band := range slices.Backward(slices.Sorted(maps.Keys(bands))) {
		vessels := map[string]vessel{}
		for _, sibling := range o.children(parent) {
			if spec := o.specs[sibling]; spec.Priority == band {
				vessels[sibling] = vessel{max(spec.Weight, 1), o.want(sibling, r) - got[sibling]}
			}
		}
		for sibling, n := range pour(left, vessels) {
			got[sibling] += n
			left -= n
		}
	}
	return got[name]
}

type vessel struct{ weight, most int64 }

// pour divides amount by weight in rounds: whoever gets at least its most has
// it and leaves, until nobody does. Then it rounds.
func pour(amount int64, vessels map[string]vessel) map[string]int64 {
	got := map[string]int64{}
	open := map[string]vessel{}
	var total int64
	for name, v := range vessels {
		if v.most > 0 {
			open[name] = v
			total += v.most
		}
	}
	amount = min(amount, total)
	for full := true; full; {
		full = false
		var weight int64
		for _, v := range open {
			weight += v.weight
		}
		var filled []string
		for name, v := range open {
			if big.NewRat(v.most, 1).Cmp(big.NewRat(amount*v.weight, weight)) <= 0 {
				filled = append(filled, name)
			}
		}
		for _, name := range filled {
			got[name] = open[name].most
			amount -= open[name].most
			delete(open, name)
			full = true
		}
	}
	var weight int64
	for _, v := range open {
		weight += v.weight
	}
	names := slices.Sorted(maps.Keys(open))
	left := amount
	for _, name := range names {
		got[name] = amount * open[name].weight / weight
		left -= got[name]
	}
	slices.SortStableFunc(names, func(a, b string) int {
		return cmp.Compare(amount*open[b].weight%weight, amount*open[a].weight%weight)
	})
	for _, name := range names[:left] {
		got[name]++
	}
	return got
}

// entitled says whether a queue may have ask and all above it stay within
// share.
func (o *oracle) entitled(name string, ask queue.Amounts, share func(string, queue.Resource) int64) bool {
	line, whole := o.line(name)
	for _, above := range line {
		for i, asked := range ask {
			r := queue.Resource(i)
			whole = whole && (asked == 0 || !o.managed(r) || o.used(above, r)+asked <= share(above, r))
		}
	}
	return whole
}

// agree compares a tree with the oracle in every number.
func (o *oracle) agree(t *rapid.T, tree *queue.Tree, ask queue.Amounts) {
	names := map[string]bool{}
	for name := range o.specs {
		names[name] = true
	}
	for _, c := range o.charges {
		names[c.Queue] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		u := tree.Usage(name)
		room := tree.Room(name)
		line, whole := o.line(name)
		for r := range queue.FirstModel + 1 {
			effective := int64(queue.Unlimited)
			wantRoom := int64(queue.Unlimited)
			for _, above := range line {
				effective = min(effective, o.limit(above, r))
				if o.limit(above, r) != queue.Unlimited {
					wantRoom = min(wantRoom, max(o.limit(above, r)-o.used(above, r), 0))
				}
			}
			var deserved int64
			if whole {
				deserved = o.deserved(name, r)
			} else {
				wantRoom = 0
			}
			want := [...]int64{
				o.sum(name, r, queue.Allocated), o.sum(name, r, queue.Held), o.sum(name, r, queue.Pending, queue.Held, queue.Allocated),
				deserved, o.fair(name, r), effective, wantRoom,
			}
			got := [...]int64{
				u.Allocated.Get(r), u.Held.Get(r), u.Demand.Get(r), u.Deserved.Get(r), u.FairShare.Get(r), u.EffectiveLimit[r], room[r],
			}
			if want != got {
				t.Fatalf("queue %s, resource %d: allocated, held, demand, deserved, fair share, limit, room\n%v, want\n%v", name, r, got, want)
			}
		}
		if got, want := tree.Entitled(name, ask), o.entitled(name, ask, o.fair); got != want {
			t.Fatalf("queue %s entitled to %v: %t, want %t", name, ask, got, want)
		}
		if got, want := tree.WithinDeserved(name, ask), o.entitled(name, ask, o.deserved); got != want {
			t.Fatalf("queue %s with %v within what it deserves: %t, want %t", name, ask, got, want)
		}
		fits := o.admits(name)
		for i, asked := range ask {
			fits = fits && (asked == 0 || asked <= room[i])
		}
		if refusal := tree.Check(name, ask); (refusal == nil) != fits {
			t.Fatalf("queue %s asked for %v: %+v, want fitting %t", name, ask, refusal, fits)
		}
	}
}

// drawAmounts draws small amounts, some of them absent.
func drawAmounts(t *rapid.T, most int64, label string) queue.Amounts {
	return queue.Amounts(rapid.SliceOfN(rapid.Int64Range(0, most), 0, int(queue.FirstModel)+1).Draw(t, label))
}

func drawSpec(t *rapid.T, name string) queue.Spec {
	limit := drawAmounts(t, 30, "limit")
	for r := range limit {
		if rapid.Bool().Draw(t, "unlimited") {
			limit[r] = queue.Unlimited
		}
	}
	return queue.Spec{
		Name:     name,
		Parent:   rapid.SampledFrom([]string{"", "", "a", "a", "b", "c", "d", "nowhere"}).Draw(t, "parent"),
		Weight:   rapid.Int64Range(0, 4).Draw(t, "weight"),
		Priority: rapid.Int32Range(0, 1).Draw(t, "priority"),
		Deserved: drawAmounts(t, 15, "deserved"),
		Limit:    limit,
		Stopped:  rapid.IntRange(0, 19).Draw(t, "stopped") == 0,
	}
}

var queueNames = []string{"a", "b", "c", "d", "e", "f", "g"}

// plant describes a whole tree of three levels and charges its leaves.
func plant(t *rapid.T, tree *queue.Tree, o *oracle) {
	for name, parent := range map[string]string{"a": "", "b": "", "c": "a", "d": "a", "e": "c", "f": "c", "g": "b"} {
		o.specs[name] = queue.Spec{Name: name, Parent: parent}
	}
	for _, name := range queueNames {
		spec := drawSpec(t, name)
		spec.Parent = o.specs[name].Parent
		tree.Set(spec)
		o.specs[name] = spec
	}
	for i := range 12 {
		c := queue.Charge{
			Queue:   rapid.SampledFrom([]string{"d", "e", "f", "g"}).Draw(t, "queue"),
			State:   queue.State(rapid.IntRange(0, 2).Draw(t, "state")),
			Amounts: drawAmounts(t, 9, "amounts"),
		}
		uid := types.UID(fmt.Sprint(i + 1))
		tree.Charge(uid, c.Queue, c.State, c.Amounts)
		o.charges[uid] = c
	}
	o.capacity = drawAmounts(t, 60, "capacity")
	tree.SetCapacity(o.capacity)
}

// steps are random changes of a tree and of its oracle.
func steps(t *rapid.T, tree *queue.Tree, o *oracle) {
	name := rapid.SampledFrom(queueNames)
	id := rapid.Custom(func(t *rapid.T) types.UID { return types.UID(fmt.Sprint(rapid.IntRange(1, 12).Draw(t, "id"))) })
	for range rapid.IntRange(1, 30).Draw(t, "steps") {
		switch rapid.SampledFrom([]string{"charge", "charge", "charge", "move", "set", "set", "discharge", "delete", "capacity"}).Draw(t, "step") {
		case "charge":
			c := queue.Charge{
				Queue:   rapid.SampledFrom(append([]string{"", "gone"}, queueNames...)).Draw(t, "queue"),
				State:   queue.State(rapid.IntRange(0, 2).Draw(t, "state")),
				Amounts: drawAmounts(t, 9, "amounts"),
			}
			uid := id.Draw(t, "uid")
			tree.Charge(uid, c.Queue, c.State, c.Amounts)
			o.charges[uid] = c
		case "move":
			uid := id.Draw(t, "uid")
			if c, ok := o.charges[uid]; ok {
				c.State = queue.State(rapid.IntRange(0, 2).Draw(t, "state"))
				tree.Charge(uid, c.Queue, c.State, c.Amounts)
				o.charges[uid] = c
			}
		case "discharge":
			uid := id.Draw(t, "uid")
			tree.Discharge(uid)
			delete(o.charges, uid)
		case "set":
			spec := drawSpec(t, name.Draw(t, "name"))
			tree.Set(spec)
			o.specs[spec.Name] = spec
		case "delete":
			n := name.Draw(t, "name")
			tree.Delete(n)
			delete(o.specs, n)
		case "capacity":
			o.capacity = drawAmounts(t, 60, "capacity")
			tree.SetCapacity(o.capacity)
		}
	}
}

// againstOracle changes a tree step by step and looks at it now and then, so
// that both what is computed at once and what is put off is seen.
func againstOracle(t *rapid.T) {
	tree, o := queue.New(), newOracle()
	tree.Model("H100")
	if rapid.IntRange(0, 3).Draw(t, "planted") > 0 {
		plant(t, tree, o)
		o.agree(t, tree, drawAmounts(t, 5, "ask"))
	}
	for range rapid.IntRange(1, 4).Draw(t, "looks") {
		steps(t, tree, o)
		o.agree(t, tree, drawAmounts(t, 5, "ask"))
	}
}

func TestTreeAgreesWithOracle(t *testing.T) { rapid.Check(t, againstOracle) }

func FuzzTreeAgreesWithOracle(f *testing.F) { f.Fuzz(rapid.MakeFuzz(againstOracle)) }
