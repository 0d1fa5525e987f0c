package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/tests/cluster"
	"github.com/tranche-dev/tranche/tests/testkit"
)

// throughputPods are created at once in each burst: quarters of GPUs.
const throughputPods = 2000

// throughputBench measures bursts of shared GPUs, without a gate and behind one,
// against as many pods that the stock scheduler places without being told of
// Tranche.
type throughputBench struct{ *kit }

// burstOf is what one burst took, from the first create to the last bind.
type burstOf struct {
	took time.Duration
	cpu  map[string]time.Duration
	// before and after are the extender's requests until then.
	before, after []int
}

func (b *throughputBench) run(ctx context.Context) ([]row, error) {
	for name, mode := range map[string]v1alpha1.AdmissionMode{"open": v1alpha1.AdmissionDirect, "gated": v1alpha1.AdmissionGated} {
		q := &v1alpha1.Queue{ObjectMeta: metav1.ObjectMeta{Name: name}}
		q.Spec.Admission = mode
		if err := b.objects.Create(ctx, q); err != nil {
			return nil, err
		}
	}
	if err := b.countRequests(ctx); err != nil {
		return nil, err
	}
	if _, _, err := b.during(ctx, "idle", settling); err != nil {
		return nil, err
	}
	quarter := func(queue string) func(i int) *corev1.Pod {
		return func(i int) *corev1.Pod {
			return withCPU(testkit.MakePod(namespace, fmt.Sprintf("%s-%d", queue, i)).Container("main", testkit.Shares("25")).Label(contract.QueueLabel, queue).Obj())
		}
	}
	stock, err := b.burst(ctx, "stock", alone("stock"))
	if err != nil {
		return nil, err
	}
	var rows []row
	for _, kind := range []struct{ queue, what, bar string }{
		{"open", "without a gate", ">= 0.9"},
		{"gated", "gated and nominated", ">= " + gatedBar(b.nodes)},
	} {
		ours, err := b.burst(ctx, kind.queue, quarter(kind.queue))
		if err != nil {
			return rows, err
		}
		rate := func(d time.Duration) string { return fmt.Sprintf("%.0f/s", throughputPods/d.Seconds()) }
		rows = append(rows, row{
			fmt.Sprintf("%d pods of 1/4 GPU on %d nodes, %s: first create to last bind", throughputPods, b.nodes, kind.what),
			rate(ours.took), rate(stock.took) + " (pods without GPU, stock scheduler)", fmt.Sprintf("%.2f", stock.took.Seconds()/ours.took.Seconds()), kind.bar,
		},
			perPod("... CPU of scheduler and extender per pod", "<= "+cpuBar(b.nodes), throughputPods, ours.of(cluster.Scheduler, cluster.Extender), stock.of(cluster.Scheduler)),
			perPod("... CPU of the API server per pod", "<= 1.6", throughputPods, ours.of(cluster.APIServer), stock.of(cluster.APIServer)),
			writesPerPod(throughputPods, ours.before, ours.after),
		)
	}
	return rows, nil
}

// gatedBar and cpuBar are the bars for a cluster of so many nodes, which the
// stock scheduler looks at one by one and a nominated pod does not need to.
func gatedBar(nodes int) string {
	switch {
	case nodes < 2000:
		return "0.8"
	case nodes < 5000:
		return "1.0"
	default:
		return "1.3"
	}
}

func cpuBar(nodes int) string {
	if nodes < 5000 {
		return "1.0"
	}
	return "0.5"
}

// perPod compares what n pods cost with what as many cost the stock scheduler.
func perPod(what, bar string, n int, ours, stock time.Duration) row {
	each := func(d time.Duration) string {
		return fmt.Sprintf("%.2f ms", float64(d.Microseconds())/float64(n)/1000)
	}
	return row{what, each(ours), each(stock) + " (stock scheduler)", fmt.Sprintf("%.2f", float64(ours)/float64(stock)), bar}
}

// of is what some programs used together.
func (b *burstOf) of(programs ...string) time.Duration {
	var sum time.Duration
	for _, p := range programs {
		sum += b.cpu[p]
	}
	return sum
}

// burst creates the pods, waits until all are bound, and clears them away.
func (b *throughputBench) burst(ctx context.Context, name string, pod func(i int) *corev1.Pod) (*burstOf, error) {
	counted, err := b.counted(ctx)
	if err != nil {
		return nil, err
	}
	written := b.profile(ctx, fmt.Sprintf("%s-%d", name, b.nodes))
	before := usages(b.kube.Dir())
	began, _, bound, err := b.kit.burst(ctx, name, throughputPods, pod)
	if err != nil {
		return nil, err
	}
	after := usages(b.kube.Dir())
	written()
	r := &burstOf{took: bound.Sub(began), cpu: map[string]time.Duration{}, before: counted}
	if r.after, err = b.counted(ctx); err != nil {
		return nil, err
	}
	for _, p := range []string{cluster.Scheduler, cluster.Extender, cluster.APIServer} {
		r.cpu[p] = cpuOf(before, after, p)
	}
	if err := b.clear(ctx); err != nil {
		return nil, err
	}
	_, _, err = b.during(ctx, "after "+name, settling)
	return r, err
}
