package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/contract"
	. "github.com/tranche-dev/tranche/tests/testkit"
)

func TestGangsStartWhole(t *testing.T) {
	ns := optedIn(t)
	for i, n := range []int{2, 8, 64} {
		name := fmt.Sprintf("of-%d", n)
		createAll(t, arenaOf(i, 1).sized(n).gang(ns, name, n)...)
		waitBound(t, ns, name, n)
	}
	eventually(t, "the Gang tells", func(ctx context.Context) error {
		word, message, err := gangReason(ctx, ns, "of-64")
		if err == nil && (word != "" || message != "Running") {
			err = fmt.Errorf("%s: %s", word, message)
		}
		return err
	})
}

// sized is the arena made large enough for n GPUs, with other nodes.
func (a arena) sized(n int) arena {
	if n <= 8*len(a) {
		return a
	}
	return arenaOf(1, 8) // sim-8 to sim-15
}

func TestGangThatLacksOneGPUBindsNobodyAndSaysWhy(t *testing.T) {
	ns := optedIn(t)
	a := arenaOf(0, 1)
	bound := watchBindings(t, ns)
	create(t, a.within(MakePod(ns, "filler")).Container("main", GPUs("1")).Obj())
	eventually(t, "the filler has its GPU", func(ctx context.Context) error { return wantBoundPods(ctx, ns, 1) })

	createAll(t, a.gang(ns, "g", 8)...)
	waitReason(t, ns, "g", v1alpha1.ReasonNoPlace, "needs 8 × 1 whole GPU; 7 places are free")
	waitEvent(t, a.member(ns, "g", 0, 8).Obj(), "GangWaiting", "7 places are free")
	steadily(t, "nobody is bound, nothing is held", func(ctx context.Context) error {
		s, err := extenderState(ctx)
		if err != nil {
			return err
		}
		for _, n := range s.Nodes {
			for _, g := range n.GPUs {
				if g.Shares.Held > 0 && slices.Contains(a, n.Name) {
					return fmt.Errorf("%d shares of a GPU of %s are held", g.Shares.Held, n.Name)
				}
			}
		}
		return wantBoundPods(ctx, ns, 1)
	})
	if err := client.CoreV1().Pods(ns).Delete(t.Context(), "filler", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waitBound(t, ns, "g", 8)
	bound.wantRuns(t, "×1", "g×8")
}

func wantBoundPods(ctx context.Context, ns string, n int) error {
	list, err := client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if got := countBound(list.Items); got != n {
		return fmt.Errorf("%d pods are bound, want %d", got, n)
	}
	return nil
}

// rounds is how often the tests of chance are repeated: TRANCHE_E2E_ROUNDS, or
// as often as a test run has time for.
func rounds(t *testing.T, usual int) int {
	t.Helper()
	text := os.Getenv("TRANCHE_E2E_ROUNDS")
	if text == "" {
		return usual
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("TRANCHE_E2E_ROUNDS=%q; write a number of rounds", text)
	}
	return n
}

// TestTwoGangsInterleaved lets two gangs of 8 fight for 12 GPUs, in eight arenas
// side by side.
func TestTwoGangsInterleaved(t *testing.T) {
	const arenas = 8
	n := rounds(t, 32)
	ns := make([]string, arenas)
	for i := range ns {
		ns[i] = optedIn(t)
	}
	var wg sync.WaitGroup
	for i := range arenas {
		wg.Go(func() {
			a := arenaOf(i, 2)
			create(t, MakePod(ns[i], "filler").OnNode(a[1]).Container("main", GPUs("4")).Obj())
			eventually(t, "the filler has its GPUs", func(ctx context.Context) error { return wantBoundPods(ctx, ns[i], 1) })
			random := rand.New(rand.NewPCG(uint64(i), 1))
			for round := range max(1, n/arenas) {
				if t.Failed() {
					return
				}
				a.fight(t, ns[i], round, random)
			}
		})
	}
	wg.Wait()
}

// fight creates two gangs interleaved, and checks that one runs whole, then the
// other.
func (a arena) fight(t *testing.T, ns string, round int, random *rand.Rand) {
	first, second := fmt.Sprintf("a%d", round), fmt.Sprintf("b%d", round)
	bound := watchBindings(t, ns)
	var creating sync.WaitGroup
	for i := range 8 {
		for _, gang := range []string{first, second} {
			creating.Go(func() { createAll(t, a.member(ns, gang, i, 8).Obj()) })
			if random.IntN(4) == 0 {
				creating.Wait() // let the scheduler see a part
			}
		}
	}
	creating.Wait()
	eventually(t, "one of the gangs runs whole", func(ctx context.Context) error {
		counts := map[string]int{}
		for _, gang := range []string{first, second} {
			pods, err := membersOf(ctx, ns, gang)
			if err != nil {
				return err
			}
			counts[gang] = countBound(pods)
		}
		if counts[second] > 0 {
			first, second = second, first
		}
		if counts[first] != 8 || counts[second] != 0 {
			return fmt.Errorf("bound: %v", counts)
		}
		return nil
	})
	waitReason(t, ns, second, v1alpha1.ReasonNoPlace, "4 places are free")
	remove(t, ns, contract.GangLabel+"="+first)
	waitBound(t, ns, second, 8)
	bound.wantRuns(t, first+"×8", second+"×8")
	remove(t, ns, contract.GangLabel+"="+second)
}

// TestGangAroundTheSchedulersOwnFilters has members that the scheduler refuses
// on nodes where the planner, which knows nothing of pod affinity, sees room.
func TestGangAroundTheSchedulersOwnFilters(t *testing.T) {
	ns := optedIn(t)
	a := arenaOf(0, 4)
	bound := watchBindings(t, ns)
	create(t, MakePod(ns, "friend").OnNode(a[2]).Label("app", "friend").Container("main", GPUs("1")).Obj())
	eventually(t, "the friend is bound", func(ctx context.Context) error { return wantBoundPods(ctx, ns, 1) })
	near := func(app string) func(*corev1.PodSpec) {
		return func(spec *corev1.PodSpec) {
			spec.Affinity.PodAffinity = &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}, TopologyKey: corev1.LabelHostname,
			}}}
		}
	}
	t.Run("is planned anew", func(t *testing.T) {
		pods := a.gang(ns, "g", 8)
		near("friend")(&pods[3].Spec)
		createAll(t, pods...)
		waitBound(t, ns, "g", 8)
		pod, err := client.CoreV1().Pods(ns).Get(t.Context(), pods[3].Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if pod.Spec.NodeName != a[2] {
			t.Errorf("%s is on %s, want %s, its friend's", pod.Name, pod.Spec.NodeName, a[2])
		}
		bound.wantRuns(t, "×1", "g×8")
		remove(t, ns, contract.GangLabel+"=g")
	})
	t.Run("waits, and nobody is bound", func(t *testing.T) {
		pods := a.gang(ns, "w", 8)
		near("stranger")(&pods[3].Spec)
		createAll(t, pods...)
		waitReason(t, ns, "w", v1alpha1.ReasonSchedulerRefuses, pods[3].Name)
		steadily(t, "nobody is bound", func(ctx context.Context) error {
			list, err := membersOf(ctx, ns, "w")
			if err == nil && countBound(list) > 0 {
				err = fmt.Errorf("%d are bound", countBound(list))
			}
			return err
		})
		create(t, MakePod(ns, "stranger").OnNode(a[1]).Label("app", "stranger").Container("main", GPUs("1")).Obj())
		waitBound(t, ns, "w", 8)
		bound.wantRuns(t, "×1", "g×8", "×1", "w×8")
	})
}

