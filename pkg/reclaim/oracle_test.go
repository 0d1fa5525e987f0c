package reclaim_test

import (
	"cmp"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/gang"
	"github.com/tranche-dev/tranche/pkg/reclaim"
	"github.com/tranche-dev/tranche/pkg/units"
)

// fitsWithout asks gang.Plan in the plainest way.
func fitsWithout(p *reclaim.Problem, victims []*reclaim.Unit) bool {
	opts := p.Options
	opts.Without = maps.Clone(p.Options.Without)
	if opts.Without == nil {
		opts.Without = map[types.UID]bool{}
	}
	var nodes []*gang.Node
	for _, n := range p.Nodes {
		node := *n
		for _, u := range victims {
			for _, pod := range u.Pods {
				opts.Without[pod.UID] = true
				if pod.Node == n.Name {
					node.Free = node.Free.Add(pod.Needs)
				}
			}
		}
		nodes = append(nodes, &node)
	}
	places, _ := gang.Plan(nodes, p.Members, p.Topology, opts)
	return places != nil
}

// allows says whether each unit may be taken after all others, and the rules
// are content with all of them. It leaves r with the units taken.
func allows(r *rules, units []*reclaim.Unit) bool {
	for i, u := range units {
		r.taken = slices.Delete(slices.Clone(units), i, i+1)
		if !r.MayTake(u) {
			return false
		}
	}
	r.taken = units
	return r.Final()
}

func podsOf(units []*reclaim.Unit) int {
	n := 0
	for _, u := range units {
		n += len(u.Pods)
	}
	return n
}

// subsets lists all sets of units that would do.
func subsets(p *reclaim.Problem, r rules) [][]*reclaim.Unit {
	var all [][]*reclaim.Unit
	for bit := range uint(1) << len(p.Units) {
		set := make([]*reclaim.Unit, 0, bits.OnesCount(bit))
		for i, u := range p.Units {
			if bit>>i&1 == 1 {
				set = append(set, u)
			}
		}
		if allows(&r, set) && fitsWithout(p, set) {
			all = append(all, set)
		}
	}
	return all
}

// worth lists what the pods of units are worth, the most precious first.
func worth(units []*reclaim.Unit) string {
	sorted := slices.SortedFunc(slices.Values(units), func(a, b *reclaim.Unit) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), a.Started.Compare(b.Started))
	})
	text := ""
	for _, u := range sorted {
		text += strings.Repeat(fmt.Sprintf("%02d %09d;", u.Priority, 1_000_000-int(u.Started.Sub(start)/time.Second)), len(u.Pods))
	}
	return text
}

// draw makes a small world.
func draw(t *rapid.T, members, most int, equal bool) (*world, *rules) {
	w := newWorld()
	names := []string{"n0", "n1", "n2"}[:rapid.IntRange(1, 3).Draw(t, "nodes")]
	gpus := map[string]int{}
	for _, name := range names {
		gpus[name] = rapid.IntRange(0, 3).Draw(t, "gpus")
		w.node(name, gpus[name], rack, rapid.SampledFrom([]string{"a", "b"}).Draw(t, "rack"))
	}
	free := map[contract.GPUUUID]units.Shares{}
	r := &rules{protected: map[string]bool{}, spare: map[string]int64{}}
	for i := range rapid.IntRange(1, 8).Draw(t, "units") {
		var places []on
		for range rapid.IntRange(1, most).Draw(t, "pods") {
			p := on{node: rapid.SampledFrom(names).Draw(t, "node")}
			if n := gpus[p.node]; n > 0 {
				p.gpu = rapid.IntRange(0, n-1).Draw(t, "gpu")
				p.shares = rapid.SampledFrom([]units.Shares{10, 20, 30, 50, 60, 100}).Draw(t, "shares")
				id := uuid(p.node, p.gpu)
				if free[id]+p.shares > 100 {
					p.shares = 100 - free[id]
				}
				free[id] += p.shares
			}
			places = append(places, p)
		}
		u := w.unit(fmt.Sprintf("u%d", i), places...)
		u.Queue = rapid.SampledFrom([]string{"p", "q"}).Draw(t, "queue")
		if !equal {
			u.Priority = int32(rapid.IntRange(0, 2).Draw(t, "priority"))
		}
		u.Started = start.Add(time.Duration(rapid.IntRange(0, 3).Draw(t, "hours")) * time.Hour)
		r.protected[u.ID] = rapid.IntRange(0, 5).Draw(t, "protected") == 0
	}
	if rapid.IntRange(0, 2).Draw(t, "limited") == 0 {
		r.spare["q"] = int64(rapid.IntRange(0, 120).Draw(t, "spare"))
	}
	for _, n := range w.Nodes {
		if rapid.IntRange(0, 2).Draw(t, "scarce") == 0 {
			n.Free.MilliCPU = int64(rapid.IntRange(0, 2).Draw(t, "cpu")) * 1000
			n.Free.Pods = int64(rapid.IntRange(0, 3).Draw(t, "room"))
		}
	}
	var demands []contract.Demand
	for range rapid.IntRange(0, 2).Draw(t, "demands") {
		d := part(rapid.SampledFrom([]units.Shares{20, 40, 50, 80}).Draw(t, "part"))
		switch rapid.IntRange(0, 2).Draw(t, "sort") {
		case 0:
			d = whole(rapid.IntRange(1, 2).Draw(t, "whole"))
		case 1:
			d.Count = rapid.IntRange(1, 2).Draw(t, "count")
		}
		demands = append(demands, d)
	}
	w.want(members, demands...)
	if rapid.IntRange(0, 3).Draw(t, "together") == 0 {
		w.Topology = &gang.Topology{NodeLabel: rack, Required: true}
	}
	w.Rules = r
	return w, r
}

