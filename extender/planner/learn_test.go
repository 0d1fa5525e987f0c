package planner

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/tranche-dev/tranche/extender/internal/fixture"
	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/gang"
	"github.com/tranche-dev/tranche/pkg/placement"
	"github.com/tranche-dev/tranche/pkg/placement/waste"
	"github.com/tranche-dev/tranche/pkg/units"
)

// The worked example of docs/design.md: of pods of 30 and 50 shares, one of 30
// goes beside 40 rather than beside 50, where it would leave 20 that nobody can
// use. Binpack does the opposite.
func TestLeastWasteLearnsFromPodsThatExist(t *testing.T) {
	for policy, want := range map[contract.Placement]string{contract.PlacementLeastWaste: "b", contract.PlacementBinpack: "a"} {
		t.Run(string(policy), func(t *testing.T) {
			run(t, func(k *kit) {
				for node, used := range map[string]int{"a": 50, "b": 40} {
					k.node(node, 1)
					k.observe(fixture.Bound(k, fixture.Pod("on-"+node, fmt.Sprint(used)), node, one(fixture.GPU(node, 0), units.Shares(used))))
				}
				// Those that ran elsewhere before.
				for i := range 40 {
					node := fmt.Sprint("full-", i)
					k.node(node, 1)
					shares := []int{30, 50}[i%2]
					k.observe(fixture.Bound(k, fixture.Pod(fmt.Sprint("p", i), fmt.Sprint(shares)), node, one(fixture.GPU(node, 0), units.Shares(shares))))
					rest := 100 - shares
					k.observe(fixture.Bound(k, fixture.Pod(fmt.Sprint("q", i), fmt.Sprint(rest)), node, one(fixture.GPU(node, 0), units.Shares(rest))))
				}
				k.after(2 * tablesEvery)
				priorities, err := k.p.Prioritize(k.Context(), fixture.Pod("new", "30"), []string{"a", "b"})
				if err != nil {
					k.Fatal(err)
				}
				got := map[int64]string{priorities[0]: "a", priorities[1]: "b"}[10]
				if got != want {
					k.Errorf("priorities %v, want the best for node %s", priorities, want)
				}
			}, func(o *Options) { o.Placement = policy })
		})
	}
}

// Bound pods counted as if they asked for no CPU, so that after a restart the
// policy went by GPUs alone.
func TestBoundPodsAreLearnedWithTheirCPU(t *testing.T) {
	shapes := func(bound bool) (list []waste.Counted) {
		run(t, func(k *kit) {
			k.node("a", 1)
			pod := withCPU(fixture.Pod("p", "30"), "4")
			if bound {
				pod = fixture.Bound(k, pod, "a", one(fixture.GPU("a", 0), 30))
			}
			k.observe(pod)
			var err error
			if list, err = ask(k.Context(), k.p, func(_ context.Context, s *state, _ time.Time) []waste.Counted { return s.learner.Shapes() }); err != nil {
				k.Fatal(err)
			}
		})
		return list
	}
	if diff := cmp.Diff(shapes(false), shapes(true)); diff != "" {
		t.Errorf("learned (-before it was bound +after a restart):\n%s", diff)
	}
}

// Where GPUs are all in use, nobody misses the processors beside them.
func TestPodsWithoutGPUsGoWhereGPUsCannotBeUsedAnyway(t *testing.T) {
	for _, policy := range contract.Placements() {
		t.Run(string(policy), func(t *testing.T) {
			run(t, func(k *kit) {
				for i := range 40 { // what pods with GPUs are like
					node := fmt.Sprint("full-", i)
					k.node(node, 1)
					pod := withCPU(fixture.Pod(fmt.Sprint("p", i), "100"), "4")
					k.observe(fixture.Bound(k, pod, node, one(fixture.GPU(node, 0), 100)))
				}
				k.node("empty", 1)
				k.p.ObserveNode(k.Context(), view.NodeOf(fixture.ForeignNode("foreign"), k.p.opts.Resources))
				k.after(2 * tablesEvery)
				pod := withCPU(fixture.Pod("plain"), "4")
				if got := k.prioritize(pod, "empty", "full-7", "foreign"); got[1] != placement.MaxPriority || got[0] >= got[1] || got[2] != 0 {
					k.Errorf("priorities %v, want the best for the node whose GPU is in use and 0 for the one of which nothing is known", got)
				}
				got := k.prioritize(pod, "empty", "stranger", "full-7", "other-stranger")
				if got[1] != placement.MaxPriority || got[3] != got[1] || got[2] >= got[1] || got[0] >= got[2] {
					k.Errorf("priorities %v, want the best for both nodes without GPUs, then the one whose GPU is in use", got)
				}
				k.wantCharged("empty", 0, 0, 0)
			}, func(o *Options) { o.Placement = policy })
		})
	}
}

