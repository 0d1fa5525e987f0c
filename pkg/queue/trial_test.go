package queue_test

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/tranche-dev/tranche/pkg/queue"
)

// contended is a tree whose 24 shares are all in use. Fair shares: team 12, of
// which a 6 and b 6; rest 12, of which c 9, which deserves that, and of the
// other 3 the bigger half, and d 1.
func contended() *queue.Tree {
	tree := describe(24,
		queue.Spec{Name: "team"}, queue.Spec{Name: "a", Parent: "team", Limit: gpus(7)}, queue.Spec{Name: "b", Parent: "team"},
		queue.Spec{Name: "rest"}, queue.Spec{Name: "c", Parent: "rest", Deserved: gpus(9)}, queue.Spec{Name: "d", Parent: "rest"},
		queue.Spec{Name: "stray", Parent: "nowhere"},
	)
	for name, n := range (shares{"a": 2, "b": 8, "c": 4, "d": 10}) {
		charge(tree, name, queue.Allocated, n)
		charge(tree, name, queue.Pending, 30)
	}
	return tree
}

func TestMayTake(t *testing.T) {
	wantEqual(t, "fair shares", shares{"team": 12, "a": 6, "b": 6, "rest": 12, "c": 11, "d": 1, "stray": 0}, fairShares(contended()))
	cases := map[string]struct {
		claimant string
		ask      int64
		queue    string
		unit     queue.Amounts
		want     bool
	}{
		"a sibling above its share":                        {"a", 4, "b", gpus(2), true},
		"a sibling, with a big unit":                       {"a", 4, "b", gpus(8), true},
		"more than the claimant is entitled to":            {"a", 5, "b", gpus(2), false},
		"a cousin whose parent is above its share as well": {"a", 2, "d", gpus(2), true},
		"more than the claimant's parent is entitled to":   {"a", 3, "d", gpus(2), false},
		"a cousin below its share":                         {"a", 2, "c", gpus(2), false},
		"within a parent that is above its own share":      {"c", 6, "d", gpus(1), true},
		"by one above its own share":                       {"d", 1, "b", gpus(1), false},
		"a unit without what is asked":                     {"a", 2, "b", queue.Amounts{0, 4000}, false},
		"nothing that anybody manages is asked":            {"a", 0, "b", gpus(1), false},
		"itself":                                           {"b", 1, "b", gpus(1), false},
		"the parent":                                       {"a", 1, "team", gpus(1), false},
		"a stray":                                          {"a", 1, "stray", gpus(1), false},
		"an unknown queue":                                 {"a", 1, "?", gpus(1), false},
		"by a stray":                                       {"stray", 1, "b", gpus(1), false},
		"by an unknown queue":                              {"?", 1, "b", gpus(1), false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := contended().Trial(tc.claimant, gpus(tc.ask)).MayTake(tc.queue, tc.unit); got != tc.want {
				t.Errorf("MayTake: %t, want %t", got, tc.want)
			}
		})
	}
}

// TestWhatAParentHasIsForItsChildrenFirst: y1 is above its share, but y is not,
// so only y2 may take from y1.
func TestWhatAParentHasIsForItsChildrenFirst(t *testing.T) {
	tree := describe(20,
		queue.Spec{Name: "x"}, queue.Spec{Name: "y"}, queue.Spec{Name: "y1", Parent: "y"}, queue.Spec{Name: "y2", Parent: "y"},
	)
	charge(tree, "y1", queue.Allocated, 8)
	charge(tree, "y2", queue.Pending, 9)
	charge(tree, "x", queue.Pending, 20)
	wantEqual(t, "fair shares", shares{"x": 10, "y": 10, "y1": 5, "y2": 5}, fairShares(tree))
	if tree.Trial("x", gpus(1)).MayTake("y1", gpus(1)) {
		t.Error("x may take from y1")
	}
	if !tree.Trial("y2", gpus(1)).MayTake("y1", gpus(1)) {
		t.Error("y2 may not take from y1")
	}
}

