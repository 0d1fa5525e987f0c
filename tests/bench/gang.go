package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/tests/testkit"
)

const (
	namespace = "demo"
	// gangSize is the gang of the bar.
	gangSize = 512
)

// gangBench measures gangs against single pods that the stock scheduler places
// without being told of Tranche.
type gangBench struct {
	*kit
	// rounds is how often everything is measured.
	rounds int
}

// run measures in turn, so that a slow minute of the machine meets both.
func (b *gangBench) run(ctx context.Context) ([]row, error) {
	var single, gang, cannot time.Duration
	for i := range b.rounds {
		s, err := b.timed(ctx, fmt.Sprintf("single-%d", i), alone)
		if err != nil {
			return nil, err
		}
		g, err := b.timed(ctx, fmt.Sprintf("gang-%d", i), member)
		if err != nil {
			return nil, err
		}
		c, err := b.cannotFit(ctx, fmt.Sprintf("huge-%d", i))
		if err != nil {
			return nil, err
		}
		single, gang, cannot = single+s, gang+g, cannot+c
	}
	mean := func(d time.Duration) string { return (d / time.Duration(b.rounds)).Round(time.Millisecond).String() }
	return []row{
		{
			fmt.Sprintf("a gang of %d on %d nodes: last create to last bind", gangSize, b.nodes),
			mean(gang), mean(single) + fmt.Sprintf(" (%d single pods, stock scheduler)", gangSize),
			fmt.Sprintf("%.2f", float64(gang)/float64(single)), "<= 1.5",
		},
		{fmt.Sprintf("a gang of %d that cannot fit: last create to its reason", gangSize), mean(cannot), "", "", "< 1s"},
	}, nil
}

// alone and member return the i-th pod of a burst or gang.
func alone(name string) func(i int) *corev1.Pod {
	return func(i int) *corev1.Pod { return single(fmt.Sprintf("%s-%d", name, i)) }
}

func member(gang string) func(i int) *corev1.Pod {
	return func(i int) *corev1.Pod {
		return withCPU(testkit.MakePod(namespace, fmt.Sprintf("%s-%d", gang, i)).Container("main", testkit.GPUs("1")).
			Label(contract.GangLabel, gang).Annotation(contract.GangMinCountAnnotation, strconv.Itoa(gangSize)).Obj())
	}
}

// timed returns the time from the last create to the last binding.
func (b *gangBench) timed(ctx context.Context, name string, pod func(name string) func(i int) *corev1.Pod) (time.Duration, error) {
	_, created, bound, err := b.burst(ctx, name, gangSize, pod(name))
	if err != nil {
		return 0, err
	}
	return bound.Sub(created), b.clear(ctx)
}

// cannotFit creates a gang for which one GPU is too few, and returns the time
// from the last create until its Gang says why it waits.
func (b *gangBench) cannotFit(ctx context.Context, name string) (time.Duration, error) {
	filler := func(suffix string, gpus int) func(i int) *corev1.Pod {
		return func(i int) *corev1.Pod {
			return testkit.MakePod(namespace, fmt.Sprintf("%s-%s-%d", name, suffix, i)).Container("main", testkit.GPUs(strconv.Itoa(gpus))).Obj()
		}
	}
	// All but gangSize-1 GPUs are taken by one pod per node.
	if err := b.fill(ctx, max(0, b.nodes-(gangSize-1)/(b.gpus/b.nodes)-1), filler("filler", b.gpus/b.nodes)); err != nil {
		return 0, err
	}
	if err := b.fill(ctx, 1, filler("one", 1)); err != nil {
		return 0, err
	}
	if err := b.create(ctx, gangSize, member(name)); err != nil {
		return 0, err
	}
	created := time.Now()
	var g v1alpha1.Gang
	err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		if err := b.objects.Get(ctx, ctrlclient.ObjectKey{Namespace: namespace, Name: name}, &g); err != nil {
			return false, ctrlclient.IgnoreNotFound(err)
		}
		return len(g.Status.Reasons) > 0 && g.Status.Reasons[0].Type == v1alpha1.ReasonNoPlace, nil
	})
	if err != nil {
		return 0, fmt.Errorf("gang %s says no reason (%+v): %w", name, g.Status, err)
	}
	return time.Since(created), b.clear(ctx)
}

// fill creates pods and waits until they are bound.
func (b *gangBench) fill(ctx context.Context, n int, pod func(i int) *corev1.Pod) error {
	if err := b.create(ctx, n, pod); err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		list, err := b.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName="})
		return err == nil && len(list.Items) == 0, err
	})
}