// coreNode is a node of one GPU with so many processors.
func (k *kit) coreNode(name, cpu string) {
	k.Helper()
	node := fixture.Node(k, name, fixture.Inventory(name, 1))
	node.Status.Allocatable[corev1.ResourceCPU] = resource.MustParse(cpu)
	k.p.ObserveNode(k.Context(), view.NodeOf(node, k.p.opts.Resources))
	k.settled()
}

// After a restart pods are bound when they are first seen. They tell as much of
// processors as before: half a GPU without any is of no use to pods like these.
func TestLeastWasteLearnsTheProcessorsOfRunningPods(t *testing.T) {
	run(t, func(k *kit) {
		k.coreNode("a", "4")
		k.coreNode("b", "8")
		for i := range 10 {
			node := fmt.Sprint("full-", i)
			k.node(node, 1)
			k.observe(fixture.Bound(k, withCPU(fixture.Pod(fmt.Sprint("p", i), "50"), "4"), node, one(fixture.GPU(node, 0), 50)))
		}
		k.after(2 * tablesEvery)
		if got := k.prioritize(withCPU(fixture.Pod("new", "50"), "4"), "a", "b"); got[1] != 10 {
			k.Errorf("priorities %v, want the node that has processors for another", got)
		}
	}, func(o *Options) { o.Placement = contract.PlacementLeastWaste })
}

// Ratings are remembered, but not beyond what they are of.
func TestNodesAreRatedAnewWhenAPodWithoutGPUsTakesProcessors(t *testing.T) {
	rated := func(before bool) (first, then []int64) {
		run(t, func(k *kit) {
			nodes := []string{"a", "b", "c", "d"}
			for i, cpu := range []string{"4", "8", "16", "32"} {
				k.coreNode(nodes[i], cpu)
			}
			for i := range 20 {
				k.observe(withCPU(fixture.Pod(fmt.Sprint("p", i), "50"), "4"))
			}
			k.after(2 * tablesEvery)
			if before {
				first = k.prioritize(withCPU(fixture.Pod("new", "50"), "4"), nodes...)
				k.gone(fixture.Pod("new", "50"))
			}
			k.p.ObserveUsage(k.Context(), &view.Usage{UID: "plain", Node: "d", Needs: gang.Resources{MilliCPU: 28_000, Pods: 1}})
			k.settled()
			then = k.prioritize(withCPU(fixture.Pod("new", "50"), "4"), nodes...)
		}, func(o *Options) { o.Placement = contract.PlacementLeastWaste })
		return first, then
	}
	first, then := rated(true)
	_, fresh := rated(false)
	if !slices.Equal(then, fresh) || slices.Equal(first, then) {
		t.Errorf("priorities were %v and are %v, want %v", first, then, fresh)
	}
}

// What a round has kept for a pod is free for that pod.
func TestPrioritizeDoesNotCountTwiceWhatIsKeptForThePod(t *testing.T) {
	run(t, func(k *kit) {
		k.coreNode("a", "8")
		k.coreNode("b", "16")
		k.coreNode("c", "32")
		pod := withCPU(queued("default", "p", "50"), "4")
		k.observe(pod)
		k.after(2 * tablesEvery)
		k.wantCharged("a", 0, 0, 50)
		kept := k.prioritize(open(pod), "a", "b", "c")
		k.gone(pod)
		anew := k.prioritize(withCPU(fixture.Pod("q", "50"), "4"), "a", "b", "c")
		if diff := cmp.Diff(anew, kept); diff != "" || !slices.Equal(anew, []int64{10, 6, 0}) {
			k.Errorf("priorities of a pod for which nothing is kept %v (-it +the pod):\n%s", anew, diff)
		}
	}, withQueues, func(o *Options) { o.Placement, o.Reclaim = contract.PlacementLeastWaste, false })
}

// The scheduler hears that a Binding was accepted before the watch shows the pod
// on its node. What the pod requests is not free in between.
func TestProcessorsOfABoundPodAreNotGivenAwayBeforeItIsSeen(t *testing.T) {
	run(t, func(k *kit) {
		k.coreNode("a", "4")
		pod := withCPU(queued("default", "p", "50"), "4")
		k.observe(pod)
		k.wantCharged("a", 0, 0, 50)
		pod = open(pod.DeepCopy())
		pod.ResourceVersion = "2"
		k.observe(pod)
		if _, err := k.reserve(pod, "a"); err != nil {
			k.Fatal(err)
		}
		k.p.Bound(k.Context(), target(pod, "a"))
		k.observe(withCPU(queued("default", "q", "50"), "4"))
		k.wantCharged("a", 0, 50, 0)
	}, withQueues)
}
