package queue_test

import (
	"testing"

	"github.com/tranche-dev/tranche/pkg/queue"
)

type shares = map[string]int64

// TestFairShares has the numbers of trees that were worked out by hand.
func TestFairShares(t *testing.T) {
	cases := map[string]struct {
		capacity int64
		specs    []queue.Spec
		// pending and allocated are shares by queue.
		pending, allocated shares
		want               shares
	}{
		"what is deserved first, then the surplus by priority": {
			// The top: research deserves 60 and wants 55, product 40 of 90. The
			// 5 that are left go to product. Below research, nlp gets 40 and
			// vision 5; nlp the 10 that are left. Below product, 10 each; the
			// 25 that are left go to search, which has the priority.
			capacity: 100,
			specs: []queue.Spec{
				{Name: "research", Deserved: gpus(60)},
				{Name: "nlp", Parent: "research", Deserved: gpus(40)},
				{Name: "vision", Parent: "research", Deserved: gpus(20)},
				{Name: "product", Deserved: gpus(40)},
				{Name: "ads", Parent: "product", Deserved: gpus(10), Weight: 100},
				{Name: "search", Parent: "product", Deserved: gpus(10), Priority: 10},
			},
			pending: shares{"nlp": 50, "vision": 5, "ads": 30, "search": 60},
			want:    shares{"research": 55, "nlp": 50, "vision": 5, "product": 45, "ads": 10, "search": 35},
		},
		"weights on two levels": {
			// The top: 3 to 1 of 100 is 75 and 25. Below a, 2 to 1 of 75 is 50
			// and 25. Below b, x wants but 5 and y takes the rest.
			capacity: 100,
			specs: []queue.Spec{
				{Name: "a", Weight: 3},
				{Name: "a1", Parent: "a", Weight: 2},
				{Name: "a2", Parent: "a", Weight: 1},
				{Name: "b", Weight: 1},
				{Name: "x", Parent: "b"},
				{Name: "y", Parent: "b"},
			},
			pending: shares{"a1": 200, "a2": 200, "x": 5, "y": 200},
			want:    shares{"a": 75, "a1": 50, "a2": 25, "b": 25, "x": 5, "y": 20},
		},
		"equal weights, remainders by name": {
			capacity: 10,
			specs:    []queue.Spec{{Name: "c"}, {Name: "b"}, {Name: "a"}},
			pending:  shares{"a": 9, "b": 9, "c": 9},
			want:     shares{"a": 4, "b": 3, "c": 3},
		},
		"the largest remainder": {
			// Of 10 by 3:2:2, 4 2/7 and twice 2 6/7.
			capacity: 10,
			specs:    []queue.Spec{{Name: "a", Weight: 3}, {Name: "b", Weight: 2}, {Name: "c", Weight: 2}},
			pending:  shares{"a": 9, "b": 9, "c": 9},
			want:     shares{"a": 4, "b": 3, "c": 3},
		},
		"what one cannot use goes to the others by weight": {
			// 25 per weight would be 25, 25, 50; a takes 10, so 30 per weight.
			capacity: 100,
			specs:    []queue.Spec{{Name: "a"}, {Name: "b"}, {Name: "c", Weight: 2}},
			pending:  shares{"a": 10, "b": 100, "c": 100},
			want:     shares{"a": 10, "b": 30, "c": 60},
		},
		"three priorities": {
			// The 20 deserved by low come first. Then high takes all it wants,
			// 30, and the two in the middle share 50 by 4:1; 40 and 10.
			capacity: 100,
			specs: []queue.Spec{
				{Name: "low", Deserved: gpus(20), Priority: -1},
				{Name: "high", Priority: 7},
				{Name: "mid1", Weight: 4},
				{Name: "mid2"},
			},
			pending: shares{"low": 90, "high": 30, "mid1": 90, "mid2": 90},
			want:    shares{"low": 20, "high": 30, "mid1": 40, "mid2": 10},
		},
		"children that deserve more than their parent": {
			// 8 and 12 are cut to 4 and 6, which is all that team has.
			capacity: 30,
			specs: []queue.Spec{
				{Name: "team", Deserved: gpus(10)},
				{Name: "a", Parent: "team", Deserved: gpus(8)},
				{Name: "b", Parent: "team", Deserved: gpus(12)},
				{Name: "other", Deserved: gpus(20)},
			},
			pending: shares{"a": 20, "b": 20, "other": 30},
			want:    shares{"team": 10, "a": 4, "b": 6, "other": 20},
		},
		"a parent that deserves nothing itself leaves its children theirs": {
			// The surplus of 15 and 15; a is sure of 10 of it, then 5 are left
			// for b and a: 3 and 2, the odd one to the first by name.
			capacity: 30,
			specs: []queue.Spec{
				{Name: "team"},
				{Name: "a", Parent: "team", Deserved: gpus(10)},
				{Name: "b", Parent: "team"},
				{Name: "other"},
			},
			pending: shares{"a": 20, "b": 20, "other": 30},
			want:    shares{"team": 15, "a": 13, "b": 2, "other": 15},
		},
		"a cluster too small for what is deserved": {
			capacity: 20,
			specs:    []queue.Spec{{Name: "a", Deserved: gpus(30)}, {Name: "b", Deserved: gpus(10)}, {Name: "c", Priority: 9}},
			pending:  shares{"a": 50, "b": 50, "c": 50},
			want:     shares{"a": 15, "b": 5, "c": 0},
		},
		"what is deserved and not wanted is lent": {
			capacity: 20,
			specs:    []queue.Spec{{Name: "a", Deserved: gpus(30)}, {Name: "b", Deserved: gpus(10)}, {Name: "c"}},
			pending:  shares{"a": 5, "b": 50, "c": 2},
			want:     shares{"a": 5, "b": 13, "c": 2},
		},
		"limits at every level": {
			// team may have 10 whatever its children want; within, b at most 3.
			capacity: 100,
			specs: []queue.Spec{
				{Name: "team", Limit: gpus(10)},
				{Name: "a", Parent: "team"},
				{Name: "b", Parent: "team", Limit: gpus(3)},
				{Name: "other", Limit: gpus(queue.Unlimited)},
			},
			pending: shares{"a": 50, "b": 50, "other": 95},
			want:    shares{"team": 10, "a": 7, "b": 3, "other": 90},
		},
		"a limit below what is used": {
			capacity:  100,
			specs:     []queue.Spec{{Name: "a", Limit: gpus(10), Deserved: gpus(50)}, {Name: "b"}},
			allocated: shares{"a": 40}, pending: shares{"b": 95},
			want: shares{"a": 10, "b": 90},
		},
		"pods of an inner queue keep what they have and get no more": {
			capacity:  20,
			specs:     []queue.Spec{{Name: "team"}, {Name: "a", Parent: "team", Deserved: gpus(20)}},
			allocated: shares{"team": 5}, pending: shares{"team": 100, "a": 100},
			want: shares{"team": 20, "a": 15},
		},
		"a stopped queue keeps what it has and gets no more": {
			capacity: 20,
			specs: []queue.Spec{
				{Name: "team", Stopped: true, Deserved: gpus(15)},
				{Name: "a", Parent: "team", Deserved: gpus(15)},
				{Name: "other"},
			},
			allocated: shares{"a": 4}, pending: shares{"a": 100, "other": 100},
			want: shares{"team": 4, "a": 4, "other": 16},
		},
		"strays are set aside": {
			// 3 of a cycle, 4 of an unknown queue, 5 below an unknown one.
			capacity: 20,
			specs: []queue.Spec{
				{Name: "x", Parent: "y"},
				{Name: "y", Parent: "x"},
				{Name: "below", Parent: "x"},
				{Name: "orphan", Parent: "nowhere", Deserved: gpus(20)},
				{Name: "good"},
			},
			allocated: shares{"below": 3, "unknown": 4, "orphan": 5},
			pending:   shares{"below": 100, "orphan": 100, "good": 100},
			want:      shares{"x": 3, "y": 0, "below": 3, "orphan": 5, "good": 8},
		},
		"strays that use more than there is": {
			capacity: 20, specs: []queue.Spec{{Name: "good", Deserved: gpus(9)}},
			allocated: shares{"unknown": 25}, pending: shares{"good": 5},
			want: shares{"good": 0},
		},
		"nobody wants anything": {
			capacity: 20, specs: []queue.Spec{{Name: "a", Deserved: gpus(9)}, {Name: "b", Parent: "a"}},
			want: shares{"a": 0, "b": 0},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			tree := describe(tc.capacity, tc.specs...)
			for name, n := range tc.pending {
				charge(tree, name, queue.Pending, n)
			}
			for name, n := range tc.allocated {
				charge(tree, name, queue.Allocated, n)
			}
			wantEqual(t, "fair shares", tc.want, fairShares(tree))
		})
	}
}