func TestTrialCountsWhatIsTaken(t *testing.T) {
	tree := contended()
	x := tree.Trial("a", gpus(3))
	// team uses 10 of its 12.
	if x.Entitled() || x.Fits() != nil {
		t.Error("with 3 more team is above its share; limits are no matter")
	}
	x.Take("b", gpus(1))
	if !x.Entitled() {
		t.Error("team is within its share when b is one less")
	}
	x.Take("b", gpus(1))
	if x.MayTake("b", gpus(1)) {
		t.Error("b is at its share when two are taken")
	}
	if !x.Justified() {
		t.Error("either of the two may be taken after the other")
	}
	x.Return("b", gpus(1))
	x.Return("b", gpus(5)) // was never taken
	if !x.MayTake("b", gpus(1)) {
		t.Error("b is above its share when one of the two is back")
	}
	if tree.Usage("b").Allocated.Get(queue.GPU) != 8 || tree.Entitled("a", gpus(3)) {
		t.Error("the trial has changed the tree")
	}

	over := tree.Trial("a", gpus(6))
	wantEqual(t, "refusal", &queue.Refusal{Kind: queue.LimitReached, Queue: "a", Limit: 7, Used: 2, Asked: 6}, over.Fits())
	over.Take("a", gpus(1))
	wantEqual(t, "refusal", (*queue.Refusal)(nil), over.Fits())
	wantEqual(t, "refusal", &queue.Refusal{Kind: queue.UnknownQueue, Queue: "?"}, tree.Trial("?", nil).Fits())
}

// TestSmallUnitsBeforeABigOneAreNotJustified: the big one alone was enough.
func TestSmallUnitsBeforeABigOneAreNotJustified(t *testing.T) {
	x := contended().Trial("c", gpus(6))
	x.Take("d", gpus(1))
	x.Take("d", gpus(9))
	if x.Justified() {
		t.Error("d may have 1, so the small unit could come back at once")
	}
	x.Return("d", gpus(1))
	if !x.Justified() {
		t.Error("with the big one back, d is above its share")
	}
}

// pod is a unit in the simulation of reclaims.
type pod struct {
	id      types.UID
	queue   string
	amounts queue.Amounts
	held    bool
	// entitled pods were admitted because they were entitled to it.
	entitled bool
}

// crowd plants a tree that is full of pods wherever they happened to come
// first, while others wait.
func crowd(t *rapid.T, tree *queue.Tree) (pods []*pod, capacity queue.Amounts) {
	plant(t, tree, newOracle())
	for _, name := range queueNames {
		spec := drawSpec(t, name)
		spec.Parent = map[string]string{"c": "a", "d": "a", "e": "c", "f": "c", "g": "b"}[name]
		// What is evicted from a stopped queue would not be wanted any more.
		spec.Stopped = false
		if rapid.IntRange(0, 3).Draw(t, "limited") > 0 {
			spec.Limit = nil
		}
		tree.Set(spec)
	}
	for i := range 12 {
		p := &pod{
			id: types.UID(fmt.Sprint(i + 1)), queue: rapid.SampledFrom([]string{"d", "e", "f", "g"}).Draw(t, "queue"),
			amounts: drawAmounts(t, 6, "amounts").Add(gpus(rapid.Int64Range(0, 3).Draw(t, "GPUs"))), held: rapid.Bool().Draw(t, "held"),
		}
		pods = append(pods, p)
		p.charge(tree)
		if p.held {
			capacity = capacity.Add(p.amounts)
		}
	}
	tree.SetCapacity(capacity)
	return pods, capacity
}

func (p *pod) charge(tree *queue.Tree) {
	state := queue.Pending
	if p.held {
		state = queue.Held
	}
	tree.Charge(p.id, p.queue, state, p.amounts)
}

// reclaims lets everybody who waits and is entitled take what is needed, until
// nobody can, and looks for any that is undone by a later one. It returns how
// many pods had to go.
func reclaims(t *rapid.T) (evicted int) {
	tree := queue.New()
	tree.Model("H100")
	pods, capacity := crowd(t, tree)
	fair := fairShares(tree)
	for range pods {
		victims, ok := reclaim(t, tree, pods, capacity)
		if !ok {
			wantSame(t, fair, fairShares(tree))
			return evicted
		}
		evicted += victims
	}
	if _, ok := reclaim(t, tree, pods, capacity); ok {
		t.Fatal("more reclaims than pods")
	}
	return evicted
}

func wantSame(t *rapid.T, want, got map[string]int64) {
	for name := range want {
		if want[name] != got[name] {
			t.Fatalf("the fair share of %s went from %d to %d although nobody wants anything else", name, want[name], got[name])
		}
	}
}

