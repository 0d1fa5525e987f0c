package queue_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/queue"
)

func TestCheck(t *testing.T) {
	tree := describe(100,
		queue.Spec{Name: "team", Limit: gpus(20)},
		queue.Spec{Name: "a", Parent: "team", Limit: gpus(30)}, queue.Spec{Name: "b", Parent: "team", Limit: gpus(8)},
		queue.Spec{Name: "stopped", Stopped: true}, queue.Spec{Name: "below", Parent: "stopped"},
		queue.Spec{Name: "x", Parent: "y"}, queue.Spec{Name: "y", Parent: "x"}, queue.Spec{Name: "z", Parent: "x"},
		queue.Spec{Name: "orphan", Parent: "nowhere"}, queue.Spec{Name: "child", Parent: "orphan"},
	)
	charge(tree, "a", queue.Allocated, 9)
	charge(tree, "b", queue.Held, 6)
	charge(tree, "a", queue.Pending, 50)
	cases := map[string]struct {
		queue    string
		ask      int64
		replaced []types.UID
		want     *queue.Refusal
	}{
		"fits":                       {queue: "a", ask: 5},
		"its own limit":              {queue: "b", ask: 3, want: &queue.Refusal{Kind: queue.LimitReached, Queue: "b", Limit: 8, Used: 6, Asked: 3}},
		"its own limit alone":        {queue: "b", ask: 9, want: &queue.Refusal{Kind: queue.LimitTooLow, Queue: "b", Limit: 8, Used: 6, Asked: 9}},
		"its parent's limit":         {queue: "a", ask: 6, want: &queue.Refusal{Kind: queue.LimitReached, Queue: "team", Limit: 20, Used: 15, Asked: 6}},
		"its parent's limit alone":   {queue: "a", ask: 22, want: &queue.Refusal{Kind: queue.LimitTooLow, Queue: "team", Limit: 20, Used: 15, Asked: 22}},
		"beyond for good is worse":   {queue: "b", ask: 21, want: &queue.Refusal{Kind: queue.LimitTooLow, Queue: "b", Limit: 8, Used: 6, Asked: 21}},
		"in place of another":        {queue: "a", ask: 11, replaced: []types.UID{"b-held"}},
		"in place of its own":        {queue: "b", ask: 8, replaced: []types.UID{"b-held"}},
		"in place of several":        {queue: "a", ask: 20, replaced: []types.UID{"b-held", "a-allocated"}},
		"in place of one that waits": {queue: "a", ask: 6, replaced: []types.UID{"a-pending", "?"}, want: &queue.Refusal{Kind: queue.LimitReached, Queue: "team", Limit: 20, Used: 15, Asked: 6}},
		"nothing asked":              {queue: "a"},
		"unknown":                    {queue: "?", want: &queue.Refusal{Kind: queue.UnknownQueue, Queue: "?"}},
		"inner":                      {queue: "team", want: &queue.Refusal{Kind: queue.NotLeaf, Queue: "team"}},
		"below a stopped one":        {queue: "below", want: &queue.Refusal{Kind: queue.Stopped, Queue: "stopped"}},
		"on a cycle":                 {queue: "y", want: &queue.Refusal{Kind: queue.ParentCycle, Queue: "y"}},
		"below a cycle":              {queue: "z", want: &queue.Refusal{Kind: queue.ParentCycle, Queue: "x"}},
		"no parent":                  {queue: "orphan", want: &queue.Refusal{Kind: queue.UnknownParent, Queue: "orphan", Parent: "nowhere"}},
		"no grandparent":             {queue: "child", want: &queue.Refusal{Kind: queue.UnknownParent, Queue: "orphan", Parent: "nowhere"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			wantEqual(t, "refusal", tc.want, tree.Check(tc.queue, gpus(tc.ask), tc.replaced...))
		})
	}
	for name, want := range (shares{"a": 5, "b": 2, "team": 5, "below": queue.Unlimited, "orphan": 0, "?": 0}) {
		if got := tree.Room(name).Get(queue.GPU); got != want {
			t.Errorf("room of %s: %d, want %d", name, got, want)
		}
	}
}

func TestRoomIsNeverNegative(t *testing.T) {
	tree := describe(100, queue.Spec{Name: "a", Limit: gpus(5)})
	charge(tree, "a", queue.Allocated, 9)
	wantEqual(t, "room", queue.Amounts{0, queue.Unlimited, queue.Unlimited}, tree.Room("a"))
	wantEqual(t, "problems", []queue.Problem{{Kind: queue.OverLimit, Have: 9, Allowed: 5}}, tree.Problems("a"))
}

