package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/tests/cluster"
	"github.com/tranche-dev/tranche/tests/testkit"
)

const (
	// teams is the namespace of the pods that wait; the stock scheduler's pods
	// are in another.
	teams       = "teams"
	departments = 20
	// window is how long the cluster is watched while nothing happens.
	window = 20 * time.Second
	// longPatience is for thousands of pods.
	longPatience = 15 * time.Minute
)

// queueBench measures many queues in which many pods wait.
type queueBench struct {
	*kit
	// queues and pending are how many of them there are, admit how many of the
	// pods are let go at one time.
	queues, pending, admit int
	watcher                *watcher
}

func (b *queueBench) run(ctx context.Context) ([]row, error) {
	if err := b.makeQueues(ctx); err != nil {
		return nil, err
	}
	var err error
	if b.watcher, err = b.watch(ctx, teams); err != nil {
		return nil, err
	}
	defer b.watcher.stop()
	var rows []row
	for _, step := range []func(context.Context) ([]row, error){b.backlog, b.oneByOne, b.many, b.full} {
		more, err := step(ctx)
		if err != nil {
			return rows, err
		}
		rows = append(rows, more...)
	}
	return rows, nil
}

// makeQueues makes the tree. One pod of each department may start, so that the
// others have the reason that they keep when limits are raised: a new one would be
// written into an event for each.
func (b *queueBench) makeQueues(ctx context.Context) error {
	_, err := b.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: teams, Labels: map[string]string{contract.InjectLabel: contract.InjectEnabled}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	// They deserve the cluster, in equal parts.
	part := func(n int) *resource.Quantity {
		return resource.NewMilliQuantity(int64(b.gpus*1000/n), resource.DecimalSI)
	}
	err = each(departments, func(i int) error {
		q := &v1alpha1.Queue{ObjectMeta: metav1.ObjectMeta{Name: department(i)}}
		q.Spec.Deserved.GPU, q.Spec.Limit.GPU = part(departments), resource.NewQuantity(1, resource.DecimalSI)
		return b.objects.Create(ctx, q)
	})
	if err != nil {
		return err
	}
	return each(b.queues, func(i int) error {
		q := &v1alpha1.Queue{ObjectMeta: metav1.ObjectMeta{Name: team(i)}}
		q.Spec.Parent, q.Spec.Deserved.GPU, q.Spec.Admission = department(i%departments), part(b.queues), v1alpha1.AdmissionGated
		return b.objects.Create(ctx, q)
	})
}

func department(i int) string { return fmt.Sprintf("department-%d", i) }
func team(i int) string       { return fmt.Sprintf("team-%d", i) }

// setLimit returns when the API server has the limit.
func (b *queueBench) setLimit(ctx context.Context, i int, limit string) error {
	q := &v1alpha1.Queue{ObjectMeta: metav1.ObjectMeta{Name: department(i)}}
	patch := fmt.Sprintf(`{"spec":{"limit":{"gpu":%s}}}`, limit)
	return b.objects.Patch(ctx, q, ctrlclient.RawPatch("application/merge-patch+json", []byte(patch)))
}

// backlog fills the queues, and looks what the waiting costs.
func (b *queueBench) backlog(ctx context.Context) ([]row, error) {
	// Each new queue gets its first status.
	writes := func(ctx context.Context) (int, error) { return b.gauge(ctx, "tranche_extender_queue_writes_total") }
	if err := atRest(ctx, writes); err != nil {
		return nil, err
	}
	idle, idleEnd, err := b.during(ctx, "idle", window)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := b.create(ctx, b.pending, func(i int) *corev1.Pod {
		return withCPU(testkit.MakePod(teams, fmt.Sprintf("pod-%d", i)).Container("main", testkit.GPUs("1")).Label(contract.QueueLabel, team(i%b.queues)).Obj())
	}); err != nil {
		return nil, err
	}
	created := time.Now()
	if err := b.allWait(ctx); err != nil {
		return nil, err
	}
	waiting := time.Now()
	told, at, err := b.told(ctx)
	if err != nil {
		return nil, err
	}
	fmt.Printf("%d pods created in %v; all wait %v later, %d have an event %v later\n", b.pending, created.Sub(began), waiting.Sub(created), told, at.Sub(created))
	rows := []row{
		{
			fmt.Sprintf("%d pods in %d queues: last create until the extender has a reason for each", b.pending, b.queues),
			round(waiting.Sub(created)), fmt.Sprintf("%s (to create them)", round(created.Sub(began))), "", "",
		},
		{
			"... until the last event with it is there", round(at.Sub(created)), fmt.Sprintf("%s (at the set rate)", round(eventsTake(b.pending))), "", "",
		},
		{"... pods that have an event", strconv.Itoa(told), strconv.Itoa(b.pending - departments), fmt.Sprintf("%.2f", float64(told)/float64(b.pending-departments)), "1"},
	}
	flushed, err := b.flushed(ctx)
	if err != nil {
		return nil, err
	}
	written := b.profile(ctx, "waiting")
	before, after, err := b.during(ctx, fmt.Sprintf("%d pods wait", b.pending), window)
	written()
	if err != nil {
		return nil, err
	}
	again, err := b.flushed(ctx)
	if err != nil {
		return nil, err
	}
	rows = append(rows, row{
		"... gates that kube-scheduler looked at anew meanwhile, by its own five-minute timer", strconv.Itoa(again - flushed), "", "", "",
	})
	rows = append(rows, quiet(fmt.Sprintf("%d pods wait for a limit", b.pending), idle, idleEnd, before, after)...)
	return append(rows, row{
		fmt.Sprintf("%d pods wait: resident memory of the extender", b.pending),
		fmt.Sprintf("%d MiB", after[cluster.Extender].resident), fmt.Sprintf("%d MiB (before they came)", idleEnd[cluster.Extender].resident), "", "",
	}), nil
}