// TestResourcesAreDividedIndependently: a has the priority, but may have no
// H100; nobody divides the memory.
func TestResourcesAreDividedIndependently(t *testing.T) {
	tree := queue.New()
	h100 := tree.Model("H100")
	tree.SetCapacity(queue.Amounts{queue.GPU: 100, queue.CPU: 8000, queue.Memory: 1 << 40, queue.FirstModel: 40})
	tree.Set(queue.Spec{Name: "a", Priority: 1, Limit: queue.Amounts{
		queue.GPU: queue.Unlimited, queue.CPU: queue.Unlimited, queue.Memory: queue.Unlimited, queue.FirstModel: 0,
	}})
	tree.Set(queue.Spec{Name: "b", Deserved: queue.Amounts{queue.CPU: 2000, queue.FirstModel: 10}})
	ask := queue.Amounts{queue.GPU: 90, queue.CPU: 7000, queue.Memory: 1 << 30, queue.FirstModel: 30}
	tree.Charge("a", "a", queue.Pending, ask)
	tree.Charge("b", "b", queue.Pending, ask)
	wantEqual(t, "a", queue.Amounts{90, 6000, queue.Unlimited, 0}, tree.Usage("a").FairShare)
	wantEqual(t, "b", queue.Amounts{10, 2000, queue.Unlimited, 30}, tree.Usage("b").FairShare)
	if tree.Managed(queue.Memory) || !tree.Managed(h100) || !tree.Managed(queue.GPU) || tree.Managed(99) || tree.Managed(-1) {
		t.Error("GPU, CPU and H100 are managed, and nothing else")
	}
	if got := tree.ModelName(h100) + tree.ModelName(queue.Memory) + tree.ModelName(h100+1); got != "H100" {
		t.Errorf("names of models: %q", got)
	}
}

