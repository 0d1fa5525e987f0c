package queue_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/tranche-dev/tranche/pkg/queue"
)

// invariants holds a tree against what must be true of any, without knowing
// how shares are computed.
func invariants(t *rapid.T, tree *queue.Tree) {
	overLimit := slices.ContainsFunc(tree.Names(), func(name string) bool {
		return slices.ContainsFunc(tree.Problems(name), func(p queue.Problem) bool { return p.Kind == queue.OverLimit })
	})
	for _, name := range append([]string{""}, tree.Names()...) {
		if name != "" && len(tree.Problems(name)) > 0 && tree.Problems(name)[0].Kind <= queue.ParentsFormCycle {
			continue // a stray divides nothing
		}
		u, children := tree.Usage(name), tree.Children(name)
		if name == "" {
			u = tree.Total()
		}
		for r := range queue.FirstModel + 1 {
			var allocated, held, demand, fair, deserved int64
			short := false
			for _, child := range children {
				c := tree.Usage(child)
				allocated += c.Allocated.Get(r)
				held += c.Held.Get(r)
				demand += c.Demand.Get(r)
				deserved += c.Deserved.Get(r)
				if c.EffectiveLimit[r] > u.EffectiveLimit[r] {
					t.Fatalf("I4: %s may have more of %d than %s", child, r, name)
				}
				if !tree.Managed(r) {
					continue
				}
				fair += c.FairShare.Get(r)
				if c.FairShare[r] < 0 || c.FairShare[r] > min(c.Demand[r], c.EffectiveLimit[r]) {
					t.Fatalf("I8: fair share %d of %s, which wants %d and may have %d", c.FairShare[r], child, c.Demand[r], c.EffectiveLimit[r])
				}
				short = short || c.FairShare[r] < min(c.Deserved[r], c.Allocated[r]+c.Held[r])
			}
			if tree.Managed(r) && fair > u.FairShare[r] {
				t.Fatalf("I7: children of %q have fair shares of %d together, it has %d", name, fair, u.FairShare[r])
			}
			if tree.Managed(r) && short && !overLimit && deserved <= u.FairShare[r] && len(tree.Problems(name)) == 0 {
				t.Fatalf("I8: a child of %q gets less than it deserves and uses, though there is enough", name)
			}
			if name != "" && u.Deserved[r] > 0 && deserved > u.Deserved[r] {
				t.Fatalf("I3: children of %s deserve %d together, it deserves %d", name, deserved, u.Deserved[r])
			}
			if allocated > u.Allocated.Get(r) || held > u.Held.Get(r) || demand > u.Demand.Get(r) {
				t.Fatalf("I5: children of %q have more than it has", name)
			}
		}
	}
}

// admissions admits random asks wherever Check lets it, and sees that no limit
// is passed by that.
func admissions(t *rapid.T, tree *queue.Tree) {
	for i := range rapid.IntRange(0, 10).Draw(t, "asks") {
		name := rapid.SampledFrom(queueNames).Draw(t, "queue")
		ask := drawAmounts(t, 6, "ask")
		if tree.Check(name, ask) != nil {
			continue
		}
		if !tree.Leaf(name) {
			t.Fatalf("I2: %s admits pods although it is no leaf", name)
		}
		tree.Charge(types.UID(fmt.Sprint("admitted ", i)), name, queue.Held, ask)
		u := tree.Usage(name)
		for r, asked := range ask {
			if asked > 0 && u.Allocated.Add(u.Held).Get(queue.Resource(r)) > u.EffectiveLimit[r] {
				t.Fatalf("I6: %s passed its limit", name)
			}
			if asked > 0 && tree.Room(name)[r] < 0 {
				t.Fatalf("I6: no room left in %s", name)
			}
		}
	}
}

func holdsInvariants(t *rapid.T) {
	tree, o := queue.New(), newOracle()
	tree.Model("H100")
	plant(t, tree, o)
	for range rapid.IntRange(1, 3).Draw(t, "looks") {
		invariants(t, tree)
		admissions(t, tree)
		invariants(t, tree)
		steps(t, tree, o)
	}
	invariants(t, tree)
}