// flushed counts the pods that kube-scheduler has looked at anew without a cause:
// after five minutes it tries each that waits, also one that has a gate.
func (b *queueBench) flushed(ctx context.Context) (int, error) {
	n, err := b.metric(ctx, cluster.Scheduler, "scheduler_queue_incoming_pods_total", `event="UnschedulableTimeout"`)
	return int(n), err
}

// rounds returns how many rounds the planner has made, and what they took.
func (b *queueBench) rounds(ctx context.Context) (n int, took time.Duration, err error) {
	count, err := b.metric(ctx, cluster.Extender, "tranche_extender_plan_duration_seconds_count")
	if err != nil {
		return 0, 0, err
	}
	sum, err := b.metric(ctx, cluster.Extender, "tranche_extender_plan_duration_seconds_sum")
	return int(count), time.Duration(sum * float64(time.Second)), err
}

// quiet compares the CPU of two windows in which nothing happens.
func quiet(what string, idle, idleEnd, before, after map[string]usage) []row {
	var rows []row
	for _, program := range []string{cluster.Scheduler, cluster.Extender, cluster.APIServer} {
		bar := ""
		if program == cluster.Scheduler {
			bar = "idle"
		}
		rows = append(rows, row{
			fmt.Sprintf("%s, CPU of %s in %v", what, program, window),
			seconds(cpuOf(before, after, program)), seconds(cpuOf(idle, idleEnd, program)) + " (before they came)", "", bar,
		})
	}
	return rows
}

// allWait returns when the extender has found why each pod waits.
func (b *queueBench) allWait(ctx context.Context) error {
	var waiting int
	err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, longPatience, true, func(ctx context.Context) (bool, error) {
		var err error
		waiting, err = b.gauge(ctx, "tranche_extender_waiting_pods")
		return err == nil && waiting >= b.pending-departments, err
	})
	if err != nil {
		return fmt.Errorf("%d of %d pods wait: %w", waiting, b.pending, err)
	}
	return nil
}

// told returns how many pods have an event, and when the last of these was there.
// Nobody else writes events of pods that have a gate.
func (b *queueBench) told(ctx context.Context) (told int, at time.Time, err error) {
	at = time.Now()
	err = atRest(ctx, func(ctx context.Context) (int, error) {
		n, err := b.events(ctx)
		if n != told {
			told, at = n, time.Now()
		}
		return n, err
	})
	return told, at, err
}

// events counts those of the pods that wait.
func (b *queueBench) events(ctx context.Context) (int, error) {
	list, err := b.client.CoreV1().Events(teams).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return 0, err
	}
	n := len(list.Items)
	if list.RemainingItemCount != nil {
		n += int(*list.RemainingItemCount)
	}
	return n, nil
}

// atRest returns when a count has been the same for a while.
func atRest(ctx context.Context, count func(ctx context.Context) (int, error)) error {
	last, since := -1, time.Now()
	return wait.PollUntilContextTimeout(ctx, time.Second, longPatience, true, func(ctx context.Context) (bool, error) {
		n, err := count(ctx)
		if n != last {
			last, since = n, time.Now()
		}
		return time.Since(since) > 5*time.Second, err
	})
}

// oneByOne raises each department's limit by one, in turn with pods that the
// stock scheduler places, so that a slow minute of the machine meets both.
func (b *queueBench) oneByOne(ctx context.Context) ([]row, error) {
	var raised, stock []time.Duration
	singles, err := b.watch(ctx, namespace)
	if err != nil {
		return nil, err
	}
	defer singles.stop()
	roundsBefore, planningBefore, err := b.rounds(ctx)
	if err != nil {
		return nil, err
	}
	for i := range departments {
		took, err := b.watcher.oneMore(ctx, func() error { return b.setLimit(ctx, i, `"2"`) })
		if err != nil {
			return nil, err
		}
		raised = append(raised, took)
		took, err = singles.oneMore(ctx, func() error {
			return b.create(ctx, 1, func(int) *corev1.Pod { return single(fmt.Sprintf("one-%d", i)) })
		})
		if err != nil {
			return nil, err
		}
		stock = append(stock, took)
	}
	rounds, planning, err := b.rounds(ctx)
	if err != nil {
		return nil, err
	}
	rounds, planning = rounds-roundsBefore, planning-planningBefore
	fmt.Printf("a limit raised by one: %v; create to bind of single pods: %v\n", raised, stock)
	return []row{{
		fmt.Sprintf("%d pods wait, a limit is raised by one: update to bind, median (worst of %d)", b.pending, departments),
		medianAndWorst(raised), medianAndWorst(stock) + " (create to bind of a single pod, stock scheduler)",
		fmt.Sprintf("%.2f", float64(median(raised))/float64(median(stock))), "",
	}, {
		fmt.Sprintf("... a round of the planner meanwhile, mean of %d", rounds), (planning / time.Duration(max(rounds, 1))).Round(10 * time.Microsecond).String(), "", "", "",
	}}, nil
}

