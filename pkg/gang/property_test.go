package gang_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const seeds = 10_000

// TestPlanFindsPlacesForEqualMembersIfThereAreAny compares with a search of
// everything.
func TestPlanFindsPlacesForEqualMembersIfThereAreAny(t *testing.T) {
	found, none := 0, 0
	for seed := range uint64(seeds) {
		w := random(seed, true)
		places, shortfall := w.plan()
		if places != nil {
			if problem := wrong(w, places); problem != "" {
				t.Fatalf("seed %d: %s", seed, problem)
			}
			found++
			continue
		}
		if possible(w) {
			t.Fatalf("seed %d: Plan says %q, but there is a placement", seed, shortfall.Message())
		}
		none++
	}
	t.Logf("%d found, %d impossible", found, none)
	if found < seeds/10 || none < seeds/10 {
		t.Errorf("%d found and %d impossible is too one-sided to tell much", found, none)
	}
}

// TestPlanOfUnequalMembersIsValidAndRarelyMisses bounds what the heuristic
// gives up on although there is a placement.
func TestPlanOfUnequalMembersIsValidAndRarelyMisses(t *testing.T) {
	found, missed := 0, 0
	for seed := range uint64(seeds) {
		w := random(seed, false)
		places, _ := w.plan()
		switch {
		case places != nil:
			if problem := wrong(w, places); problem != "" {
				t.Fatalf("seed %d: %s", seed, problem)
			}
			found++
		case possible(w):
			missed++
			t.Logf("seed %d: missed", seed)
		}
	}
	t.Logf("%d found, %d missed", found, missed)
	if missed*500 > found {
		t.Errorf("missed %d of %d possible placements, want at most one in 500", missed, found+missed)
	}
}

// TestPlanDependsOnNothingButItsInput runs each world twice and with its nodes
// in another order.
func TestPlanDependsOnNothingButItsInput(t *testing.T) {
	for seed := range uint64(seeds / 10) {
		w := random(seed, seed%2 == 0)
		before := fmt.Sprint(stockOf(w), w.members)
		want := answer(w)
		if diff := cmp.Diff(want, answer(w)); diff != "" {
			t.Fatalf("seed %d: the second answer differs (-first +second):\n%s", seed, diff)
		}
		if diff := cmp.Diff(want, answer(w.shuffled(seed))); diff != "" {
			t.Fatalf("seed %d: the order of nodes matters (-before +after):\n%s", seed, diff)
		}
		if after := fmt.Sprint(stockOf(w), w.members); after != before {
			t.Fatalf("seed %d: Plan changed its input from %s to %s", seed, before, after)
		}
	}
}

// answer is what Plan says, as text.
func answer(w *world) string {
	places, shortfall := w.plan()
	if shortfall != nil {
		return shortfall.Message()
	}
	return fmt.Sprint(places)
}

// TestPlanKeepsPins plans, pins some members where they are, and plans the
// others again without what the gang holds.
func TestPlanKeepsPins(t *testing.T) {
	pinned := 0
	for seed := range uint64(seeds / 4) {
		w := random(seed, seed%2 == 0)
		places, shortfall := w.plan()
		if shortfall != nil {
			continue
		}
		for i := range w.members {
			if i%2 == int(seed%2) {
				w.members[i].Pinned, w.members[i].Plan = places[i].Node, places[i].Plan
				pinned++
			}
		}
		w.hold(places)
		again, shortfall := w.plan()
		if shortfall != nil {
			if len(w.members) < 3 || seed%2 == 0 {
				t.Fatalf("seed %d: %s, though the rest had places before", seed, shortfall.Message())
			}
			continue
		}
		if problem := wrong(w, again); problem != "" {
			t.Fatalf("seed %d: %s", seed, problem)
		}
	}
	if pinned == 0 {
		t.Error("nothing was pinned")
	}
}

func FuzzPlan(f *testing.F) {
	f.Add(uint64(1), true)
	f.Add(uint64(2), false)
	f.Fuzz(func(t *testing.T, seed uint64, equal bool) {
		w := random(seed, equal)
		places, shortfall := w.plan()
		switch {
		case (places == nil) == (shortfall == nil):
			t.Fatalf("places %v and shortfall %v", places, shortfall)
		case places != nil:
			if problem := wrong(w, places); problem != "" {
				t.Fatal(problem)
			}
		case shortfall.Message() == "":
			t.Fatal("no message")
		case equal && possible(w):
			t.Fatalf("Plan says %q, but there is a placement", shortfall.Message())
		}
	})
}
