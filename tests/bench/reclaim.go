package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/tests/testkit"
)

// reclaims is how often one GPU is taken back.
const reclaims = 10

// reclaimBench measures how soon a queue takes one GPU back from another that has
// borrowed all of them.
type reclaimBench struct{ *kit }

func (b *reclaimBench) run(ctx context.Context) ([]row, error) {
	for name, deserved := range map[string]int{"borrower": 0, "owner": b.gpus} {
		q := &v1alpha1.Queue{ObjectMeta: metav1.ObjectMeta{Name: name}}
		q.Spec.Deserved.GPU = resource.NewQuantity(int64(deserved), resource.DecimalSI)
		if err := b.objects.Create(ctx, q); err != nil {
			return nil, err
		}
	}
	w, err := b.watch(ctx, namespace)
	if err != nil {
		return nil, err
	}
	defer w.stop()
	of := func(queue string) func(i int) *corev1.Pod {
		return func(i int) *corev1.Pod {
			return withCPU(testkit.MakePod(namespace, fmt.Sprintf("%s-%d", queue, i)).Container("main", testkit.GPUs("1")).Label(contract.QueueLabel, queue).Obj())
		}
	}
	began := time.Now()
	if err := b.create(ctx, b.gpus, of("borrower")); err != nil {
		return nil, err
	}
	if err := w.until(ctx, "the nodes are full", longPatience, func() bool { return w.bound >= b.gpus }); err != nil {
		return nil, err
	}
	fmt.Printf("%d GPUs of %d nodes are taken after %v\n", b.gpus, b.nodes, time.Since(began))
	if _, _, err := b.during(ctx, "all is taken", settling); err != nil {
		return nil, err
	}
	var asked, bound, stock []time.Duration
	before := usages(b.kube.Dir())
	for i := range reclaims {
		had, left := w.counts()
		began := time.Now()
		if err := b.create(ctx, 1, func(int) *corev1.Pod { return of("owner")(i) }); err != nil {
			return nil, err
		}
		if err := w.until(ctx, "a GPU is taken back", patience, func() bool { return w.leaving > left }); err != nil {
			return nil, err
		}
		asked = append(asked, w.lastLeaving.Sub(began))
		if err := w.until(ctx, "the GPU is used", patience, func() bool { return w.bound > had }); err != nil {
			return nil, err
		}
		bound = append(bound, w.lastBound.Sub(began))
	}
	fmt.Printf("create to the victim's end %v, to the bind %v; CPU: %s\n", asked, bound, spent(before, usages(b.kube.Dir())))
	for i := range reclaims {
		took, err := w.oneMore(ctx, func() error {
			return b.create(ctx, 1, func(int) *corev1.Pod { return single(fmt.Sprintf("one-%d", i)) })
		})
		if err != nil {
			return nil, err
		}
		stock = append(stock, took)
	}
	what := fmt.Sprintf("one GPU of %d nodes and %d pods is taken back", b.nodes, b.gpus)
	yardstick := medianAndWorst(stock) + " (create to bind of a single pod, stock scheduler)"
	return []row{
		{fmt.Sprintf("%s: create to the victim's deletionTimestamp, median (worst of %d)", what, reclaims), medianAndWorst(asked), yardstick, "", "< 1s"},
		{"... create to bind of the pod that takes it", medianAndWorst(bound), yardstick, "", ""},
	}, nil
}