func TestGangsThatCannotStartSayWhy(t *testing.T) {
	ns, other := optedIn(t), optedIn(t)
	a := arenaOf(0, 1)
	createAll(t, a.gang(ns, "few", 4)[:3]...)
	waitReason(t, ns, "few", v1alpha1.ReasonWaitingForMembers, "3 of 4 members are there")

	high := priorityClass(t)
	createAll(t, a.member(ns, "ranked", 0, 2).Obj(),
		a.member(ns, "ranked", 1, 2).Spec(func(spec *corev1.PodSpec) { spec.PriorityClassName = high }).Obj())
	waitReason(t, ns, "ranked", v1alpha1.ReasonMembersDisagree, "priorityClassName")

	createAll(t, a.gang(ns, "split", 4)[:2]...)
	createAll(t, a.gang(other, "split", 4)[2:]...)
	waitReason(t, ns, "split", v1alpha1.ReasonWaitingForMembers, "a gang of the same name in namespace "+other)

	gone := a.gang(ns, "gone", 9) // one more than the arena takes
	createAll(t, gone...)
	waitReason(t, ns, "gone", v1alpha1.ReasonNoPlace, "8 places are free")
	if err := client.CoreV1().Pods(ns).Delete(t.Context(), gone[0].Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waitReason(t, ns, "gone", v1alpha1.ReasonWaitingForMembers, "8 of 9 members are there")
	for _, n := range []string{ns, other} {
		if err := wantNothingHeld(t.Context(), n); err != nil {
			t.Error(err)
		}
	}
}

// priorityClass makes one for the time of the test.
func priorityClass(t *testing.T) string {
	t.Helper()
	class, err := client.SchedulingV1().PriorityClasses().Create(t.Context(), &schedulingv1.PriorityClass{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-"}, Value: 1000, PreemptionPolicy: new(corev1.PreemptNever),
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.SchedulingV1().PriorityClasses().Delete(context.WithoutCancel(t.Context()), class.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	return class.Name
}

// TestGangSurvivesKilledExtender kills the extender before, during and after
// the commit of gangs of 16, two of them at a time.
func TestGangSurvivesKilledExtender(t *testing.T) {
	ns := optedIn(t)
	random := rand.New(rand.NewPCG(16, 1))
	const gangsAtOnce = 2
	for round := range max(1, rounds(t, 20)/gangsAtOnce) {
		var names []string
		var pods []*corev1.Pod
		for i := range gangsAtOnce {
			name := fmt.Sprintf("r%d-%d", round, i)
			names = append(names, name)
			pods = append(pods, arenaOf(i, 2).gang(ns, name, 16)...)
		}
		var creating sync.WaitGroup
		creating.Go(func() { createAll(t, pods...) })
		killAfter(t, time.Duration(random.IntN(1200))*time.Millisecond)
		creating.Wait()
		for _, name := range names {
			waitBound(t, ns, name, 16)
		}
		eventually(t, "nothing stays held", func(ctx context.Context) error { return wantExactly(ctx, ns, 16*gangsAtOnce) })
		for _, name := range names {
			remove(t, ns, contract.GangLabel+"="+name)
		}
	}
}

// killAfter ends the extender with SIGKILL at a moment that the caller has
// drawn, and starts it again.
func killAfter(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
	if err := kube.Kill(t.Context(), "tranche-extender"); err != nil {
		t.Error(err)
	}
	if err := kube.Start(context.WithoutCancel(t.Context()), "tranche-extender"); err != nil {
		t.Fatal(err)
	}
}

// wantExactly checks that the ledger has exactly n allocated pods of a
// namespace, one GPU each.
func wantExactly(ctx context.Context, ns string, n int) error {
	s, err := extenderState(ctx)
	if err != nil {
		return err
	}
	got := 0
	for _, node := range s.Nodes {
		for _, g := range node.GPUs {
			if g.Shares.Allocated > g.Shares.Total {
				return fmt.Errorf("GPU %s of %s is overcommitted", g.UUID, node.Name)
			}
			for _, p := range g.Pods {
				if p.Namespace != ns {
					continue
				}
				if p.State != "allocated" || p.Shares != 100 {
					return fmt.Errorf("%s has %d shares (%s)", p.Name, p.Shares, p.State)
				}
				got++
			}
		}
	}
	if got != n {
		return fmt.Errorf("%d pods have GPUs, want %d", got, n)
	}
	return nil
}

// TestGangWhoseBindingsAreRefused has the API server refuse the Binding of each
// member in turn, for a while.
func TestGangWhoseBindingsAreRefused(t *testing.T) {
	ns := optedIn(t)
	a := arenaOf(0, 1)
	for k := range 4 {
		name := fmt.Sprintf("k%d", k)
		allow := refuseBinding(t, ns, fmt.Sprintf("%s-%d", name, k))
		createAll(t, a.gang(ns, name, 4)...)
		waitReason(t, ns, name, v1alpha1.ReasonBindFailed, fmt.Sprintf("%s-%d", name, k))
		allow()
		waitBound(t, ns, name, 4)
		eventually(t, "nothing stays held", func(ctx context.Context) error { return wantExactly(ctx, ns, 4) })
		remove(t, ns, contract.GangLabel+"="+name)
	}
	// A neighbour is not starved by what failed.
	create(t, a.within(MakePod(ns, "neighbour")).Container("main", GPUs("8")).Obj())
	eventually(t, "the neighbour has all GPUs", func(ctx context.Context) error { return wantBoundPods(ctx, ns, 1) })
}

// TestMemberDeletedDuringTheStart deletes one member at any moment of its gang's
// start: the others wait for a successor, or run if all were accepted.
func TestMemberDeletedDuringTheStart(t *testing.T) {
	ns := optedIn(t)
	a := arenaOf(0, 1)
	random := rand.New(rand.NewPCG(8, 1))
	for k := range 8 {
		name := fmt.Sprintf("d%d", k)
		var working sync.WaitGroup
		working.Go(func() { createAll(t, a.gang(ns, name, 8)...) })
		victim := fmt.Sprintf("%s-%d", name, k)
		err := wait.PollUntilContextTimeout(t.Context(), time.Duration(1+random.IntN(300))*time.Millisecond, settle, false, func(ctx context.Context) (bool, error) {
			err := client.CoreV1().Pods(ns).Delete(ctx, victim, metav1.DeleteOptions{})
			if apierrors.IsNotFound(err) {
				return false, nil // not there yet
			}
			return err == nil, err
		})
		if err != nil {
			t.Fatal(err)
		}
		working.Wait()
		createAll(t, a.member(ns, name, 8, 8).Obj())
		waitBound(t, ns, name, 8)
		remove(t, ns, contract.GangLabel+"="+name)
	}
}

func TestGangOnTheRealNode(t *testing.T) {
	ns := optedIn(t)
	var pods []*corev1.Pod
	for i := range 4 {
		pods = append(pods, MakePod(ns, fmt.Sprintf("g-%d", i)).OnNode(realNode).
			Label(contract.GangLabel, "g").Annotation(contract.GangMinCountAnnotation, "4").
			Annotation(contract.ModelAnnotation, "NVIDIA-A30").Container("main", Shares("50")).Obj())
	}
	createAll(t, pods...)
	used := map[string]int{}
	for _, pod := range pods {
		running := waitRunning(t, pod)
		waitKubeletAgrees(t, running)
		for _, gpu := range gpusOf(t, running, "main") {
			used[gpu]++
		}
	}
	if len(used) != 2 {
		t.Errorf("pods per GPU: %v, want two on each of two", used)
	}
	checkInside(t, ns)
	eventually(t, "all three views agree", checkTruth)
}

func TestGangDeclaredByItsOwner(t *testing.T) {
	ns := optedIn(t)
	a := arenaOf(0, 1)
	pod := a.within(MakePod(ns, "template")).Container("main", GPUs("1")).Spec(func(spec *corev1.PodSpec) { spec.RestartPolicy = corev1.RestartPolicyNever }).Obj()
	job := batchJob("train", corev1.PodTemplateSpec{Spec: pod.Spec})
	job.Spec.Parallelism, job.Spec.Completions = new(int32(4)), new(int32(4))
	job.Labels = map[string]string{contract.GangLabel: "train"}
	job.Annotations = map[string]string{contract.GangMinCountAnnotation: "4"}
	if _, err := client.BatchV1().Jobs(ns).Create(t.Context(), job, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	waitBound(t, ns, "train", 4)
	if err := client.BatchV1().Jobs(ns).Delete(t.Context(), "train", metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the Gang is collected with its owner", func(ctx context.Context) error {
		_, _, err := gangReason(ctx, ns, "train")
		if err == nil {
			return fmt.Errorf("it is still there")
		}
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

func TestLostMemberIsReplacedAndScalingWorks(t *testing.T) {
	ns := optedIn(t)
	a := arenaOf(0, 1)
	createAll(t, a.gang(ns, "g", 8)...)
	waitBound(t, ns, "g", 8)
	// A gang that waits must not take the place of the one that is lost.
	createAll(t, a.gang(ns, "next", 1)...)
	waitReason(t, ns, "next", v1alpha1.ReasonNoPlace, "")
	if err := client.CoreV1().Pods(ns).Delete(t.Context(), "g-3", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waitReason(t, ns, "g", v1alpha1.ReasonBelowMinCount, "7 of 8")
	createAll(t, a.member(ns, "g", 8, 8).Obj())
	waitBound(t, ns, "g", 8)
	waitBound(t, ns, "next", 0)
}

// TestGangKeepsToOneRack labels four nodes as two racks.
func TestGangKeepsToOneRack(t *testing.T) {
	const rack = "example.com/rack"
	ns := optedIn(t)
	a := arenaOf(0, 4)
	rackOf := map[string]string{}
	for i, node := range a {
		rackOf[node] = fmt.Sprintf("r%d", i/2)
		labelNode(t, node, rack, rackOf[node])
	}
	create(t, MakePod(ns, "filler").OnNode(a[3]).Container("main", GPUs("2")).Obj())
	waitBoundPods(t, ns, 1)
	declare := func(name string, minCount int32, mode v1alpha1.TopologyMode) {
		g := &v1alpha1.Gang{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Spec: v1alpha1.GangSpec{
			MinCount: minCount, Topology: &v1alpha1.GangTopology{NodeLabel: rack, Mode: mode},
		}}
		if err := gangs.Create(t.Context(), g); err != nil {
			t.Fatal(err)
		}
		createAll(t, a.gang(ns, name, int(minCount))...)
	}
	racks := func(name string) []string {
		pods, err := membersOf(t.Context(), ns, name)
		if err != nil {
			t.Fatal(err)
		}
		var list []string
		for _, pod := range pods {
			list = append(list, rackOf[pod.Spec.NodeName])
		}
		slices.Sort(list)
		return slices.Compact(list)
	}
	declare("fits", 12, v1alpha1.TopologyRequired)
	waitBound(t, ns, "fits", 12)
	if got := racks("fits"); len(got) != 1 {
		t.Errorf("racks %v, want one", got)
	}
	// 30 GPUs less 12: 18 are free, in two racks.
	declare("strict", 17, v1alpha1.TopologyRequired)
	waitReason(t, ns, "strict", v1alpha1.ReasonNoDomain, rack)
	waitBound(t, ns, "strict", 0)
	remove(t, ns, contract.GangLabel+"=strict")
	declare("lenient", 17, v1alpha1.TopologyPreferred)
	waitBound(t, ns, "lenient", 17)
}

// labelNode labels a node for the time of the test.
func labelNode(t *testing.T, node, key, value string) {
	t.Helper()
	set := func(ctx context.Context, value any) error {
		_, err := client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, []byte(metadata("labels", key, value)), metav1.PatchOptions{})
		return err
	}
	if err := set(t.Context(), value); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := set(context.WithoutCancel(t.Context()), nil); err != nil {
			t.Error(err)
		}
	})
}

// TestNextRunWithTheSameLabelIsANewGang is what a CronJob makes: Jobs of other
// names with one gang label, of which the finished ones stay.
func TestNextRunWithTheSameLabelIsANewGang(t *testing.T) {
	ns := optedIn(t)
	a := arenaOf(0, 1)
	run := func(name, runFor string) {
		pod := a.within(MakePod(ns, "template")).Container("main", GPUs("1")).Spec(func(spec *corev1.PodSpec) { spec.RestartPolicy = corev1.RestartPolicyNever }).Obj()
		template := corev1.PodTemplateSpec{Spec: pod.Spec}
		template.Labels = map[string]string{contract.GangLabel: "nightly"}
		template.Annotations = map[string]string{contract.GangMinCountAnnotation: "8", contract.SimRunForAnnotation: runFor}
		job := batchJob(name, template)
		job.Spec.Parallelism, job.Spec.Completions = new(int32(8)), new(int32(8))
		if _, err := client.BatchV1().Jobs(ns).Create(t.Context(), job, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	run("first", "1s")
	eventually(t, "the first run is done", func(ctx context.Context) error {
		job, err := client.BatchV1().Jobs(ns).Get(ctx, "first", metav1.GetOptions{})
		if err == nil && job.Status.Succeeded != 8 {
			err = fmt.Errorf("%d have succeeded", job.Status.Succeeded)
		}
		return err
	})
	create(t, a.within(MakePod(ns, "filler")).Container("main", GPUs("4")).Obj())
	waitBoundPods(t, ns, 8+1)
	bound := watchBindings(t, ns)
	run("second", "10m")
	waitReason(t, ns, "nightly", v1alpha1.ReasonNoPlace, "4 places are free")
	bound.wantRuns(t)
	if err := client.CoreV1().Pods(ns).Delete(t.Context(), "filler", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	bound.wantRuns(t, "nightly×8")
}
