package gangobject

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tranche-dev/tranche/extender/metrics"
	"github.com/tranche-dev/tranche/extender/objectwriter"
	"github.com/tranche-dev/tranche/extender/planner"
	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
)

// minInterval keeps a gang whose members change one by one from being written
// for each of them. A new phase is never kept waiting.
const minInterval = 200 * time.Millisecond

// Writer writes what is reported, while Run runs.
type Writer struct {
	client   client.Client
	recorder record.EventRecorder
	gauges   *prometheus.GaugeVec
	clock    clock.PassiveClock
	// objects knows of each gang with members which report was written last.
	objects *objectwriter.Writer[planner.GangReport, planner.GangReport]

	mu sync.Mutex
	// phases are what the gauges show.
	phases map[planner.GangKey]v1alpha1.GangPhase
}

// New returns a Writer whose queue fills until Run is called.
func New(c client.Client, recorder record.EventRecorder, m *metrics.Metrics, clk clock.PassiveClock) *Writer {
	w := &Writer{client: c, recorder: recorder, gauges: m.Gangs, clock: clk, phases: map[planner.GangKey]v1alpha1.GangPhase{}}
	w.objects = objectwriter.New(objectwriter.Options[planner.GangReport, planner.GangReport]{
		Kind: "Gang", Compare: compare, Write: w.write, NumbersInterval: minInterval, RetryNew: true, Requests: m.GangWrites, Clock: clk,
	})
	return w
}

// Report has a gang written soon. It does not block. The report's parts must
// not be changed afterwards.
func (w *Writer) Report(report planner.GangReport) {
	w.mu.Lock()
	defer w.mu.Unlock() // after both, so that the gauges show the last report
	w.gauge(&report)
	w.objects.Report(types.NamespacedName(report.Key), &report)
}

// Run writes until ctx ends.
func (w *Writer) Run(ctx context.Context) { w.objects.Run(ctx) }

// gauge counts gangs by phase. w.mu is held.
func (w *Writer) gauge(report *planner.GangReport) {
	phase, before := report.Status.Phase, w.phases[report.Key]
	if !report.Keep {
		phase = ""
	}
	if phase == before {
		return
	}
	if before != "" {
		w.gauges.WithLabelValues(string(before)).Dec()
	}
	if phase == "" {
		delete(w.phases, report.Key)
		return
	}
	w.phases[report.Key] = phase
	w.gauges.WithLabelValues(string(phase)).Inc()
}
