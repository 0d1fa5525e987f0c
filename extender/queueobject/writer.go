package queueobject

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tranche-dev/tranche/extender/objectwriter"
	"github.com/tranche-dev/tranche/extender/planner"
	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
)

const (
	// ClientQPS and ClientBurst are the limit that the client of a Writer
	// should have: urgent writes and numbers together.
	ClientQPS   = 100
	ClientBurst = 200

	// numbersInterval is between two writes of a queue that change only numbers.
	numbersInterval = time.Second
	// numbersQPS bounds the writes of numbers of all queues together: of 1,000
	// busy queues each is written every 40 s, of 25 every second.
	numbersQPS   = 25
	numbersBurst = 50
	// urgentInterval is between two urgent writes of one queue: the first is
	// made at once, but one that opens and closes for each pod is not written
	// for each of them.
	urgentInterval = 200 * time.Millisecond
)

// Writer writes what is reported, while Run runs. A change of what decides
// whether pods start, or whether the queue may vanish, is written at once, at
// most every urgentInterval; anything else at most every numbersInterval, and of
// all queues together at most numbersQPS times per second.
type Writer struct {
	client   client.Client
	recorder record.EventRecorder
	clock    clock.PassiveClock
	// objects knows each queue as it was last read or written.
	objects *objectwriter.Writer[planner.QueueReport, v1alpha1.Queue]
}

// New returns a Writer whose queue fills until Run is called. writes has the
// labels verb and result.
func New(c client.Client, recorder record.EventRecorder, writes *prometheus.CounterVec, clk clock.PassiveClock) *Writer {
	w := &Writer{client: c, recorder: recorder, clock: clk}
	w.objects = objectwriter.New(objectwriter.Options[planner.QueueReport, v1alpha1.Queue]{
		Kind: "Queue", Compare: compare, Write: w.write, UrgentInterval: urgentInterval,
		NumbersInterval: numbersInterval, NumbersLimit: rate.NewLimiter(numbersQPS, numbersBurst), Requests: writes, Clock: clk,
	})
	return w
}

// keyOf names a queue.
func keyOf(name string) types.NamespacedName { return types.NamespacedName{Name: name} }

// ReportQueue has a queue written soon. It does not block. The report's parts must
// not be changed afterwards.
func (w *Writer) ReportQueue(report planner.QueueReport) {
	w.objects.Report(keyOf(report.Name), &report)
}

// ObserveQueue has a queue looked at again whose finalizer is not what was last
// written, as when somebody has replaced the object.
func (w *Writer) ObserveQueue(_ context.Context, queue *view.Queue) {
	w.objects.Doubt(keyOf(queue.Name), func(seen *v1alpha1.Queue) bool {
		return seen.UID == queue.UID && finalized(seen) == queue.Finalized && (seen.DeletionTimestamp != nil) == queue.Deleting
	})
}

// ForgetQueue tells that a queue is gone, which is to be told before the planner
// hears of it.
func (w *Writer) ForgetQueue(_ context.Context, name string) { w.objects.Forget(keyOf(name)) }

// Run writes until ctx ends.
func (w *Writer) Run(ctx context.Context) { w.objects.Run(ctx) }
