package gangobject

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"github.com/tranche-dev/tranche/extender/internal/fixture"
	"github.com/tranche-dev/tranche/extender/metrics"
	"github.com/tranche-dev/tranche/extender/planner"
	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/contract"
)

// kit is a Writer and the API server of the gang g of demo.
type kit struct {
	*fixture.WriterKit
	writer  *Writer
	metrics *metrics.Metrics
}

func run(t *testing.T, f func(*kit), gangs ...*v1alpha1.Gang) {
	synctest.Test(t, func(t *testing.T) {
		k := &kit{WriterKit: fixture.NewWriterKit(t, gangs...), metrics: metrics.New(prometheus.NewRegistry())}
		k.Unnamed = true
		k.writer = New(k.Client, k.Events, k.metrics, clock.RealClock{})
		k.While(k.writer.Run, func() { f(k) })
	})
}

// gang returns the object, nil if there is none.
func (k *kit) gang() *v1alpha1.Gang {
	k.Helper()
	gang := &v1alpha1.Gang{}
	if !k.Find("demo", "g", gang) {
		return nil
	}
	return gang
}

// takeWrites returns the calls that change something since the last time.
func (k *kit) takeWrites() []string {
	var writes []string
	for _, call := range k.Take() {
		if call != "get" {
			writes = append(writes, call)
		}
	}
	return writes
}

// report reports and waits until that has been dealt with.
func (k *kit) report(r planner.GangReport) {
	k.Helper()
	k.writer.Report(r)
	time.Sleep(time.Second)
	synctest.Wait()
}

func (k *kit) wantWrites(want ...string) {
	k.Helper()
	if diff := cmp.Diff(want, k.takeWrites()); diff != "" {
		k.Errorf("writes (-want +got):\n%s", diff)
	}
}

// reportOf is of the gang g of demo.
func reportOf(phase v1alpha1.GangPhase, members int32, reasons ...string) planner.GangReport {
	r := planner.GangReport{
		Key: planner.GangKey{Namespace: "demo", Name: "g"}, Keep: members > 0, MinCount: 4,
		Status: v1alpha1.GangStatus{Phase: phase, Members: members, Ready: fmt.Sprintf("0/%d", 4)},
	}
	for _, word := range reasons {
		r.Status.Reasons = append(r.Status.Reasons, v1alpha1.GangReason{Type: word, Message: "because of " + word})
	}
	return r
}

var owner = &metav1.OwnerReference{APIVersion: "batch/v1", Kind: "Job", Name: "job", UID: "uid-job", Controller: new(true), BlockOwnerDeletion: new(true)}

func managed(owners ...metav1.OwnerReference) *v1alpha1.Gang {
	gang := fixture.Gang("g", 4)
	gang.Labels = map[string]string{contract.ManagedByLabel: contract.ManagedByTranche}
	gang.OwnerReferences = owners
	return gang
}

func TestMakesAnObjectThatEndsWithItsOwner(t *testing.T) {
	run(t, func(k *kit) {
		r := reportOf(v1alpha1.GangPending, 3)
		r.Owner = owner
		k.report(r)
		k.wantWrites("create", "update status")
		got := k.gang()
		want := []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "job", UID: "uid-job", Controller: new(false), BlockOwnerDeletion: new(false)}}
		if diff := cmp.Diff(want, got.OwnerReferences); diff != "" {
			k.Errorf("owner (-want +got):\n%s", diff)
		}
		if got.Labels[contract.ManagedByLabel] != contract.ManagedByTranche || got.Spec.MinCount != 4 || got.Status.Members != 3 || got.Status.Phase != v1alpha1.GangPending {
			k.Errorf("gang %+v", got)
		}
		if !*owner.Controller {
			k.Error("the report was changed")
		}
		k.report(r)
		k.wantWrites()
		// Its owner collects it.
		k.report(reportOf(v1alpha1.GangFinished, 0))
		k.wantWrites("update status")
		if got := k.gang(); got == nil || got.Status.Members != 0 || got.Status.Phase != v1alpha1.GangFinished {
			k.Errorf("gang %+v", got)
		}
	})
}

