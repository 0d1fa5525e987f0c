package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tranche-dev/tranche/tests/cluster"
)

// calls is how often each call is made at each size.
const calls = 1000

// size is how much there is while the extender is asked: so many nodes, and GPU
// pods, each on average, that run on them.
type size struct{ nodes, each int }

// pods is how many run in all.
func (s size) pods() int { return s.nodes * s.each }

func (s size) String() string {
	if s.each == 0 {
		return fmt.Sprintf("%d empty nodes", s.nodes)
	}
	return fmt.Sprintf("%d nodes, %d running GPU pods", s.nodes, s.pods())
}

// parseSizes reads such as "500x0,2000x10".
func parseSizes(text string) ([]size, error) {
	var all []size
	for _, item := range cluster.SplitList(text) {
		nodes, each, _ := strings.Cut(item, "x")
		n, err := strconv.Atoi(nodes)
		e, err2 := strconv.Atoi(each)
		if err != nil || err2 != nil || n <= spares || e < 0 {
			return nil, fmt.Errorf("%q; write NODESxPODS, more than %d nodes and how many pods each of them has on average", item, spares)
		}
		all = append(all, size{n, e})
	}
	slices.SortFunc(all, func(a, b size) int { return (a.nodes-b.nodes)<<16 + a.each - b.each })
	return slices.Compact(all), nil
}

// scaleBench asks the extender as kube-scheduler does, while many pods run, and
// looks at its memory and its start.
type scaleBench struct {
	*kit
	// sizes are those of this cluster, the fewest pods first.
	sizes  []size
	caller *caller
	crowd  *crowd
	// empty is what the extender took before there were pods, first how long a
	// Filter call lasted at the first size.
	empty memory
	first time.Duration
}

func (b *scaleBench) run(ctx context.Context) ([]row, error) {
	var err error
	if b.caller, err = newCaller(b.kube); err != nil {
		return nil, err
	}
	if b.crowd, err = b.gather(ctx); err != nil {
		return nil, err
	}
	// What else works here would be measured too, and nothing is to be scheduled.
	for _, program := range []string{cluster.Scheduler, cluster.ControllerManager, cluster.Kwok} {
		if err := b.kube.Stop(ctx, program); err != nil {
			return nil, err
		}
	}
	if err := b.kube.Restart(ctx, cluster.Extender); err != nil {
		return nil, err
	}
	if b.empty, err = b.memory(ctx, fmt.Sprintf("%d-empty", b.nodes)); err != nil {
		return nil, err
	}
	var rows []row
	for _, s := range b.sizes {
		more, err := b.at(ctx, s)
		rows = append(rows, more...)
		if err != nil {
			return rows, err
		}
	}
	more, err := b.webhook(ctx)
	return append(rows, more...), err
}

// at measures one size.
func (b *scaleBench) at(ctx context.Context, s size) ([]row, error) {
	if err := b.crowd.fill(ctx, s.pods()); err != nil {
		return nil, err
	}
	lived, err := b.memory(ctx, fmt.Sprintf("%dx%d-lived", s.nodes, s.each))
	if err != nil {
		return nil, err
	}
	start, err := b.start(ctx, s)
	if err != nil {
		return nil, err
	}
	fresh, err := b.memory(ctx, fmt.Sprintf("%dx%d-fresh", s.nodes, s.each))
	if err != nil {
		return nil, err
	}
	filter, err := b.caller.measure(ctx, b.caller.filter)
	if err != nil {
		return nil, err
	}
	if err := b.profiled(ctx, s); err != nil {
		return nil, err
	}
	// After the others: the places that it keeps for its pods are lost to them.
	prioritize, err := b.caller.measure(ctx, b.caller.prioritize)
	if err != nil {
		return nil, err
	}
	asked, err := b.memory(ctx, fmt.Sprintf("%dx%d-asked", s.nodes, s.each))
	if err != nil {
		return nil, err
	}
	fmt.Printf("%v: start %v; Filter %v; Prioritize %v; memory %v; after the restart %v; after the calls %v\n", s, start, filter, prioritize, lived, fresh, asked)
	return b.rows(s, start, filter, prioritize, lived, fresh, asked), nil
}

// profiled makes Filter calls once more, to be profiled, as that costs time itself.
func (b *scaleBench) profiled(ctx context.Context, s size) error {
	if b.profiles == "" {
		return nil
	}
	written := b.profile(ctx, fmt.Sprintf("filter-%dx%d", s.nodes, s.each))
	defer written()
	for began := time.Now(); time.Since(began) < profileFor; {
		if _, err := b.caller.measure(ctx, b.caller.filter); err != nil {
			return err
		}
	}
	return nil
}

func (b *scaleBench) rows(s size, start time.Duration, filter, prioritize latencies, lived, fresh, asked memory) []row {
	growth := ""
	if b.first == 0 {
		b.first = filter.of(50)
	} else {
		growth = fmt.Sprintf("%.2f of %v", float64(filter.of(50))/float64(b.first), b.sizes[0])
	}
	beside := func(l latencies) string {
		return fmt.Sprintf("%s: as many bytes, no work; %s with kube-scheduler's own JSON", l.echoes.both(), l.whole.both())
	}
	rows := []row{
		{fmt.Sprintf("Filter, HTTPS and JSON, %v: p50 (p99) of %d calls", s, calls), filter.both(), beside(filter), growth, filterBar(s)},
		{"... Prioritize", prioritize.both(), beside(prioritize), "", ""},
	}
	each := ""
	if n := s.pods(); n > 0 {
		each = fmt.Sprintf("%.1f MiB live for 10,000 pods", float64(fresh.live-b.empty.live)/float64(n)*10_000/(1<<20))
	}
	return append(rows,
		row{
			"... resident memory of the extender: when the pods had come, after a restart, after the calls",
			fmt.Sprintf("%d, %d, %d MiB", lived.resident, fresh.resident, asked.resident), fmt.Sprintf("%d MiB without pods, %d MiB at most", b.empty.resident, max(lived.peak, asked.peak)), each, memoryBar(s),
		},
		row{"... start to the first true answer", start.Round(time.Millisecond).String(), "", "", startBar(s)},
	)
}

// The bars are for clusters of up to a size; none are set beyond.
func filterBar(s size) string {
	switch {
	case s.nodes <= 500:
		return "1 (3) ms"
	case s.nodes <= 2000:
		return "2 (5) ms"
	case s.nodes <= 5000 && s.pods() <= 50_000:
		return "4 (8) ms"
	default:
		return ""
	}
}

func memoryBar(s size) string {
	switch {
	case s.nodes <= 2000 && s.pods() <= 20_000:
		return "<= 150 MiB"
	case s.nodes <= 5000 && s.pods() <= 140_000:
		return "<= 700 MiB"
	default:
		return ""
	}
}

func startBar(s size) string {
	if s.nodes <= 500 && s.each <= 10 {
		return "< 3s"
	}
	return ""
}