func TestUsage(t *testing.T) {
	tree := describe(100,
		queue.Spec{Name: "team", Deserved: gpus(10), Limit: gpus(50)},
		queue.Spec{Name: "a", Parent: "team", Deserved: gpus(15)},
		queue.Spec{Name: "b", Parent: "team", Deserved: gpus(5), Limit: gpus(60)},
	)
	charge(tree, "a", queue.Pending, 7)
	charge(tree, "a", queue.Held, 20)
	charge(tree, "b", queue.Allocated, 30)
	charge(tree, "team", queue.Pending, 1)
	charge(tree, "unknown", queue.Held, 2)
	none := queue.Unlimited
	want := map[string]queue.Usage{
		// a deserves 7.5 and b 2.5 of 10; equal remainders, so a has the odd one.
		// Of the 40 that are left of team's 50, a wants 19 and b gets 21.
		"team": {gpus(30), gpus(20), gpus(58), gpus(10), gpus(50), gpus(50), 2},
		"a":    {gpus(0), gpus(20), gpus(27), gpus(8), gpus(27), gpus(50), 1},
		"b":    {gpus(30), gpus(0), gpus(30), gpus(2), gpus(23), gpus(50), 0},
		"":     {gpus(30), gpus(22), gpus(60), nil, gpus(98), gpus(int64(none)), 2},
	}
	for name, w := range want {
		got := tree.Usage(name)
		if name == "" {
			got = tree.Total()
		}
		first := func(a queue.Amounts) queue.Amounts {
			if a == nil {
				return nil
			}
			return a[:1]
		}
		got = queue.Usage{
			first(got.Allocated), first(got.Held), first(got.Demand), first(got.Deserved), first(got.FairShare),
			first(got.EffectiveLimit), got.Pending,
		}
		wantEqual(t, "usage of "+name, w, got)
	}
	wantEqual(t, "usage of a queue that nobody knows", queue.Usage{}, tree.Usage("?"))
}

func TestEntitledAndWithinDeserved(t *testing.T) {
	// team has 10 of 20: a 6 and b 4, since they deserve that. Then a has 3, b
	// 6 although only 4 are its own, and other has 7.
	tree := describe(20,
		queue.Spec{Name: "team", Deserved: gpus(10)},
		queue.Spec{Name: "a", Parent: "team", Deserved: gpus(6)}, queue.Spec{Name: "b", Parent: "team", Deserved: gpus(4)},
		queue.Spec{Name: "other", Deserved: gpus(5)}, queue.Spec{Name: "stray", Parent: "nowhere", Deserved: gpus(20)},
	)
	for name, n := range (shares{"a": 3, "b": 6, "other": 7}) {
		charge(tree, name, queue.Allocated, n)
		charge(tree, name, queue.Pending, 20)
	}
	// The surplus of 5 goes to the two at the top: 3 to other, the first by
	// name, and 2 to team. Of those a and b have one each.
	wantEqual(t, "fair shares", shares{"team": 12, "a": 7, "b": 5, "other": 8, "stray": 0}, fairShares(tree))
	cases := map[string]struct {
		queue                    string
		ask                      int64
		wantEntitled, wantWithin bool
	}{
		"within all":               {"a", 1, true, true},
		"above, for the parent":    {"a", 2, true, false},
		"to the last":              {"a", 3, true, false},
		"beyond":                   {"a", 4, false, false},
		"above already":            {"b", 1, false, false},
		"above, but asks no GPU":   {"b", 0, true, true},
		"surplus":                  {"other", 1, true, false},
		"beyond the surplus":       {"other", 2, false, false},
		"a stray":                  {"stray", 1, false, false},
		"a stray that asks no GPU": {"stray", 0, false, false},
		"unknown":                  {"?", 1, false, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			ask := queue.Amounts{tc.ask, 1000, 1 << 30, 5, 5, 5} // nobody manages the rest
			if got := tree.Entitled(tc.queue, ask); got != tc.wantEntitled {
				t.Errorf("Entitled: %t", got)
			}
			if got := tree.WithinDeserved(tc.queue, ask); got != tc.wantWithin {
				t.Errorf("WithinDeserved: %t", got)
			}
		})
	}
	for name, want := range (shares{"a": 3, "b": -1, "other": 1, "stray": 0, "?": 0}) {
		room := tree.ShareRoom(name)
		if room[queue.GPU] != want || room[queue.CPU] != queue.Unlimited {
			t.Errorf("room of %s within its share: %v, want %d", name, room, want)
		}
	}
}
