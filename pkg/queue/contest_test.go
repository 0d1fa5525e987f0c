package queue_test

import (
	"cmp"
	"fmt"
	"math/big"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/tranche-dev/tranche/pkg/queue"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// TestContestServesByDeservedThenShare works off a small tree by hand.
func TestContestServesByDeservedThenShare(t *testing.T) {
	// Of 12, team and in it a have the 2 that they deserve, the other 10 go 2:1
	// to team and other, 7 and 3, and the 7 of team's 1:1 to a and b, 4 and 3.
	// Heads ask one share each.
	tree := describe(12,
		queue.Spec{Name: "team", Deserved: gpus(2), Weight: 2}, queue.Spec{Name: "a", Parent: "team", Deserved: gpus(2)},
		queue.Spec{Name: "b", Parent: "team"}, queue.Spec{Name: "other"},
	)
	for _, name := range []string{"a", "b", "other"} {
		for i := range 20 {
			tree.Charge(types.UID(fmt.Sprint(name, i)), name, queue.Pending, gpus(1))
		}
	}
	wantEqual(t, "fair shares", shares{"team": 9, "a": 6, "b": 3, "other": 3}, fairShares(tree))
	served := map[string]int{}
	contest := tree.Contest()
	head := func(name string) queue.Head {
		return queue.Head{Ask: gpus(1), Created: start.Add(time.Duration(served[name]) * time.Second)}
	}
	for _, name := range []string{"a", "b", "other", "team", "?"} {
		if in, want := contest.Set(name, head(name)), tree.Leaf(name); in != want {
			t.Errorf("%s in the contest: %t, want %t", name, in, want)
		}
	}
	var order string
	for range 12 {
		name, ok := contest.Next()
		if !ok {
			t.Fatal("nobody is next")
		}
		order += name[:1]
		tree.Charge(types.UID(fmt.Sprint(name, served[name])), name, queue.Held, gpus(1))
		served[name]++
		contest.Set(name, head(name))
	}
	// team and a deserve two: aa. Then other is at 0/3 and team at 2/9: o. Now
	// team is behind, and in it b at 0/3 behind a at 2/6: b. Then team at 3/9
	// equals other at 1/3, and both have their second head, b's being older
	// than a's, so the name decides: o.
	if want := "aaobo"; order[:5] != want {
		t.Errorf("served %s, want %s first", order, want)
	}
	if !contest.Valid() {
		t.Error("the contest is valid while nobody wants anything else")
	}
	wantEqual(t, "served", map[string]int{"a": 6, "b": 3, "other": 3}, served)
	contest.Clear("a")
	contest.Clear("b")
	contest.Clear("b")
	contest.Clear("?")
	if name, ok := contest.Next(); name != "other" || !ok {
		t.Errorf("next is %q, want other", name)
	}
	contest.Clear("other")
	if name, ok := contest.Next(); ok {
		t.Errorf("next is %q, want nobody", name)
	}
	tree.Charge("new", "b", queue.Pending, gpus(1))
	if contest.Valid() {
		t.Error("the contest is valid although more is wanted")
	}
}

func TestContestBreaksTies(t *testing.T) {
	old := queue.Head{Ask: gpus(1), Created: start, ID: "z"}
	young := queue.Head{Ask: gpus(1), Created: start.Add(time.Second), ID: "a"}
	important := queue.Head{Ask: gpus(1), Created: start.Add(time.Minute), Priority: 1}
	cases := map[string]struct {
		a, b queue.Head
		want string
	}{
		"older":          {young, old, "b"},
		"more important": {old, important, "b"},
		"first by name":  {old, old, "a"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			contest := describe(0, queue.Spec{Name: "a"}, queue.Spec{Name: "b"}).Contest()
			contest.Set("a", tc.a)
			contest.Set("b", tc.b)
			if got, _ := contest.Next(); got != tc.want {
				t.Errorf("next is %s, want %s", got, tc.want)
			}
		})
	}
}

