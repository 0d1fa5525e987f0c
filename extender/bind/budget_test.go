package bind

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/extender/planner"
)

// budget is a PodDisruptionBudget for pods with a label app.
func budget(name, app string, allowed int32, set ...func(b *policyv1.PodDisruptionBudget)) *policyv1.PodDisruptionBudget {
	b := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: name},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
		Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed},
	}
	for _, f := range set {
		f(b)
	}
	return b
}

// running is a pod of an app that runs and is ready.
func running(name, app string, set ...func(pod *corev1.Pod)) *corev1.Pod {
	pod := gated(name)
	pod.Labels = map[string]string{"app": app}
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	for _, f := range set {
		f(pod)
	}
	return pod
}

func TestVictimsOfOneBudgetAreCounted(t *testing.T) {
	web := []*corev1.Pod{running("p", "web"), running("q", "web")}
	deleting := func(pod *corev1.Pod) { pod.DeletionTimestamp = &metav1.Time{Time: time.Now()} }
	starting := func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodPending }
	unready := func(pod *corev1.Pod) { pod.Status.Conditions = nil }
	always := func(b *policyv1.PodDisruptionBudget) {
		b.Spec.UnhealthyPodEvictionPolicy = new(policyv1.AlwaysAllow)
	}
	cases := map[string]struct {
		budgets  []*policyv1.PodDisruptionBudget
		pods     []*corev1.Pod
		wantWhy  string
		wantKept []types.UID
	}{
		"it allows both":       {[]*policyv1.PodDisruptionBudget{budget("x", "web", 2)}, web, "", nil},
		"it allows one of two": {[]*policyv1.PodDisruptionBudget{budget("x", "web", 1)}, web, "PodDisruptionBudget demo/x allows 1 more disruption, 2 are needed", []types.UID{"uid-q"}},
		"it allows none":       {[]*policyv1.PodDisruptionBudget{budget("x", "web", 0)}, web[:1], "PodDisruptionBudget demo/x allows 0 more disruptions, 1 is needed", []types.UID{"uid-p"}},
		"it is for others":     {[]*policyv1.PodDisruptionBudget{budget("x", "db", 0)}, web, "", nil},
		"one is of it":         {[]*policyv1.PodDisruptionBudget{budget("x", "web", 1)}, []*corev1.Pod{running("p", "web"), running("q", "db")}, "", nil},
		"it selects nobody":    {[]*policyv1.PodDisruptionBudget{budget("x", "", 0, func(b *policyv1.PodDisruptionBudget) { b.Spec.Selector = nil })}, web, "", nil},
		"it selects everybody": {
			[]*policyv1.PodDisruptionBudget{budget("x", "", 1, func(b *policyv1.PodDisruptionBudget) { b.Spec.Selector = &metav1.LabelSelector{} })},
			[]*corev1.Pod{running("p", "web"), running("q", "db")},
			"PodDisruptionBudget demo/x allows 1 more disruption, 2 are needed",
			[]types.UID{"uid-q"},
		},
		"one is ending":                            {[]*policyv1.PodDisruptionBudget{budget("x", "web", 1)}, []*corev1.Pod{running("p", "web"), running("q", "web", deleting)}, "", nil},
		"one does not run yet":                     {[]*policyv1.PodDisruptionBudget{budget("x", "web", 1)}, []*corev1.Pod{running("p", "web"), running("q", "web", starting)}, "", nil},
		"one is not ready":                         {[]*policyv1.PodDisruptionBudget{budget("x", "web", 1)}, []*corev1.Pod{running("p", "web"), running("q", "web", unready)}, "PodDisruptionBudget demo/x allows 1 more disruption, 2 are needed", []types.UID{"uid-q"}},
		"one is not ready, which it does not heed": {[]*policyv1.PodDisruptionBudget{budget("x", "web", 1, always)}, []*corev1.Pod{running("p", "web"), running("q", "web", unready)}, "", nil},
		"one is in two budgets": {
			[]*policyv1.PodDisruptionBudget{budget("x", "web", 2), budget("y", "web", 2)},
			web,
			"pod demo/p is in several PodDisruptionBudgets (demo/x, demo/y), and then the API server evicts it for nobody",
			[]types.UID{"uid-p"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			run(t, func(k *kit) {
				var together []planner.Eviction
				var want []string
				for _, pod := range c.pods {
					k.exists(pod.DeepCopy())
					together = append(together, planner.Eviction{Pod: ref(pod), Reason: "R", Message: "m"})
					want = append(want, "may evict "+pod.Name, "evict "+pod.Name)
				}
				for _, b := range c.budgets {
					if err := k.client.Tracker().Add(b); err != nil {
						t.Fatal(err)
					}
				}
				calls := k.listen()
				heard := &refusals{}
				p := &party{}
				for _, one := range together {
					p.pods = append(p.pods, one.Pod)
				}
				allowed := k.effects.allowed(k.Context(), p, heard)
				if allowed != (c.wantWhy == "") || heard.why != c.wantWhy {
					t.Errorf("allowed %t, told %q, want %q", allowed, heard.why, c.wantWhy)
				}
				if diff := cmp.Diff(c.wantKept, heard.uids); diff != "" {
					t.Errorf("kept (-want +got):\n%s", diff)
				}
				calls.take()
				k.effects.EvictTogether(together)
				time.Sleep(time.Minute)
				got := calls.take()
				if c.wantWhy != "" {
					want = nil
				}
				slices.Sort(got)
				slices.Sort(want)
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("calls (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// refusals notes what is told of them.
type refusals struct {
	truth
	why  string
	uids []types.UID
}

func (r *refusals) EvictionRefused(_ context.Context, why string, uids ...types.UID) {
	r.why, r.uids = why, append(r.uids, uids...)
}
