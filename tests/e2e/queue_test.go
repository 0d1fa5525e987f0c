package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	. "github.com/tranche-dev/tranche/tests/testkit"
)

// TestQueues has one node with eight GPUs, so that every number in it can be
// seen to be right.
func TestQueues(t *testing.T) {
	t.Parallel()
	y := newYard(t, "queues", 1)
	y.tend(t, "deserved", testDeservedIsTakenBackExactly)
	y.tend(t, "budget", testDisruptionBudgetsHold)
	y.tend(t, "limit", testLimitHoldsAndIsRaisedAtOnce)
	y.tend(t, "priority", testPriorityPreemptsWithinTheQueue)
	y.tend(t, "move", testQueueMovesBelowAnother)
	y.tend(t, "delete", testQueueOutlivesItsPods)
	y.tend(t, "unknown", testUnknownQueueIsWaitedFor)
	y.tend(t, "weight", testWeightsDivideWhatNobodyDeserves)
	y.tend(t, "selector", testNamespaceSelectorKeepsOthersOut)
	y.tend(t, "stop", testStoppedQueueHoldsAndDrains)
	y.tend(t, "admission", testAdmissionSaysWhoIsGated)
	y.tend(t, "expose", testExposeShowsTheHeadToAutoscalers)
	y.tend(t, "cpu", testPodsWithoutGPUsHaveQuotaToo)
	y.tend(t, "mixed", testGangWithMemberWithoutGPUStartsWhole)
	y.tend(t, "crash", testReclaimSurvivesAKilledExtender)
	y.tend(t, "arrivals", testRandomArrivalsComeToRest)
}

// replicas makes a Deployment that replaces evicted pods at once. A Job would
// take ten seconds and more.
func (p *plot) replicas(queue string, n int32, with ...func(*PodBuilder)) {
	p.Helper()
	b := p.pod(queue, queue)
	for _, f := range with {
		f(b)
	}
	pod := b.Label("app", queue).Obj()
	d := deployment(queue, n, corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels, Annotations: pod.Annotations}, Spec: pod.Spec,
	})
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": queue}}
	d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
	if _, err := p.client.AppsV1().Deployments(p.ns).Create(p.Context(), d, metav1.CreateOptions{}); err != nil {
		p.Fatal(err)
	}
}

// job makes a Job of n pods in a queue.
func (p *plot) job(queue, name string, n int32) {
	p.Helper()
	pod := p.pod(queue, name).Obj()
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	j := batchJob(name, corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels}, Spec: pod.Spec})
	j.Spec.Parallelism, j.Spec.Completions = new(n), new(n)
	if _, err := p.client.BatchV1().Jobs(p.ns).Create(p.Context(), j, metav1.CreateOptions{}); err != nil {
		p.Fatal(err)
	}
}

func (p *plot) endJob(name string) {
	p.Helper()
	err := p.client.BatchV1().Jobs(p.ns).Delete(p.Context(), name, metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)})
	if err != nil {
		p.Fatal(err)
	}
}

// Three teams deserve 4, 2 and 2 of 8 GPUs. Pods of the first always have the
// gate: in an Auto queue the first ones to be made anew after an eviction may come
// before the webhook hears that the queue has closed, and then wait without.
func threeTeams(p *plot) {
	p.queue("a", deserves("4"), admission(v1alpha1.AdmissionGated))
	p.queue("b", deserves("2"))
	p.queue("c", deserves("2"))
}

// One team borrows everything; the others get what they deserve as soon as they
// come, and not a pod more than that is evicted.
func testDeservedIsTakenBackExactly(p *plot) {
	threeTeams(p)
	p.replicas("a", 8)
	p.wantRunning(map[string]int{"a": 8})

	evictions := 0
	for round, n := range []int{2, 3} { // exactly what they deserve, and more
		b, c := fmt.Sprintf("b%d", round), fmt.Sprintf("c%d", round)
		began := time.Now()
		p.job("b", b, int32(n))
		p.job("c", c, int32(n))
		p.wantRunning(map[string]int{"a": 4, "b": 2, "c": 2})
		p.Logf("round %d: the others have what they deserve after %.1f s", round+1, time.Since(began).Seconds())
		evictions += 4
		p.wantEvicted("a", evictions)
		for _, pod := range p.diary.pods(queueIs(p.q("a")), waiting) {
			// The numbers are those of the moment when it was told.
			p.wantEvent(&pod, "GPUUnavailable", "The pod asks for 1 GPU; queue "+p.q("a")+" has ", " of its present fair share of 4 GPUs")
		}
		if got := p.diary.count(queueIs(p.q("a")), waiting, gated); got != 4 {
			p.Errorf("%d of the pods that came in the place of the evicted ones have the gate, want 4", got)
		}
		// Both take of what b leaves, as far as they have pods for it.
		p.endJob(b)
		p.wantRunning(map[string]int{"a": 8 - n, "b": 0, "c": n})
		p.endJob(c)
		p.wantRunning(map[string]int{"a": 8, "c": 0})
	}
	p.wantEvicted("a", evictions)
	p.wantEvicted("b", 0)
	p.wantEvicted("c", 0)
	for _, pod := range p.diary.pods(evicted) {
		p.wantEvent(&pod, "Reclaimed", "Evicted from queue "+p.q("a"), "is entitled")
	}
}