// reclaim admits one pod that waits, in the place of others if need be; not ok
// if there is none.
func reclaim(t *rapid.T, tree *queue.Tree, pods []*pod, capacity queue.Amounts) (evicted int, ok bool) {
	for _, claimant := range pods {
		if claimant.held || claimant.amounts.IsZero() || tree.Check(claimant.queue, nil) != nil {
			continue
		}
		x := tree.Trial(claimant.queue, claimant.amounts)
		var victims []*pod
		total := tree.Total()
		missing := claimant.amounts.Add(total.Held).Sub(capacity)
		for _, i := range rapid.Permutation([]int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}).Draw(t, "victims") {
			victim := pods[i]
			if lacks(missing, claimant.amounts) && victim.held && x.MayTake(victim.queue, victim.amounts) {
				x.Take(victim.queue, victim.amounts)
				victims = append(victims, victim)
				missing = missing.Sub(victim.amounts)
			}
		}
		if lacks(missing, claimant.amounts) || !x.Entitled() || x.Fits() != nil {
			continue
		}
		justified := x.Justified()
		for _, victim := range victims {
			if victim.entitled {
				t.Fatalf("%s takes from %s, which took that itself", claimant.id, victim.id)
			}
			victim.held = false
			victim.charge(tree)
		}
		claimant.held, claimant.entitled = true, true
		claimant.charge(tree)
		for _, victim := range victims {
			if tree.Entitled(victim.queue, victim.amounts) && (justified || len(victims) == 1) {
				t.Fatalf("%s is entitled to come back after %s has taken its place", victim.id, claimant.id)
			}
			if tree.Trial(victim.queue, victim.amounts).MayTake(claimant.queue, claimant.amounts) {
				t.Fatalf("%s may take back from %s", victim.id, claimant.id)
			}
		}
		return len(victims), true
	}
	return 0, false
}

// lacks says whether something that is asked is missing.
func lacks(missing, ask queue.Amounts) bool {
	for r, n := range missing {
		if n > 0 && ask.Get(queue.Resource(r)) > 0 {
			return true
		}
	}
	return false
}

func TestReclaimsDoNotUndoEachOther(t *testing.T) {
	trees, several := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		trees++
		if reclaims(t) > 1 {
			several++
		}
	})
	if several*20 < trees {
		t.Errorf("in %d trees only %d times several pods had to go, which does not tell much", trees, several)
	}
}

func FuzzReclaimsDoNotUndoEachOther(f *testing.F) {
	f.Fuzz(rapid.MakeFuzz(func(t *rapid.T) { reclaims(t) }))
}

// What is under way counts for every claimant, and what one takes does not count
// for the next.
func TestTrialForAnotherClaimant(t *testing.T) {
	tree := queue.New()
	tree.SetCapacity(queue.Amounts{800})
	for name, deserved := range map[string]int64{"a": 400, "b": 200, "c": 200} {
		tree.Set(queue.Spec{Name: name, Deserved: queue.Amounts{deserved}})
	}
	one := queue.Amounts{100}
	for i := range 8 {
		tree.Charge(types.UID(fmt.Sprint("a", i)), "a", queue.Allocated, one)
	}
	for i := range 3 {
		tree.Charge(types.UID(fmt.Sprint("b", i)), "b", queue.Pending, one)
		tree.Charge(types.UID(fmt.Sprint("c", i)), "c", queue.Pending, one)
	}
	base := tree.Trial("", nil)
	base.Assume("b", one, 1) // two of a are on their way out for b already
	base.Assume("b", one, 1)
	base.Assume("a", one, -1)
	base.Assume("a", one, -1)
	if b := base.For("b", one); b.Entitled() || b.WithinDeserved() {
		t.Error("b is entitled to a third GPU")
	}
	c := base.For("c", one)
	if !c.Entitled() || !c.WithinDeserved() || !c.MayTake("a", one) {
		t.Error("c is not entitled to its first")
	}
	c.Take("a", one)
	c.Take("a", one)
	if c.MayTake("a", one) {
		t.Error("a may be left with less than its share")
	}
	if !base.For("c", one).MayTake("a", one) {
		t.Error("what one trial takes counts in the next")
	}
}