func TestInvariants(t *testing.T) { rapid.Check(t, holdsInvariants) }

func FuzzInvariants(f *testing.F) { f.Fuzz(rapid.MakeFuzz(holdsInvariants)) }

// state is all that can be asked of a tree, but its models.
func state(tree *queue.Tree) map[string]any {
	all := map[string]any{"": tree.Total(), "names": tree.Names()}
	for _, name := range append([]string{"gone"}, queueNames...) {
		all[name] = []any{tree.Usage(name), tree.Problems(name), tree.Children(name), tree.Room(name), tree.ShareRoom(name)}
	}
	return all
}

// TestOrderDoesNotMatter: I11, for the last word on every queue and id.
func TestOrderDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tree, o := queue.New(), newOracle()
		plant(t, tree, o)
		steps(t, tree, o)
		words := []func(tree *queue.Tree){func(tree *queue.Tree) { tree.SetCapacity(o.capacity) }}
		for _, spec := range o.specs {
			words = append(words, func(tree *queue.Tree) { tree.Set(spec) })
		}
		for id, c := range o.charges {
			words = append(words, func(tree *queue.Tree) { tree.Charge(id, c.Queue, c.State, c.Amounts) })
		}
		words = rapid.Permutation(words).Draw(t, "order")
		again := queue.New()
		again.Model("H100")
		tree.Model("H100")
		for i, word := range words {
			word(again)
			if i%5 == 0 {
				again.Total() // solves what is there so far
			}
		}
		if diff := cmp.Diff(state(tree), state(again)); diff != "" {
			t.Fatalf("another order (-first +second):\n%s", diff)
		}
	})
}

// TestReplayAfterManyEventsIsEqual: I10. Nothing leaks in 100,000 events.
func TestReplayAfterManyEventsIsEqual(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	tree, o := queue.New(), newOracle()
	tree.Model("H100")
	pick := func(names ...string) string { return names[random.IntN(len(names))] }
	vector := func(most int64) queue.Amounts {
		v := make(queue.Amounts, random.IntN(int(queue.FirstModel)+2))
		for r := range v {
			v[r] = random.Int64N(most)
		}
		return v
	}
	for event := range 100_000 {
		id, name := types.UID(fmt.Sprint(random.IntN(300))), pick(queueNames...)
		switch n := random.IntN(100); {
		case n < 40:
			c := queue.Charge{Queue: pick(append(queueNames, "gone", "")...), State: queue.State(random.IntN(3)), Amounts: vector(9)}
			tree.Charge(id, c.Queue, c.State, c.Amounts)
			o.charges[id] = c
		case n < 70:
			if c, ok := o.charges[id]; ok {
				c.State = queue.State(random.IntN(3))
				tree.Charge(id, c.Queue, c.State, c.Amounts)
				o.charges[id] = c
			}
		case n < 90:
			tree.Discharge(id)
			delete(o.charges, id)
		case n < 94:
			spec := queue.Spec{Name: name, Parent: pick("", "a", "b", "c", "nowhere"), Weight: random.Int64N(4), Deserved: vector(200), Limit: vector(900)}
			tree.Set(spec)
			o.specs[name] = spec
		case n < 95:
			tree.Delete(name)
			delete(o.specs, name)
		case n < 96:
			o.capacity = vector(2000)
			tree.SetCapacity(o.capacity)
		default:
			tree.Usage(name)
		}
		if event%20_000 != 19_999 {
			continue
		}
		again := queue.New()
		again.Model("H100")
		again.SetCapacity(o.capacity)
		for _, spec := range o.specs {
			again.Set(spec)
		}
		for _, id := range slices.Sorted(maps.Keys(o.charges)) {
			c := o.charges[id]
			again.Charge(id, c.Queue, c.State, c.Amounts)
		}
		if diff := cmp.Diff(state(again), state(tree)); diff != "" {
			t.Fatalf("after %d events (-replayed +lived):\n%s", event+1, diff)
		}
	}
}