// check compares the result with everything that would be possible. It returns
// all sets that would do, and the result.
func check(t *rapid.T, w *world, r *rules) (possible [][]*reclaim.Unit, result *reclaim.Result) {
	p := w.problem()
	result, short := reclaim.Select(p)
	if (result == nil) == (short == nil) {
		t.Fatalf("result %v and shortfall %v", result, short)
	}
	if result == nil && len(r.taken) > 0 {
		t.Fatalf("%s are left taken", ids(r.taken))
	}
	possible = subsets(&p, *r)
	if result == nil {
		if short.Message() == "" {
			t.Fatal("no message")
		}
		return possible, nil
	}
	if ids(r.taken) != ids(result.Victims) {
		t.Fatalf("victims %s, but %s are taken", ids(result.Victims), ids(r.taken))
	}
	if len(result.Places) != len(p.Members) {
		t.Fatalf("%d places for %d members", len(result.Places), len(p.Members))
	}
	ok := false
	for _, set := range possible {
		switch {
		case ids(set) == ids(result.Victims):
			ok = true
		case len(set) < len(result.Victims) && !slices.ContainsFunc(set, func(u *reclaim.Unit) bool { return !slices.Contains(result.Victims, u) }):
			t.Fatalf("of %s, %s would have done", ids(result.Victims), ids(set))
		}
	}
	if !ok {
		t.Fatalf("%s is no set that will do; those are %d others", ids(result.Victims), len(possible))
	}
	return possible, result
}

func TestSelectTakesTheBestSetForOnePod(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, r := draw(t, 1, 3, rapid.Bool().Draw(t, "equal"))
		possible, result := check(t, w, r)
		if len(possible) == 0 {
			return
		}
		best := slices.MinFunc(possible, func(a, b []*reclaim.Unit) int {
			return cmp.Or(cmp.Compare(podsOf(a), podsOf(b)), cmp.Compare(worth(a), worth(b)))
		})
		if result == nil {
			t.Fatalf("nothing found, but %s would do", ids(best))
		}
		if got, want := podsOf(result.Victims), podsOf(best); got != want {
			t.Fatalf("%s is %d pods, but %s, which are %d, would do", ids(result.Victims), got, ids(best), want)
		}
		if got, want := worth(result.Victims), worth(best); got != want {
			t.Fatalf("%s is worth %s, but %s, worth %s, would do", ids(result.Victims), got, ids(best), want)
		}
	})
}

func TestSelectFindsSomethingForAGangIfAnythingDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, r := draw(t, rapid.IntRange(2, 4).Draw(t, "members"), 1, false)
		clear(r.spare)
		if possible, result := check(t, w, r); result == nil && len(possible) > 0 {
			t.Fatalf("nothing found, but %s would do", ids(possible[0]))
		}
	})
}

func TestSelectTakesNothingSuperfluousForAnyGang(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, r := draw(t, rapid.IntRange(1, 4).Draw(t, "members"), 3, false)
		w.want(rapid.IntRange(0, 2).Draw(t, "others"), part(30))
		r.least = int64(rapid.SampledFrom([]int{0, 0, 30, 100}).Draw(t, "least"))
		check(t, w, r)
	})
}

func TestSelectDependsOnNothingButItsInput(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, _ := draw(t, rapid.IntRange(1, 4).Draw(t, "members"), 3, false)
		text := func() string {
			w.Rules.(*rules).taken = nil
			result, short := reclaim.Select(w.problem())
			if result == nil {
				return short.Message()
			}
			return fmt.Sprint(ids(result.Victims), result.Places)
		}
		want := text()
		if again := text(); again != want {
			t.Fatalf("first %s, then %s", want, again)
		}
		slices.Reverse(w.Nodes)
		slices.Reverse(w.Units)
		if other := text(); other != want {
			t.Fatalf("%s, with nodes and units in another order %s", want, other)
		}
	})
}