func TestFollowsTheMembersOfManagedGangs(t *testing.T) {
	run(t, func(k *kit) {
		r := reportOf(v1alpha1.GangPending, 3)
		r.MinCount, r.Owner = 6, owner
		k.report(r)
		k.wantWrites("patch", "update status")
		got := k.gang()
		if got.Spec.MinCount != 6 || len(got.OwnerReferences) != 1 || got.OwnerReferences[0].UID != "uid-job" {
			k.Errorf("gang %+v", got)
		}
		// Members that disagree say neither.
		r.MinCount, r.Owner = 0, nil
		k.report(r)
		k.wantWrites()
	}, managed(metav1.OwnerReference{APIVersion: "batch/v1", Kind: "Job", Name: "job", UID: "uid-earlier"}))
}

func TestDeletesManagedGangsThatNobodyOwns(t *testing.T) {
	run(t, func(k *kit) {
		k.report(reportOf(v1alpha1.GangPending, 0))
		k.wantWrites("delete")
		if got := k.gang(); got != nil {
			k.Errorf("gang %+v", got)
		}
		k.report(reportOf(v1alpha1.GangPending, 0))
		k.wantWrites()
	}, managed())
}

func TestHandMadeGangsKeepTheirSpec(t *testing.T) {
	hand := fixture.Gang("g", 8)
	run(t, func(k *kit) {
		r := reportOf(v1alpha1.GangPending, 3)
		r.Owner = owner
		r.Status.Placement = []v1alpha1.GangPlacement{{Node: "a", Pods: []string{"p"}}}
		k.report(r)
		k.wantWrites("update status")
		r = reportOf("", 3)
		r.Keep = false
		k.report(r)
		k.wantWrites("update status")
		got := k.gang()
		if diff := cmp.Diff(hand.Spec, got.Spec); diff != "" || got.OwnerReferences != nil {
			k.Errorf("spec (-want +got):\n%s", diff)
		}
		if got.Status.Members != 0 || got.Status.Placement != nil || got.Status.Phase != v1alpha1.GangPending {
			k.Errorf("status %+v", got.Status)
		}
	}, hand)
}

func TestNoObjectWithoutASize(t *testing.T) {
	run(t, func(k *kit) {
		r := reportOf(v1alpha1.GangPending, 3, v1alpha1.ReasonMinCountUnknown)
		r.MinCount = 0
		k.report(r)
		k.wantWrites()
	})
}

func TestAnObjectMadeByHandMeanwhileIsRespected(t *testing.T) {
	run(t, func(k *kit) {
		created := false
		k.Answer = func(call string) error {
			if call == "create" {
				created = true
				return apierrors.NewAlreadyExists(schema.GroupResource{Resource: "gangs"}, "g")
			}
			if call == "get" && !created {
				return apierrors.NewNotFound(schema.GroupResource{Resource: "gangs"}, "g")
			}
			return nil
		}
		k.report(reportOf(v1alpha1.GangPending, 3))
		k.wantWrites("create", "update status")
		if got := k.gang(); got.Spec.MinCount != 8 || got.Status.Members != 3 {
			k.Errorf("gang %+v", got)
		}
	}, fixture.Gang("g", 8))
}

func TestWritesAreTriedAgain(t *testing.T) {
	gr := schema.GroupResource{Group: "tranche.dev", Resource: "gangs"}
	cases := map[string]error{
		"conflict":        apierrors.NewConflict(gr, "g", errors.New("changed")),
		"no leader":       errors.New("etcd has no leader"),
		"forbidden":       apierrors.NewForbidden(gr, "g", errors.New("no role yet")),
		"no such kind":    apierrors.NewGenericServerResponse(404, "create", gr, "", "", 0, true),
		"gone after read": apierrors.NewNotFound(gr, "g"),
	}
	for name, failure := range cases {
		for _, call := range []string{"create", "update status"} {
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
					k.writer.Report(reportOf(v1alpha1.GangPending, 3))
					time.Sleep(time.Minute)
					synctest.Wait()
					if got := k.gang(); got == nil || got.Status.Members != 3 {
						k.Errorf("gang %+v", got)
					}
					k.Take()
					time.Sleep(time.Minute)
					if again := k.Take(); left != 0 || again != nil {
						k.Errorf("%d failures left, then %q", left, again)
					}
				})
			})
		}
	}
}