// many lets many pods go by one change of limits, beside as many that the stock
// scheduler places.
func (b *queueBench) many(ctx context.Context) ([]row, error) {
	dir := b.kube.Dir()
	extra := b.admit / departments
	n := extra * departments
	written := b.profile(ctx, "stock")
	stockBefore := usages(dir)
	stockBegan, _, stockBound, err := b.burst(ctx, "stock", n, alone("stock"))
	if err != nil {
		return nil, err
	}
	stockAfter := usages(dir)
	written()
	if err := b.clear(ctx); err != nil {
		return nil, err
	}
	bound, _ := b.watcher.counts()
	written = b.profile(ctx, "admission")
	defer func() { written() }()
	before, began := usages(dir), time.Now()
	for i := range departments {
		if err := b.setLimit(ctx, i, fmt.Sprintf(`"%d"`, 2+extra)); err != nil {
			return nil, err
		}
	}
	if err := b.watcher.until(ctx, fmt.Sprintf("%d pods start when limits are raised", n), longPatience, func() bool { return b.watcher.bound >= bound+n }); err != nil {
		return nil, err
	}
	after, took := usages(dir), b.watcher.lastBound.Sub(began)
	fmt.Printf("%d pods admitted in %v; CPU: %s\n", n, took, spent(before, after))
	stockTook := stockBound.Sub(stockBegan)
	rate := func(d time.Duration) string { return fmt.Sprintf("%.0f/s", float64(n)/d.Seconds()) }
	return []row{
		{
			fmt.Sprintf("%d of %d pods admitted by raised limits: first update to last bind", n, b.pending),
			rate(took), rate(stockTook) + " (single pods, stock scheduler, first create to last bind)",
			fmt.Sprintf("%.2f", stockTook.Seconds()/took.Seconds()), ">= 0.8",
		},
		perPod("... CPU of scheduler and extender per pod", "<= 1.0", n, cpuOf(before, after, cluster.Scheduler, cluster.Extender), cpuOf(stockBefore, stockAfter, cluster.Scheduler)),
		perPod("... CPU of the API server per pod", "<= 1.6", n, cpuOf(before, after, cluster.APIServer), cpuOf(stockBefore, stockAfter, cluster.APIServer)),
	}, nil
}

// full lets the cluster fill, each queue up to its share, and then takes the
// limits away: the rest waits for room, and nobody has borrowed anything.
func (b *queueBench) full(ctx context.Context) ([]row, error) {
	if b.pending <= b.gpus {
		return nil, nil
	}
	idle, idleEnd, err := b.during(ctx, "the rest waits for limits", window)
	if err != nil {
		return nil, err
	}
	share := b.gpus / departments
	for i := range departments {
		if err := b.setLimit(ctx, i, fmt.Sprintf(`"%d"`, share)); err != nil {
			return nil, err
		}
	}
	if err := b.watcher.until(ctx, "the cluster is full", longPatience, func() bool { return b.watcher.bound >= share*departments }); err != nil {
		return nil, err
	}
	for i := range departments {
		if err := b.setLimit(ctx, i, "null"); err != nil {
			return nil, err
		}
	}
	// Each that waits is told the new reason.
	if err := atRest(ctx, b.events); err != nil {
		return nil, err
	}
	before, after, err := b.during(ctx, "the cluster is full", window)
	if err != nil {
		return nil, err
	}
	rows := quiet(fmt.Sprintf("%d pods wait for room on full nodes", b.pending-share*departments), idle, idleEnd, before, after)
	for i := range rows {
		rows[i].yardstick = strings.ReplaceAll(rows[i].yardstick, "before they came", "waiting for limits")
	}
	return append(rows, row{
		"... resident memory of the extender", fmt.Sprintf("%d MiB", after[cluster.Extender].resident), "", "", "",
	}), nil
}

func median(all []time.Duration) time.Duration {
	return slices.Sorted(slices.Values(all))[len(all)/2]
}

func medianAndWorst(all []time.Duration) string {
	return fmt.Sprintf("%s (%s)", round(median(all)), round(slices.Max(all)))
}

func round(d time.Duration) string { return d.Round(time.Millisecond).String() }

func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }
