package reclaim_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/gang"
	"github.com/tranche-dev/tranche/pkg/reclaim"
)

func TestSelectTakesTheFewestAndLeastPrecious(t *testing.T) {
	cases := map[string]struct {
		world func(w *world)
		want  string
	}{
		"nobody, if there is room": {func(w *world) {
			w.node("n1", 2)
			w.unit("a", on{"n1", 0, 100})
			w.want(1, whole(1))
		}, ""},
		"one pod rather than two": {func(w *world) {
			w.node("n1", 1)
			w.unit("a", on{"n1", 0, 50})
			w.unit("b", on{"n1", 0, 50})
			w.node("n2", 1)
			w.unit("c", on{"n2", 0, 100}).Priority = 9
			w.want(1, whole(1))
		}, "c"},
		"two single pods rather than a gang of three": {func(w *world) {
			w.node("n1", 1)
			w.unit("a", on{"n1", 0, 50}).Priority = 9
			w.unit("b", on{"n1", 0, 50}).Priority = 9
			w.node("n2", 3)
			w.unit("gang", on{"n2", 0, 100}, on{"n2", 1, 100}, on{"n2", 2, 100})
			w.want(1, whole(1))
		}, "a b"},
		"the lowest priority": {func(w *world) {
			w.node("n1", 3)
			w.unit("a", on{"n1", 0, 100}).Priority = 2
			w.unit("b", on{"n1", 1, 100}).Priority = 1
			w.unit("c", on{"n1", 2, 100}).Priority = 3
			w.want(1, whole(1))
		}, "b"},
		"the youngest of equal priority": {func(w *world) {
			w.node("n1", 3)
			w.unit("a", on{"n1", 0, 100})
			w.unit("b", on{"n1", 1, 100}).Started = start.Add(time.Hour)
			w.unit("c", on{"n1", 2, 100}).Started = start.Add(time.Minute)
			w.want(1, whole(1))
		}, "b"},
		"by ID where nothing else tells": {func(w *world) {
			w.node("n1", 2)
			w.unit("b", on{"n1", 0, 100})
			w.unit("a", on{"n1", 1, 100})
			w.want(1, whole(1))
		}, "a"},
		"the big one, if that is enough": {func(w *world) {
			w.node("n1", 1)
			w.unit("a", on{"n1", 0, 20})
			w.unit("b", on{"n1", 0, 20})
			w.unit("c", on{"n1", 0, 60}).Priority = 5
			w.want(1, part(40))
		}, "c"},
		"a gang as a whole, which frees room on two nodes": {func(w *world) {
			w.node("n1", 2)
			w.node("n2", 2)
			w.unit("gang", on{"n1", 0, 100}, on{"n1", 1, 100}, on{"n2", 0, 100}, on{"n2", 1, 100})
			w.want(2, whole(2))
		}, "gang"},
		"members beyond the minimum, not the gang": {func(w *world) {
			w.node("n1", 4)
			w.unit("gang", on{"n1", 0, 100}, on{"n1", 1, 100})
			w.unit("extra-1", on{"n1", 2, 100})
			w.unit("extra-2", on{"n1", 3, 100})
			w.want(2, whole(1))
		}, "extra-1 extra-2"},
		"what is free first": {func(w *world) {
			w.node("n1", 2)
			w.unit("a", on{"n1", 0, 100})
			w.node("n2", 1)
			w.unit("b", on{"n2", 0, 60})
			w.want(2, part(40))
			w.want(1, whole(1))
		}, "a"},
		"who takes the cpu that lacks": {func(w *world) {
			w.node("n1", 2)
			w.unit("a", on{"n1", 0, 100}).Priority = 1
			w.unit("b", on{"n1", 0, 0})
			w.nodes["n1"].Free.MilliCPU = 0
			w.want(1, whole(1))
		}, "b"},
		"for members without GPUs": {func(w *world) {
			w.node("n1", 0)
			w.unit("a", on{"n1", 0, 0}).Priority = 1
			w.unit("b", on{"n1", 0, 0})
			w.nodes["n1"].Free.Pods = 0
			w.want(1)
		}, "b"},
		"not what is protected": {func(w *world) {
			w.node("n1", 2)
			w.unit("a", on{"n1", 0, 100})
			w.unit("b", on{"n1", 1, 100}).Priority = 9
			w.Rules = &rules{protected: map[string]bool{"a": true}}
			w.want(1, whole(1))
		}, "b"},
		"no more of a queue than it has to spare": {func(w *world) {
			w.node("n1", 4)
			w.unit("a", on{"n1", 0, 100})
			w.unit("b", on{"n1", 1, 100})
			w.unit("c", on{"n1", 2, 100})
			w.unit("d", on{"n1", 3, 100}).Queue = "other"
			w.Rules = &rules{spare: map[string]int64{"q": 100}}
			w.want(2, whole(1))
		}, "a d"},
		"not the big one after the small one": {func(w *world) {
			w.node("n1", 1)
			w.unit("small", on{"n1", 0, 20})
			w.unit("big", on{"n1", 0, 80})
			w.node("n2", 1)
			w.unit("c", on{"n2", 0, 40}).Queue = "other"
			w.unit("d", on{"n2", 0, 30}).Queue = "other"
			w.unit("e", on{"n2", 0, 30}).Queue = "other"
			w.Rules = &rules{spare: map[string]int64{"q": 30}}
			w.want(1, whole(1))
		}, "c d e"},
		"within one domain": {func(w *world) {
			w.node("n1", 2, rack, "a")
			w.unit("a", on{"n1", 0, 100})
			w.node("n2", 2, rack, "b")
			w.unit("b", on{"n2", 0, 100})
			w.unit("c", on{"n2", 1, 100})
			w.node("n3", 1, rack, "c")
			w.want(2, whole(1))
			w.Topology = &gang.Topology{NodeLabel: rack, Required: true}
		}, "a"},
		"within the domain of those that run": {func(w *world) {
			w.node("n1", 2, rack, "a")
			w.unit("a", on{"n1", 0, 100})
			w.node("n2", 3, rack, "b")
			w.unit("b", on{"n2", 0, 100})
			w.unit("c", on{"n2", 1, 100})
			pinned := w.want(1, whole(1))
			pinned[0].Pinned, pinned[0].Plan = "n2", contract.Plan{Node: "n2", Containers: map[string][]contract.Grant{"c0": {{GPU: uuid("n2", 2), Shares: 100}}}}
			w.want(2, whole(1))
			w.Topology = &gang.Topology{NodeLabel: rack, Required: true}
		}, "b c"},
		"not on nodes that the members avoid": {func(w *world) {
			w.node("n1", 1)
			w.unit("a", on{"n1", 0, 100})
			w.node("n2", 1)
			w.unit("b", on{"n2", 0, 100}).Priority = 9
			w.want(1, whole(1))[0].Avoid = map[string]bool{"n1": true}
		}, "b"},
		"not on nodes with a taint": {func(w *world) {
			w.node("n1", 1)
			w.unit("a", on{"n1", 0, 100})
			w.nodes["n1"].Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}
			w.node("n2", 1)
			w.unit("b", on{"n2", 0, 100}).Priority = 9
			w.want(1, whole(1))
		}, "b"},
		"as much as the rules want, though there is room": {func(w *world) {
			w.node("n1", 4)
			w.unit("a", on{"n1", 0, 100}).Priority = 1
			w.unit("b", on{"n1", 1, 50})
			w.unit("c", on{"n1", 2, 100}).Priority = 2
			w.Rules = &rules{least: 100}
			w.want(1, whole(1))
		}, "a"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			tc.world(w)
			if diff := cmp.Diff(tc.want, w.choose()); diff != "" {
				t.Errorf("victims (-want +got):\n%s", diff)
			}
		})
	}
}

