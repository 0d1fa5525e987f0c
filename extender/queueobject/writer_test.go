package queueobject

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
)

var resource = schema.GroupResource{Group: "tranche.dev", Resource: "queues"}

func TestNumbersAreWrittenOnceASecondAndTheLastCounts(t *testing.T) {
	run(t, func(k *kit) {
		k.report(reportOf("q", 0))
		k.WantCalls("get q", "patch q", "patch q status")
		for i := range int32(100) {
			k.report(reportOf("q", i+1))
			time.Sleep(50 * time.Millisecond)
		}
		k.settle()
		calls := k.Take()
		if n := len(calls); n < 4 || n > 6 || writes(calls) != n {
			t.Errorf("calls within 5 s of changing numbers: %q, want about 5 writes and no read", calls)
		}
		if got := k.queue("q").Status.PendingGangs; got != 100 {
			t.Errorf("%d pending gangs, want the last report's 100", got)
		}
		k.report(reportOf("q", 100))
		k.settle()
		k.WantCalls()
	}, made("q"))
}

func TestWhatDecidesWhetherPodsStartIsWrittenAtOnce(t *testing.T) {
	run(t, func(k *kit) {
		k.report(reportOf("q", 0))
		k.settle()
		k.Take()

		r := reportOf("q", 1)
		k.report(r)
		time.Sleep(10 * time.Millisecond) // written a moment ago, and waiting with numbers
		k.Take()
		r.Status.Open = false
		r.Status.PendingGangs = 2
		k.report(r)
		k.WantCalls("patch q status")
		if got := k.queue("q").Status; got.Open || got.PendingGangs != 2 {
			t.Errorf("status %+v", got)
		}

		time.Sleep(urgentInterval)
		r.Status.Conditions = []metav1.Condition{condition(v1alpha1.QueueReady, metav1.ConditionFalse, v1alpha1.ReasonStopped)}
		k.report(r)
		k.WantCalls("patch q status")

		time.Sleep(urgentInterval)
		r.InUse = false
		k.report(r)
		k.WantCalls("patch q")
		if got := k.queue("q").Finalizers; len(got) != 0 {
			t.Errorf("finalizers %v", got)
		}
	}, made("q"))
}

func TestAQueueThatOpensAndClosesIsNotWrittenEachTime(t *testing.T) {
	run(t, func(k *kit) {
		for i := range 200 {
			r := reportOf("q", 0)
			r.Status.Open = i%2 == 0
			k.report(r)
			time.Sleep(10 * time.Millisecond)
		}
		k.settle()
		if n := writes(k.Take()); n > 12 {
			t.Errorf("%d writes in 2 s of opening and closing, want at most one each 200 ms", n)
		}
		if k.queue("q").Status.Open {
			t.Error("open, but the last report said that it is closed")
		}
	}, made("q"))
}

func TestBusyQueuesDoNotFloodTheAPIServer(t *testing.T) {
	const queues = 200
	var objects []*v1alpha1.Queue
	for i := range queues {
		objects = append(objects, made(fmt.Sprint("q", i)))
	}
	run(t, func(k *kit) {
		for i := range queues {
			k.report(reportOf(fmt.Sprint("q", i), 0))
		}
		k.settle()
		k.Take()
		const seconds = 20
		for s := range int32(seconds) {
			for i := range queues {
				k.writer.ReportQueue(reportOf(fmt.Sprint("q", i), s+1))
			}
			time.Sleep(time.Second)
		}
		n := writes(k.Take())
		if most := numbersBurst + numbersQPS*seconds; n > most || n < most/2 {
			t.Errorf("%d writes in %d s of %d busy queues, want about %d", n, seconds, queues, most)
		}
		// One that closes does not wait for the others.
		r := reportOf("q7", 3)
		r.Status.Open = false
		k.report(r)
		if k.queue("q7").Status.Open {
			t.Error("a queue that closes waits for numbers of others")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		for i := range queues {
			if got := k.queue(fmt.Sprint("q", i)).Status.PendingGangs; i != 7 && got != seconds {
				t.Fatalf("queue %d: %d pending gangs, want the last report's", i, got)
			}
		}
	}, objects...)
}

func TestANewLeaderWritesNothingThatIsThere(t *testing.T) {
	then := metav1.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	queue := made("q", v1alpha1.QueueFinalizer)
	queue.Status = reportOf("q", 3).Status
	queue.Status.Conditions[0].LastTransitionTime = then
	run(t, func(k *kit) {
		r := reportOf("q", 3)
		r.Status.Conditions[0].LastTransitionTime = metav1.Now() // it does not know since when
		k.report(r)
		k.settle()
		k.WantCalls("get q")
		k.WantEvents()
		if got := k.queue("q").Status.Conditions[0].LastTransitionTime; !got.Equal(&then) {
			t.Errorf("ready since %v, want %v", got, then)
		}
	}, queue)
}

func TestOthersChangesOfTheObjectAreKept(t *testing.T) {
	run(t, func(k *kit) {
		k.report(reportOf("q", 0))
		k.settle()
		k.Take()
		// Somebody changes what our patches replace as a whole.
		queue := k.queue("q")
		queue.Finalizers = append(queue.Finalizers, "example.com/theirs")
		k.Must(k.API.Update(t.Context(), queue))
		queue.Status.Conditions = append(queue.Status.Conditions, metav1.Condition{Type: "Theirs", Status: metav1.ConditionTrue, Reason: "Theirs", LastTransitionTime: metav1.Now()})
		k.Must(k.API.Status().Update(t.Context(), queue))

		r := reportOf("q", 5)
		r.InUse, r.Status.Open = false, false
		k.report(r)
		k.WantCalls("patch q", "get q", "patch q", "patch q status")
		got := k.queue("q")
		var types []string
		for _, c := range got.Status.Conditions {
			types = append(types, c.Type)
		}
		if diff := cmp.Diff([]string{"Ready", "Theirs"}, types); diff != "" || got.Status.Open || got.Status.PendingGangs != 5 {
			t.Errorf("status %+v, conditions (-want +got):\n%s", got.Status, diff)
		}
		if diff := cmp.Diff([]string{"example.com/theirs"}, got.Finalizers); diff != "" {
			t.Errorf("finalizers (-want +got):\n%s", diff)
		}
	}, made("q"))
}

func TestFailuresAreTriedAgain(t *testing.T) {
	cases := map[string]error{
		"conflict":  apierrors.NewConflict(resource, "q", errors.New("changed")),
		"no leader": errors.New("etcd has no leader"),
		"forbidden": apierrors.NewForbidden(resource, "q", errors.New("no role yet")),
		"too many":  apierrors.NewTooManyRequests("slow down", 1),
	}
	for name, failure := range cases {
		for _, call := range []string{"get q", "patch q", "patch q status"} {
			t.Run(name+" at "+call, func(t *testing.T) {
				run(t, func(k *kit) {
					left := 3
					k.Answer = func(c string) error {
						if c == call && left > 0 {
							left--
							return failure
						}
						return nil
					}
					k.report(reportOf("q", 4))
					time.Sleep(time.Minute)
					synctest.Wait()
					if got := k.queue("q"); got.Status.PendingGangs != 4 || len(got.Finalizers) != 1 || left != 0 {
						t.Errorf("%d failures left, queue %+v", left, got)
					}
				}, made("q"))
			})
		}
	}
}

func TestFailuresBackOff(t *testing.T) {
	run(t, func(k *kit) {
		k.Answer = func(c string) error {
			if strings.HasPrefix(c, "patch") {
				return errors.New("down")
			}
			return nil
		}
		for i := range int32(600) { // reports go on
			r := reportOf("q", i)
			r.Status.Open = i%2 == 0
			k.report(r)
			time.Sleep(100 * time.Millisecond)
		}
		if n := writes(k.Take()); n > 12 {
			t.Errorf("%d tries within a minute, want few", n)
		}
	}, made("q"))
}

func TestEventsAreOncePerChange(t *testing.T) {
	run(t, func(k *kit) {
		tell := func(c ...metav1.Condition) {
			r := reportOf("q", 1)
			r.Status.Conditions = c
			k.report(r)
			k.settle()
		}
		ready := condition(v1alpha1.QueueReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
		stopped := condition(v1alpha1.QueueReady, metav1.ConditionFalse, v1alpha1.ReasonStopped)
		over := condition(v1alpha1.QueueOverLimit, metav1.ConditionTrue, v1alpha1.ReasonLimitExceeded)
		within := condition(v1alpha1.QueueOverLimit, metav1.ConditionFalse, v1alpha1.ReasonWithinLimit)
		tell(ready, within)
		k.WantEvents()
		tell(stopped, over)
		k.WantEvents("Warning Stopped because of Stopped", "Warning LimitExceeded because of LimitExceeded")
		changed := stopped
		changed.Message = "another number"
		tell(changed, over)
		k.WantEvents()
		tell(ready, within)
		k.WantEvents("Normal Ready because of Ready", "Normal WithinLimit because of WithinLimit")
		tell(condition(v1alpha1.QueueReady, metav1.ConditionFalse, v1alpha1.ReasonHasChildren), within)
		k.WantEvents("Warning HasChildren because of HasChildren")
		// A condition that is not reported any more is gone without a word.
		ready.Message = ""
		tell(ready)
		k.WantEvents("Normal Ready Ready is True")
		if got := k.queue("q").Status.Conditions; len(got) != 1 {
			t.Errorf("conditions %+v", got)
		}
	}, made("q"))
}

func TestEventsNameTheQueue(t *testing.T) {
	var got *corev1.ObjectReference
	recorder := recorderFunc(func(ref *corev1.ObjectReference) { got = ref })
	w := &Writer{recorder: recorder}
	stopped := &v1alpha1.QueueStatus{Conditions: []metav1.Condition{condition(v1alpha1.QueueReady, metav1.ConditionFalse, v1alpha1.ReasonStopped)}}
	w.tell(made("q"), &v1alpha1.QueueStatus{}, stopped)
	want := &corev1.ObjectReference{APIVersion: "tranche.dev/v1alpha1", Kind: "Queue", Name: "q", UID: "uid-q"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("reference (-want +got):\n%s", diff)
	}
}