func TestANewReportDoesNotWaitForARetry(t *testing.T) {
	run(t, func(k *kit) {
		k.Answer = func(string) error { return errors.New("down") }
		k.writer.Report(reportOf(v1alpha1.GangPending, 3))
		time.Sleep(15 * time.Second) // the next try is in 10 s
		synctest.Wait()
		k.Answer = nil
		k.writer.Report(reportOf(v1alpha1.GangHeld, 3))
		synctest.Wait()
		if got := k.gang(); got == nil || got.Status.Phase != v1alpha1.GangHeld {
			k.Errorf("gang %+v", got)
		}
	})
}

func TestNamespacesThatEndAreLeftAlone(t *testing.T) {
	gr := schema.GroupResource{Group: "tranche.dev", Resource: "gangs"}
	ending := apierrors.NewForbidden(gr, "g", errors.New("is being terminated"))
	ending.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	cases := map[string]error{
		"terminating":           ending,
		"gone":                  apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "demo"),
		"a name that is no one": apierrors.NewInvalid(schema.GroupKind{Kind: "Gang"}, "g", nil),
	}
	for name, failure := range cases {
		t.Run(name, func(t *testing.T) {
			run(t, func(k *kit) {
				k.Answer = func(call string) error {
					if call == "create" {
						return failure
					}
					return nil
				}
				k.writer.Report(reportOf(v1alpha1.GangPending, 3))
				time.Sleep(time.Hour)
				k.wantWrites("create")
			})
		})
	}
}