// Disruption budgets hold: whoever they protect is not even asked to go.
func testDisruptionBudgetsHold(p *plot) {
	p.queue("a", deserves("2"))
	p.queue("b", deserves("6"))
	p.submit("a", 4, func(b *PodBuilder) { b.Label("keep", "yes") })
	p.submit("a", 4)
	p.wantRunning(map[string]int{"a": 8})
	p.budget("keep", 4)

	p.submit("b", 4)
	p.wantRunning(map[string]int{"a": 4, "b": 4})
	p.wantEvicted("a", 4)
	last := p.submit("b", 1)[0]
	p.wantEvent(last, "GPUUnavailable", "The pod asks for 1 GPU; queue "+p.q("b")+" has 4 of its present fair share of 5 GPUs")
	steadily(p.T, "all that is left is protected", func(context.Context) error {
		return p.isRunning(map[string]int{"a": 4, "b": 4})
	})
	if n := p.diary.count(labelled("keep", "yes"), func(l *life) bool { return evicted(l) || !l.asked.IsZero() }); n > 0 {
		p.Errorf("%d pods were asked to go that a budget protects", n)
	}
}

// budget protects the pods labelled keep=yes, all n of them.
func (p *plot) budget(name string, n int32) {
	p.Helper()
	budgets := p.client.PolicyV1().PodDisruptionBudgets(p.ns)
	_, err := budgets.Create(p.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: new(intstr.FromInt32(n)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"keep": "yes"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		p.Fatal(err)
	}
	eventually(p.T, "the budget counts its pods", func(ctx context.Context) error {
		b, err := budgets.Get(ctx, name, metav1.GetOptions{})
		if err == nil && b.Status.CurrentHealthy != n {
			err = fmt.Errorf("%d are healthy", b.Status.CurrentHealthy)
		}
		return err
	})
}

// A limit is a ceiling for whoever comes, at once when it is raised, and evicts
// nobody when it is lowered.
func testLimitHoldsAndIsRaisedAtOnce(p *plot) {
	p.queue("a", limit("2"))
	pods := p.submit("a", 3)
	p.wantRunning(map[string]int{"a": 2})
	p.wantStatus("a", "counts 2 of 3", func(s *v1alpha1.QueueStatus) bool {
		return gpus(s.Allocated) == 2 && gpus(s.Demand) == 3 && gpus(s.EffectiveLimit) == 2 && s.PendingGangs == 1 && !s.Open
	})
	third := p.diary.pods(waiting)[0]
	p.wantEvent(&third, "QueueWaiting", "ueue "+p.q("a")+" uses 2 GPUs of its limit of 2 GPUs, and the pod asks for 1 GPU", "raise")

	asked := p.change("a", limit("3"))
	took := p.boundAt(&third).Sub(asked)
	p.Logf("limit raised → pod bound: %d ms", took.Milliseconds())
	if took > 10*time.Second { // a second by far on an idle machine; this one may be busy
		p.Errorf("the pod was bound %v after the limit was raised", took)
	}

	p.wantRunning(map[string]int{"a": len(pods)})
	p.change("a", limit("1"))
	p.wantCondition("a", v1alpha1.QueueOverLimit, metav1.ConditionTrue, v1alpha1.ReasonLimitExceeded)
	late := p.submit("a", 1)[0]
	p.wantEvent(late, "QueueWaiting", "uses 3 GPUs of its limit of 1 GPU")
	steadily(p.T, "nobody is evicted, nobody is admitted", func(context.Context) error {
		return p.isRunning(map[string]int{"a": 3})
	})
	p.wantEvicted("a", 0)
}

// A pod of high priority takes the place of one of its own queue, whoever else
// runs with less.
func testPriorityPreemptsWithinTheQueue(p *plot) {
	class, err := p.client.SchedulingV1().PriorityClasses().Create(p.Context(), &schedulingv1.PriorityClass{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "urgent-"}, Value: 1000,
	}, metav1.CreateOptions{})
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() {
		if err := p.client.SchedulingV1().PriorityClasses().Delete(context.WithoutCancel(p.Context()), class.Name, metav1.DeleteOptions{}); err != nil {
			p.Error(err)
		}
	})
	p.queue("a", deserves("4"))
	p.queue("b", deserves("4"))
	p.submit("a", 4)
	p.submit("b", 4)
	p.wantRunning(map[string]int{"a": 4, "b": 4})
	urgent := p.submit("a", 1, func(b *PodBuilder) {
		b.Spec(func(s *corev1.PodSpec) { s.PriorityClassName = class.Name })
	})[0]
	p.boundAt(urgent)
	p.wantRunning(map[string]int{"a": 4, "b": 4})
	p.wantEvicted("a", 1)
	p.wantEvicted("b", 0)
	victim := p.diary.pods(evicted)[0]
	p.wantEvent(&victim, "Preempted", urgent.Name, "higher priority (1000, against 0)")

	// The queue's own pods again: no pod of equal priority goes for another.
	same := p.submit("a", 1)[0]
	p.wantEvent(same, "GPUUnavailable", "fair share of 4 GPUs")
	p.wantEvicted("a", 1)
}
