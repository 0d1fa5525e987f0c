package e2e

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/tests/cluster"
	. "github.com/tranche-dev/tranche/tests/testkit"
)

// withExtender runs the extender with more flags until the test ends.
func withExtender(t *testing.T, args ...string) {
	t.Helper()
	change := func(ctx context.Context, args []string) {
		o := options
		o.ExtenderArgs, o.Out = args, nil
		if _, err := cluster.Up(ctx, o); err != nil {
			t.Errorf("extender with %v: %v", args, err)
		}
	}
	change(t.Context(), args)
	t.Cleanup(func() { change(context.WithoutCancel(t.Context()), nil) })
}

// TestGangsWithoutNomination: nomination makes gangs fast, and nothing depends
// on it.
func TestGangsWithoutNomination(t *testing.T) {
	withExtender(t, "--nominate=false")
	ns := optedIn(t)
	big := arenaOf(1, 8)
	createAll(t, big.gang(ns, "big", 64)...)
	waitBound(t, ns, "big", 64)

	a := arenaOf(0, 2)
	createAll(t, a.gang(ns, "first", 12)...)
	waitBound(t, ns, "first", 12)
	createAll(t, a.gang(ns, "second", 12)...)
	waitReason(t, ns, "second", v1alpha1.ReasonNoPlace, "4 places are free")
	remove(t, ns, contract.GangLabel+"=first")
	waitBound(t, ns, "second", 12)
	list, err := membersOf(t.Context(), ns, "second")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "nothing stays held", func(ctx context.Context) error { return wantExactly(ctx, ns, 64+len(list)) })
}

// TestGangsSwitchedOffLiftAllGates: whoever turns the feature off must not leave
// pods behind that wait for ever.
func TestGangsSwitchedOffLiftAllGates(t *testing.T) {
	ns := optedIn(t)
	a := arenaOf(0, 1)
	createAll(t, a.gang(ns, "g", 9)...) // one more than there is room for
	waitReason(t, ns, "g", v1alpha1.ReasonNoPlace, "8 places are free")
	withExtender(t, "--gangs=false")
	waitBoundPods(t, ns, 8)
	list, err := membersOf(t.Context(), ns, "g")
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range list {
		if len(pod.Spec.SchedulingGates) > 0 {
			t.Errorf("pod %s has gates %v", pod.Name, pod.Spec.SchedulingGates)
		}
	}
}

func waitBoundPods(t *testing.T, ns string, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d pods are bound", n), func(ctx context.Context) error { return wantBoundPods(ctx, ns, n) })
}

// TestNativePodGroups runs on a control plane that schedules PodGroups itself.
func TestNativePodGroups(t *testing.T) {
	o := cluster.DefaultOptions()
	o.Dir = filepath.Join(filepath.Dir(options.Dir), ".cluster-e2e-native")
	o.SimNodes, o.RealNode, o.NativeGangs = 2, false, true
	native, err := cluster.Up(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if os.Getenv("TRANCHE_E2E_KEEP") != "" {
			return
		}
		if err := cluster.Down(context.WithoutCancel(t.Context()), o.Dir, io.Discard); err != nil {
			t.Error(err)
		}
	})
	before := client
	if client, err = native.Client(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client = before })
	ns := optedIn(t)

	a := arenaOf(0, 2)
	_, err = client.SchedulingV1beta1().PodGroups(ns).Create(t.Context(), &schedulingv1beta1.PodGroup{
		ObjectMeta: metav1.ObjectMeta{Name: "train"},
		Spec: schedulingv1beta1.PodGroupSpec{SchedulingPolicy: schedulingv1beta1.PodGroupSchedulingPolicy{
			Gang: &schedulingv1beta1.GangSchedulingPolicy{MinCount: 12},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	filler := MakePod(ns, "filler").OnNode(a[0]).Container("main", GPUs("6")).Obj()
	create(t, filler)
	waitBoundPods(t, ns, 1)
	var pods []*corev1.Pod
	for i := range 12 {
		pods = append(pods, a.within(MakePod(ns, fmt.Sprintf("train-%d", i))).Container("main", GPUs("1")).Spec(func(spec *corev1.PodSpec) {
			spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: new("train")}
		}).Obj())
	}
	bound := watchBindings(t, ns)
	createAll(t, pods...)
	waitEvent(t, pods[0], "GangWaiting", "needs 12 × 1 whole GPU; 10 places are free")
	if err := client.CoreV1().Pods(ns).Delete(t.Context(), filler.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waitBoundPods(t, ns, 12)
	bound.wantRuns(t, "×12")
}
