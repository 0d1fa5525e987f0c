package queueobject

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/tranche-dev/tranche/extender/internal/fixture"
	"github.com/tranche-dev/tranche/extender/planner"
	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
)

// kit is a Writer and its API server.
type kit struct {
	*fixture.WriterKit
	writer *Writer
}

func run(t *testing.T, f func(*kit), queues ...*v1alpha1.Queue) {
	synctest.Test(t, func(t *testing.T) {
		k := &kit{WriterKit: fixture.NewWriterKit(t, queues...)}
		writes := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "writes_total", Help: "Writes."}, []string{"verb", "result"})
		k.writer = New(k.Client, k.Events, writes, clock.RealClock{})
		k.While(k.writer.Run, func() { f(k) })
	})
}

// queue returns the object, nil if there is none.
func (k *kit) queue(name string) *v1alpha1.Queue {
	k.Helper()
	queue := &v1alpha1.Queue{}
	if !k.Find("", name, queue) {
		return nil
	}
	return queue
}

// report reports and waits until all that is due at once is done.
func (k *kit) report(r planner.QueueReport) {
	k.Helper()
	k.writer.ReportQueue(r)
	synctest.Wait()
}

// settle lets all intervals pass.
func (k *kit) settle() {
	time.Sleep(2 * time.Second)
	synctest.Wait()
}

// writes counts the calls that change something.
func writes(calls []string) int {
	return len(slices.DeleteFunc(slices.Clone(calls), func(c string) bool { return strings.HasPrefix(c, "get ") }))
}

// made returns a Queue as a person writes it.
func made(name string, finalizers ...string) *v1alpha1.Queue {
	return &v1alpha1.Queue{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Generation: 1, Finalizers: finalizers}}
}

// reportOf is of a queue in use that is ready and has so many pending gangs.
func reportOf(name string, pending int32) planner.QueueReport {
	return planner.QueueReport{Name: name, InUse: true, Status: v1alpha1.QueueStatus{
		Open: true, PendingGangs: pending, Allocated: v1alpha1.QueueUsage{GPU: "3.5"},
		Conditions: []metav1.Condition{condition(v1alpha1.QueueReady, metav1.ConditionTrue, v1alpha1.ReasonReady)},
	}}
}

func condition(kind string, status metav1.ConditionStatus, reason string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: "because of " + reason, ObservedGeneration: 1}
}