func TestShortfallSaysWhyNobodyIsEvicted(t *testing.T) {
	cases := map[string]struct {
		world       func(w *world)
		wantReason  gang.Reason
		wantMessage string
	}{
		"all are protected": {func(w *world) {
			w.node("n1", 1)
			w.unit("a", on{"n1", 0, 100})
			w.want(1, whole(1))
			w.Rules = &rules{protected: map[string]bool{"a": true}}
		}, gang.NoVictims, "needs 1 × 1 whole GPU; no place is free on 1 node; 1 more place is needed; 1 node: no GPU of this node is wholly free; no pods may be evicted that would make room"},
		"not even without them": {func(w *world) {
			w.node("n1", 2)
			w.unit("a", on{"n1", 0, 100})
			w.unit("b", on{"n1", 1, 50})
			w.want(2, whole(1))
			w.Rules = &rules{protected: map[string]bool{"a": true}}
		}, gang.NoPlace, "needs 2 × 1 whole GPU; even with 1 pod evicted; 1 place is free on 1 of 1 node; 1 more place is needed; 1 node: no GPU of this node is wholly free"},
		"too many would go": {func(w *world) {
			w.node("n1", 1)
			w.unit("a", on{"n1", 0, 50})
			w.unit("b", on{"n1", 0, 50})
			w.want(1, whole(1))
			w.MostVictims = 1
		}, gang.NoVictims, "needs 1 × 1 whole GPU; no place is free on 1 node; 1 more place is needed; 1 node: no GPU of this node is wholly free; no pods may be evicted that would make room"},
		"there is room, but the rules want more": {func(w *world) {
			w.node("n1", 1)
			w.want(1, whole(1))
			w.Rules = &rules{least: 1}
		}, gang.NoVictims, "there is room, but not within the limits of the queues, and no pods may be evicted that would change that"},
		"a member that makes no sense": {func(w *world) {
			w.node("n1", 1)
			w.unit("a", on{"n1", 0, 100})
			w.want(1, part(0))
		}, gang.InvalidMember, "member demo/m0 cannot be planned: the pod's GPU request is malformed"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			tc.world(w)
			result, short := reclaim.Select(w.problem())
			if result != nil {
				t.Fatalf("victims %s", ids(result.Victims))
			}
			if short.Reason != tc.wantReason {
				t.Errorf("reason %s, want %s", short.Reason, tc.wantReason)
			}
			if diff := cmp.Diff(tc.wantMessage, short.Message()); diff != "" {
				t.Errorf("message (-want +got):\n%s", diff)
			}
			if taken := w.Rules.(*rules).taken; len(taken) > 0 {
				t.Errorf("%s are left taken", ids(taken))
			}
		})
	}
}
