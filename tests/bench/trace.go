package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/simulate"
	"github.com/tranche-dev/tranche/tests/cluster"
	"github.com/tranche-dev/tranche/tests/testkit"
)

const (
	// ahead is how many pods are created before their turn: enough to keep the
	// scheduler busy, too few to tell the policy of what will come.
	ahead = 50
	// noRoom is the reason of the event for a pod for which there is none.
	noRoom = "GPUUnavailable"
	// traceBar is how far the two may be apart, in percentage points.
	traceBar = 0.5
)

// trace is one workload of the public trace, as one seed draws it.
type trace struct {
	workload string
	seed     int64
	// cluster has its nodes in the order in which the replay tries equal ones.
	cluster  *simulate.Cluster
	arrivals []simulate.Pod
}

// readTrace draws a workload from the CSV files in a folder, up to that load.
func readTrace(dir, workload string, seed int64, load float64) (*trace, error) {
	c, pods, err := readWorkload(dir, workload)
	if err != nil {
		return nil, err
	}
	drawn := simulate.Draw(pods, c, load, seed)
	return &trace{workload, seed, c.Ordered(drawn.Order), drawn.Arrivals}, nil
}

// nodes are those of the trace, to be simulated.
func (t *trace) nodes() []cluster.SimNode {
	list := make([]cluster.SimNode, 0, len(t.cluster.Nodes))
	for _, n := range t.cluster.Nodes {
		list = append(list, cluster.SimNode(n))
	}
	return list
}

// inProcess is what package simulate makes of it.
func (t *trace) inProcess() *simulate.Outcome {
	return simulate.Replay(t.cluster, t.arrivals, simulate.LeastWaste(t.cluster))
}

// pod is an arrival as a user would write it.
func (t *trace) pod(i int, queue string) *corev1.Pod {
	p := &t.arrivals[i]
	b := testkit.MakePod(namespace, arrivalName(i)).Label(contract.QueueLabel, queue)
	if len(p.Request.Models) > 0 {
		b.Annotation(contract.ModelAnnotation, strings.Join(p.Request.Models, ","))
	}
	var ask []testkit.Container
	for _, d := range p.Request.Demands {
		if d.Whole {
			ask = append(ask, testkit.GPUs(strconv.Itoa(d.Count)))
			continue
		}
		b.Fraction(fmt.Sprintf("0.%02d", d.Shares))
		if d.Count > 1 {
			b.Count(strconv.Itoa(d.Count))
		}
	}
	pod := b.Container("main", ask...).Obj()
	pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewMilliQuantity(p.MilliCPU, resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(p.Memory, resource.BinarySI),
	}
	return pod
}

func arrivalName(i int) string { return fmt.Sprintf("arrival-%05d", i) }

// traceBench has the whole of it place the trace's pods: API server, webhook,
// kube-scheduler as shipped, and extender.
//
// As in process, a pod that finds no room is dropped, as soon as the scheduler has
// refused it, or the planner has said so. Otherwise kube-scheduler would try those
// that wait again and again, as long as pods are placed, and do little else: the text
// of the refusal has numbers of nodes, which have changed, and a pod that an extender
// refused is tried again whenever it is changed. Behind the gate the first few that
// wait would keep those behind them from being tried.
//
// What differs from the replay in process: the scheduler looks at a part of the
// nodes for each pod if its configuration says so; how it rates nodes has a part in
// where pods go, and all of it for ties; what a pod took of a node is seen when the
// watch tells of it; and the policy learns of a few pods before their turn, and anew
// once a second.
type traceBench struct {
	*kit
	*trace
	// admission are the kinds of queues that it is done with, one after the other.
	admission []v1alpha1.AdmissionMode
}

func (b *traceBench) run(ctx context.Context) ([]row, error) {
	want := b.inProcess()
	var rows []row
	for i, mode := range b.admission {
		if i > 0 {
			if err := b.startOver(ctx); err != nil {
				return rows, err
			}
		}
		q := &v1alpha1.Queue{ObjectMeta: metav1.ObjectMeta{Name: strings.ToLower(string(mode))}}
		q.Spec.Admission = mode
		if err := b.objects.Create(ctx, q); err != nil {
			return rows, err
		}
		got, took, err := b.replay(ctx, q)
		if err != nil {
			return rows, err
		}
		rows = append(rows, b.compare(how[mode], got, want)...)
		rows = append(rows, row{"... pods that came in a second", fmt.Sprintf("%.0f/s", float64(len(b.arrivals))/took.Seconds()), "", "", ""})
	}
	return rows, nil
}

