package queue_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/tranche-dev/tranche/pkg/queue"
)

// answers are those of Check to some asks, for all queues.
func answers(tree *queue.Tree, asks []queue.Amounts) map[string][]any {
	all := map[string][]any{}
	for _, name := range append([]string{"gone"}, queueNames...) {
		for _, ask := range asks {
			var answer any = "yes"
			if r := tree.Check(name, ask); r != nil {
				answer = *r
			}
			all[name] = append(all[name], answer)
		}
	}
	return all
}

// doorsAndMarks holds Doors against what is said of each queue by itself, and
// Mark against the answers for which it stands.
func doorsAndMarks(t *rapid.T) {
	tree, o := queue.New(), newOracle()
	tree.Model("H100")
	plant(t, tree, o)
	asks := []queue.Amounts{nil, gpus(1), drawAmounts(t, 5, "ask"), drawAmounts(t, 5, "another")}
	for range rapid.IntRange(1, 4).Draw(t, "looks") {
		before, marks := answers(tree, asks), map[string]uint64{}
		for name := range before {
			marks[name] = tree.Mark(name)
		}
		steps(t, tree, o)
		for name, after := range answers(tree, asks) {
			if tree.Mark(name) == marks[name] {
				wantSameAnswers(t, name, before[name], after)
			}
		}
		for r := range queue.FirstModel + 1 {
			doors := map[string]queue.Door{}
			for _, d := range tree.Doors(r) {
				doors[d.Queue] = d
			}
			for _, name := range queueNames {
				d, open := doors[name]
				if takes := tree.Check(name, nil) == nil; open != takes {
					t.Fatalf("%s has a door: %v; it takes pods: %v", name, open, takes)
				}
				if open && (d.Limit != tree.Room(name).Get(r) || d.Share != tree.ShareRoom(name).Get(r)) {
					t.Fatalf("the door of %s for %d is %+v, want %d and %d", name, r, d, tree.Room(name).Get(r), tree.ShareRoom(name).Get(r))
				}
			}
		}
	}
}

func wantSameAnswers(t *rapid.T, name string, before, after []any) {
	for i := range before {
		if before[i] != after[i] {
			t.Fatalf("the mark of %s is the same, and yet it answered %+v and then %+v", name, before[i], after[i])
		}
	}
}

func TestDoorsAndMarks(t *testing.T) { rapid.Check(t, doorsAndMarks) }