func TestManyReportsAreFewWrites(t *testing.T) {
	run(t, func(k *kit) {
		for i := range int32(100) {
			k.writer.Report(reportOf(v1alpha1.GangPending, i+1))
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(time.Second)
		if n := len(k.takeWrites()); n > 8 {
			k.Errorf("%d writes in a second of the same phase, want about one each 200 ms", n)
		}
		if got := k.gang().Status.Members; got != 100 {
			k.Errorf("%d members, want the last report's 100", got)
		}
		// A new phase does not wait.
		k.writer.Report(reportOf(v1alpha1.GangPending, 99))
		synctest.Wait()
		k.writer.Report(reportOf(v1alpha1.GangHeld, 99))
		synctest.Wait()
		if got := k.gang().Status.Phase; got != v1alpha1.GangHeld {
			k.Errorf("phase %q", got)
		}
	})
}

func TestEventsAreOncePerChange(t *testing.T) {
	run(t, func(k *kit) {
		k.report(reportOf(v1alpha1.GangPending, 1, v1alpha1.ReasonWaitingForMembers))
		k.WantEvents("Normal WaitingForMembers because of WaitingForMembers")
		k.report(reportOf(v1alpha1.GangPending, 2, v1alpha1.ReasonWaitingForMembers))
		k.WantEvents()
		k.report(reportOf(v1alpha1.GangPending, 4, v1alpha1.ReasonNoPlace, v1alpha1.ReasonForeignGate))
		k.WantEvents("Warning NoPlace because of NoPlace")
		held := reportOf(v1alpha1.GangHeld, 4)
		held.Status.Held = 4
		held.Status.Placement = []v1alpha1.GangPlacement{{Node: "a", Pods: []string{"p"}}}
		k.report(held)
		k.WantEvents("Normal Held places on 1 node(s) are held for 4 member(s)")
		bound := reportOf(v1alpha1.GangBound, 4)
		bound.Status.Bound = 4
		bound.Status.Conditions = []metav1.Condition{{Type: v1alpha1.GangStarted, Status: metav1.ConditionTrue, Reason: "AllWereBound"}}
		k.report(bound)
		k.WantEvents("Normal Started 4 members are bound to 0 nodes")
		running := bound
		running.Status.Phase = v1alpha1.GangRunning
		k.report(running)
		k.WantEvents()
		lost := bound
		lost.Status.Phase = v1alpha1.GangPending
		lost.Status.Reasons = []v1alpha1.GangReason{{Type: v1alpha1.ReasonBelowMinCount, Message: "lost one"}}
		k.report(lost)
		k.WantEvents("Warning BelowMinCount lost one")
		k.report(running)
		k.WantEvents()
		finished := running
		finished.Status.Phase = v1alpha1.GangFinished
		k.report(finished)
		k.WantEvents("Normal Finished No member is left that will run")
	})
}

func TestGangsAreCountedByPhase(t *testing.T) {
	run(t, func(k *kit) {
		want := func(pending, held float64) {
			k.Helper()
			p, h := testutil.ToFloat64(k.metrics.Gangs.WithLabelValues("Pending")), testutil.ToFloat64(k.metrics.Gangs.WithLabelValues("Held"))
			if p != pending || h != held {
				k.Errorf("%v pending, %v held, want %v and %v", p, h, pending, held)
			}
		}
		k.report(reportOf(v1alpha1.GangPending, 1))
		k.report(reportOf(v1alpha1.GangPending, 2))
		want(1, 0)
		k.report(reportOf(v1alpha1.GangHeld, 2))
		want(0, 1)
		k.report(reportOf(v1alpha1.GangHeld, 0))
		want(0, 0)
		if k.writer.objects.Len()+len(k.writer.phases) != 0 {
			k.Error("a gang without members is remembered")
		}
	})
}

func TestStatusIsCutToWhatTheAPITakes(t *testing.T) {
	r := reportOf(v1alpha1.GangPending, 4)
	long := strings.Repeat("ö", v1alpha1.MaxGangReasonMessage+1)
	for i := range v1alpha1.MaxGangReasons + 3 {
		r.Status.Reasons = append(r.Status.Reasons, v1alpha1.GangReason{Type: fmt.Sprint("R", i/2), Message: long}, v1alpha1.GangReason{Type: fmt.Sprint("S", i), Message: "m"})
	}
	for i := range v1alpha1.MaxGangPlacements + 3 {
		r.Status.Placement = append(r.Status.Placement, v1alpha1.GangPlacement{Node: fmt.Sprint("n", i), Pods: make([]string, v1alpha1.MaxGangPlacementPods+3)})
	}
	s := statusOf(&v1alpha1.GangStatus{}, &r, fixture.Gang("g", 4), time.Unix(1, 0))
	if len(s.Reasons) != v1alpha1.MaxGangReasons || len(s.Placement) != v1alpha1.MaxGangPlacements || len(s.Placement[0].Pods) != v1alpha1.MaxGangPlacementPods {
		t.Errorf("%d reasons, %d nodes, %d pods", len(s.Reasons), len(s.Placement), len(s.Placement[0].Pods))
	}
	types := map[string]bool{}
	for _, reason := range s.Reasons {
		if types[reason.Type] {
			t.Errorf("reason %s twice", reason.Type)
		}
		types[reason.Type] = true
	}
	if got := []rune(s.Reasons[0].Message); len(got) != v1alpha1.MaxGangReasonMessage || got[len(got)-1] != '…' {
		t.Errorf("message of %d characters", len(got))
	}
	if len([]rune(r.Status.Reasons[0].Message)) != v1alpha1.MaxGangReasonMessage+1 || len(r.Status.Placement[0].Pods) != v1alpha1.MaxGangPlacementPods+3 {
		t.Error("the report was changed")
	}
}

func TestConditionsKeepTheirTimes(t *testing.T) {
	early, now := time.Unix(100, 0), time.Unix(200, 5)
	old := []metav1.Condition{
		{Type: "Foreign", Status: metav1.ConditionTrue, Reason: "X", LastTransitionTime: metav1.NewTime(early)},
		{Type: "A", Status: metav1.ConditionTrue, Reason: "X", LastTransitionTime: metav1.NewTime(early), ObservedGeneration: 3},
		{Type: "B", Status: metav1.ConditionTrue, Reason: "X", LastTransitionTime: metav1.NewTime(early), ObservedGeneration: 3},
	}
	got := conditionsOf(old, []metav1.Condition{
		{Type: "A", Status: metav1.ConditionTrue, Reason: "Y", LastTransitionTime: metav1.NewTime(now)},
		{Type: "B", Status: metav1.ConditionFalse},
	}, 4, now)
	want := []metav1.Condition{
		old[0],
		{Type: "A", Status: metav1.ConditionTrue, Reason: "Y", LastTransitionTime: metav1.NewTime(early), ObservedGeneration: 4},
		{Type: "B", Status: metav1.ConditionFalse, Reason: "B", LastTransitionTime: metav1.NewTime(time.Unix(200, 0)), ObservedGeneration: 4},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("conditions (-want +got):\n%s", diff)
	}
	if old[1].Reason != "X" {
		t.Error("the old conditions were changed")
	}
}