var how = map[v1alpha1.AdmissionMode]string{v1alpha1.AdmissionDirect: "without a gate", v1alpha1.AdmissionGated: "behind the gate"}

// startOver empties the cluster and has the extender forget what it has learned.
func (b *traceBench) startOver(ctx context.Context) error {
	if err := b.clear(ctx); err != nil {
		return err
	}
	return b.kube.Restart(ctx, cluster.Extender)
}

// compare sets what was reached beside what was reached in process.
func (b *traceBench) compare(what string, got, want *simulate.Outcome) []row {
	var rows []row
	for _, percent := range []int{100, 130} {
		is, ok := got.AllocationAt(percent)
		if !ok {
			continue
		}
		should, _ := want.AllocationAt(percent)
		rows = append(rows, row{
			fmt.Sprintf("workload %s, seed %d, %s: GPUs allocated when %d %% are asked for", b.workload, b.seed, what, percent),
			fmt.Sprintf("%.2f %%", is), fmt.Sprintf("%.2f %% (in process)", should), fmt.Sprintf("%+.2f points", is-should), fmt.Sprintf("± %.1f", traceBar),
		})
	}
	return rows
}

// replay creates the pods, one after the other, and returns what became of them
// and the time that it took.
func (b *traceBench) replay(ctx context.Context, q *v1alpha1.Queue) (*simulate.Outcome, time.Duration, error) {
	w, err := b.watchAll(ctx, namespace, noRoom)
	if err != nil {
		return nil, 0, err
	}
	defer w.stop()
	before, began := usages(b.kube.Dir()), time.Now()
	// The scheduler takes pods in the order in which it hears of them, so there is
	// one creator.
	for i := range b.arrivals {
		if _, err := b.client.CoreV1().Pods(namespace).Create(ctx, b.pod(i, q.Name), metav1.CreateOptions{}); err != nil {
			return nil, 0, err
		}
		if created := i + 1; created%ahead == 0 {
			if err := b.decided(ctx, w, created-ahead, created); err != nil {
				return nil, 0, err
			}
		}
		if i%1000 == 999 {
			fmt.Printf("%s: %d of %d pods have come in %v\n", q.Name, i+1, len(b.arrivals), time.Since(began).Round(time.Second))
		}
	}
	if err := b.decided(ctx, w, len(b.arrivals), len(b.arrivals)); err != nil {
		return nil, 0, err
	}
	took := time.Since(began)
	out, placed, err := b.outcome(ctx)
	if err != nil {
		return nil, 0, err
	}
	fmt.Printf("%s: %d of %d pods are placed in %v; CPU: %s\n",
		q.Name, placed, len(b.arrivals), took.Round(time.Second), spent(before, usages(b.kube.Dir())))
	return out, took, nil
}

// decided returns when at least n of the pods that were created are bound or were
// refused, and are gone.
func (b *traceBench) decided(ctx context.Context, w *watcher, n, created int) error {
	var is int
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, longPatience, true, func(ctx context.Context) (bool, error) {
		is = w.decided()
		return is >= n, b.drop(ctx, w)
	})
	if err != nil {
		return fmt.Errorf("%d of %d pods are bound or refused, want %d: %w", is, created, n, err)
	}
	return nil
}

// drop deletes pods that were refused, unless they have changed since.
func (b *traceBench) drop(ctx context.Context, w *watcher) error {
	for name, version := range w.waiting() {
		err := b.client.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{
			GracePeriodSeconds: new(int64), Preconditions: &metav1.Preconditions{ResourceVersion: &version},
		})
		if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// outcome sums up which arrivals are bound now.
func (b *traceBench) outcome(ctx context.Context) (out *simulate.Outcome, placed int, err error) {
	list, err := b.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, 0, err
	}
	bound := map[string]bool{}
	for i := range list.Items {
		if list.Items[i].Spec.NodeName != "" {
			bound[list.Items[i].Name] = true
		}
	}
	out = &simulate.Outcome{Capacity: b.cluster.GPUs() * 1000}
	var step simulate.Step
	for i, p := range b.arrivals {
		step.Asked += p.Asked
		if bound[arrivalName(i)] {
			step.Placed += p.Asked
		}
		out.Steps = append(out.Steps, step)
	}
	return out, len(bound), nil
}