// TestContestSurvivesDeletedQueues: whoever asks for the next until there is
// none comes to an end, whatever happened to the queues.
func TestContestSurvivesDeletedQueues(t *testing.T) {
	tree := describe(10, queue.Spec{Name: "team"}, queue.Spec{Name: "a", Parent: "team"}, queue.Spec{Name: "b"})
	contest := tree.Contest()
	contest.Set("a", queue.Head{})
	contest.Set("b", queue.Head{})
	tree.Delete("a")
	tree.Delete("b")
	tree.Model("new")
	contest.Set("team", queue.Head{})
	for _, name := range []string{"a", "b", "team"} {
		contest.Clear(name)
	}
	if name, ok := contest.Next(); ok {
		t.Errorf("next is %q, want nobody", name)
	}
}

// rival is a queue in the naive contest: all keys written out.
type rival struct {
	name, leaf string
	head       queue.Head
	within     bool
	infinite   bool
	share      *big.Rat
}

// naive finds the next leaf by sorting all children at each level.
func naive(tree *queue.Tree, name string, heads map[string]queue.Head) *rival {
	var rivals []*rival
	for _, child := range tree.Children(name) {
		served := naive(tree, child, heads)
		if head, ok := heads[child]; ok {
			served = &rival{leaf: child, head: head}
		}
		if served == nil {
			continue
		}
		x := &rival{name: child, leaf: served.leaf, head: served.head, within: true, share: new(big.Rat)}
		u := tree.Usage(child)
		used := u.Allocated.Add(u.Held)
		for r := range queue.FirstModel + 1 {
			if !tree.Managed(r) {
				continue
			}
			if asked := x.head.Ask.Get(r); asked > 0 && used.Get(r)+asked > u.Deserved.Get(r) {
				x.within = false
			}
			switch fair := u.FairShare.Get(r); {
			case fair > 0:
				if share := big.NewRat(used.Get(r), fair); share.Cmp(x.share) > 0 {
					x.share = share
				}
			case used.Get(r) > 0:
				x.infinite = true
			}
		}
		if x.infinite {
			x.share = new(big.Rat)
		}
		rivals = append(rivals, x)
	}
	if len(rivals) == 0 {
		return nil
	}
	first := func(b bool) int {
		if b {
			return 0
		}
		return 1
	}
	return slices.MinFunc(rivals, func(a, b *rival) int {
		return cmp.Or(
			cmp.Compare(first(a.within), first(b.within)), cmp.Compare(first(b.infinite), first(a.infinite)), a.share.Cmp(b.share),
			cmp.Compare(b.head.Priority, a.head.Priority), a.head.Created.Compare(b.head.Created), cmp.Compare(a.name, b.name),
		)
	})
}

func contestAgrees(t *rapid.T) {
	tree, o := queue.New(), newOracle()
	tree.Model("H100")
	plant(t, tree, o)
	if rapid.Bool().Draw(t, "changed") {
		steps(t, tree, o)
	}
	heads := map[string]queue.Head{}
	contest := tree.Contest()
	serves := 0
	for range rapid.IntRange(1, 40).Draw(t, "rounds") {
		var want string
		if next := naive(tree, "", heads); next != nil {
			want = next.leaf
		}
		got, ok := contest.Next()
		if got != want || ok != (want != "") {
			t.Fatalf("next is %q, want %q", got, want)
		}
		name := rapid.SampledFrom(queueNames).Draw(t, "queue")
		if rapid.Bool().Draw(t, "serve") && ok {
			name = got
			// A pod of the queue that waits is admitted.
			for id, c := range o.charges {
				if c.Queue == name && c.State == queue.Pending {
					c.State = queue.Held
					tree.Charge(id, name, queue.Held, c.Amounts)
					o.charges[id] = c
					serves++
				}
			}
		}
		if rapid.IntRange(0, 4).Draw(t, "clear") == 0 {
			contest.Clear(name)
			delete(heads, name)
			continue
		}
		head := queue.Head{
			Ask: drawAmounts(t, 5, "ask"), Priority: rapid.Int32Range(0, 1).Draw(t, "priority"),
			Created: start.Add(time.Duration(rapid.IntRange(0, 2).Draw(t, "age")) * time.Second),
		}
		if contest.Set(name, head) {
			heads[name] = head
		}
	}
	if !contest.Valid() {
		t.Fatalf("the contest is invalid after %d pods were admitted", serves)
	}
}

func TestContestAgreesWithASort(t *testing.T) { rapid.Check(t, contestAgrees) }

func FuzzContestAgreesWithASort(f *testing.F) { f.Fuzz(rapid.MakeFuzz(contestAgrees)) }