func TestProblems(t *testing.T) {
	tree := describe(100,
		queue.Spec{Name: "team", Deserved: gpus(8)},
		queue.Spec{Name: "a", Parent: "team", Deserved: gpus(7)}, queue.Spec{Name: "b", Parent: "team", Deserved: gpus(5)},
		queue.Spec{Name: "x", Parent: "x"}, queue.Spec{Name: "z", Parent: "x"},
		queue.Spec{Name: "orphan", Parent: "nowhere"},
	)
	charge(tree, "team", queue.Pending, 1)
	charge(tree, "gone", queue.Pending, 1)
	want := map[string][]queue.Problem{
		"team":   {{Kind: queue.DeservedScaled, Have: 12, Allowed: 8}, {Kind: queue.HasPods, Have: 1}},
		"a":      nil,
		"x":      {{Kind: queue.ParentsFormCycle, Other: "x"}},
		"z":      {{Kind: queue.ParentsFormCycle, Other: "x"}},
		"orphan": {{Kind: queue.ParentMissing, Other: "nowhere"}},
		"gone":   nil,
	}
	seen := map[string]bool{}
	for name, w := range want {
		got := tree.Problems(name)
		wantEqual(t, "problems of "+name, w, got)
		for _, p := range got {
			seen[p.Message()] = true
		}
	}
	if len(seen) != 4 || seen["unknown"] {
		t.Errorf("messages: %v", seen)
	}
}

func TestNamesAndLinks(t *testing.T) {
	tree := describe(1, queue.Spec{Name: "b", Parent: "a"}, queue.Spec{Name: "c", Parent: "a", Priority: 5}, queue.Spec{Name: "a"}, queue.Spec{})
	charge(tree, "ghost", queue.Held, 1)
	charge(tree, "", queue.Held, 1)
	wantEqual(t, "names", []string{"a", "b", "c"}, tree.Names())
	wantEqual(t, "children", []string{"b", "c"}, tree.Children("a"))
	wantEqual(t, "top", []string{"a"}, tree.Children(""))
	wantEqual(t, "children of nobody", []string(nil), tree.Children("?"))
	if tree.Exists("ghost") || tree.Leaf("ghost") || tree.Leaf("a") || !tree.Leaf("b") || !tree.Exists("a") {
		t.Error("ghost is no queue, a is inner, b is a leaf")
	}
	tree.Delete("b")
	tree.Delete("c")
	tree.Delete("c")
	if !tree.Leaf("a") || tree.Exists("b") {
		t.Error("a is a leaf when its children are gone")
	}
	if got := tree.Total().Held.Get(queue.GPU); got != 2 {
		t.Errorf("held in all: %d, want 2", got)
	}
}

func TestAnIDHasOneCharge(t *testing.T) {
	tree := describe(100, queue.Spec{Name: "a"}, queue.Spec{Name: "b"})
	if _, ok := tree.Charged("u"); ok {
		t.Error("nothing is charged yet")
	}
	tree.Charge("u", "a", queue.Pending, gpus(3))
	tree.Charge("u", "b", queue.Held, queue.Amounts{4, -1, 1 << 60})
	got, _ := tree.Charged("u")
	wantEqual(t, "charge", queue.Charge{Queue: "b", State: queue.Held, Amounts: queue.Amounts{4, 0, 1 << 45}}, got)
	wantEqual(t, "demand of a", queue.Amounts{0, 0, 0}, tree.Usage("a").Demand)
	wantEqual(t, "held of b", queue.Amounts{4, 0, 1 << 45}, tree.Usage("b").Held)
	tree.Discharge("u")
	tree.Discharge("u")
	wantEqual(t, "demand of all", queue.Amounts{0, 0, 0}, tree.Total().Demand)
	for state, want := range map[queue.State]string{queue.Pending: "pending", queue.Held: "held", queue.Allocated: "allocated"} {
		if got := state.String(); got != want {
			t.Errorf("%d is %q, want %q", state, got, want)
		}
	}
}

func TestRefusalsHaveDifferentWords(t *testing.T) {
	words := map[string]bool{}
	for kind := queue.UnknownQueue; kind <= queue.LimitReached+1; kind++ {
		words[kind.String()] = true
	}
	if len(words) != 8 {
		t.Errorf("words: %v", words)
	}
}
