package bind

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"github.com/tranche-dev/tranche/extender/internal/fixture"
	"github.com/tranche-dev/tranche/extender/planner"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
)

// calls writes down the patches and evictions of pods, and answers them.
type calls struct {
	mu   sync.Mutex
	made []string
	// answer is asked about a call, such as "patch p/status"; handled calls are
	// not carried out.
	answer func(call string) error
}

func (k *kit) listen() *calls {
	c := &calls{}
	ask := func(call string) (bool, runtime.Object, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.made = append(c.made, call)
		if c.answer != nil {
			if err := c.answer(call); err != nil {
				return true, nil, err
			}
		}
		return false, nil, nil
	}
	k.client.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		patch := action.(clienttesting.PatchAction)
		call := "patch " + patch.GetName()
		if sub := action.GetSubresource(); sub != "" {
			call += "/" + sub
		}
		var body struct{ Metadata struct{ UID string } }
		if err := json.Unmarshal(patch.GetPatch(), &body); err != nil || body.Metadata.UID != "uid-"+patch.GetName() {
			k.Errorf("patch without the UID: %s", patch.GetPatch())
		}
		return ask(call)
	})
	k.client.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.GetSubresource() != "eviction" {
			return false, nil, nil
		}
		eviction := action.(clienttesting.CreateAction).GetObject().(*policyv1.Eviction)
		if p := eviction.DeleteOptions.Preconditions; p == nil || string(*p.UID) != "uid-"+eviction.Name {
			k.Errorf("eviction without the UID: %+v", eviction)
		}
		verb := "evict "
		if len(eviction.DeleteOptions.DryRun) > 0 {
			verb = "may evict "
		}
		_, _, err := ask(verb + eviction.Name)
		return true, nil, err
	})
	return c
}

func (c *calls) take() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	made := c.made
	c.made = nil
	return made
}

func gated(name string, gates ...string) *corev1.Pod {
	pod := fixture.Pod(name, "50")
	for _, g := range gates {
		pod.Spec.SchedulingGates = append(pod.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: g})
	}
	return pod
}

func ref(pod *corev1.Pod) ledger.Pod {
	return ledger.Pod{UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name}
}

func (k *kit) wantCount(c *prometheus.CounterVec, n float64, labels ...string) {
	k.Helper()
	if got := testutil.ToFloat64(c.WithLabelValues(labels...)); got != n {
		k.Errorf("%v counted for %q, want %v", got, labels, n)
	}
}

func (k *kit) wantCalls(c *calls, want ...string) {
	k.Helper()
	if diff := cmp.Diff(want, c.take()); diff != "" {
		k.Errorf("calls (-want +got):\n%s", diff)
	}
}

var (
	errLeader = errors.New("etcd has no leader")
	podKind   = schema.GroupResource{Resource: "pods"}
)

func TestAdmissionNominatesThenLiftsOurGateOnly(t *testing.T) {
	run(t, func(k *kit) {
		pod := gated("p", "example.com/quota", contract.AdmissionGate, "example.com/volume")
		k.exists(pod)
		c := k.listen()
		k.effects.Admit([]planner.Admission{{Pod: ref(pod), Node: "a", Gated: true, Version: 3}})
		synctest.Wait()
		k.wantCalls(c, "patch p/status", "patch p")
		stored := k.stored("p")
		want := []corev1.PodSchedulingGate{{Name: "example.com/quota"}, {Name: "example.com/volume"}}
		if diff := cmp.Diff(want, stored.Spec.SchedulingGates); diff != "" || stored.Status.NominatedNodeName != "a" {
			k.Errorf("nominated to %q, gates (-want +got):\n%s", stored.Status.NominatedNodeName, diff)
		}
		k.wantCount(k.metrics.Admissions, 1, "ok")
		k.wantCount(k.metrics.Nominations, 1, "ok")
		k.effects.Withdraw(ref(pod))
		synctest.Wait()
		k.wantCalls(c, "patch p/status")
		if got := k.stored("p").Status.NominatedNodeName; got != "" {
			k.Errorf("still nominated to %q", got)
		}
	})
}

func TestAdmissionWithoutGateOrNode(t *testing.T) {
	run(t, func(k *kit) {
		pod := gated("p")
		k.exists(pod)
		c := k.listen()
		k.effects.Admit([]planner.Admission{{Pod: ref(pod), Version: 3}})
		synctest.Wait()
		k.wantCalls(c, "patch p")
		if got := k.stored("p").Annotations[contract.RetryAnnotation]; got != "3-r1" {
			k.Errorf("annotation %q", got)
		}
	})
}

func TestAdmissionOutlivesFailures(t *testing.T) {
	conflict := apierrors.NewConflict(podKind, "p", errors.New("changed all the time"))
	policy := apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "p", nil)
	cases := map[string]struct {
		call string
		err  error
		// exists says that the pod is still there, or is not.
		exists                 bool
		times                  int
		wantAdmitted, wantGone float64
		want                   []string
	}{
		"nomination is forbidden": {"patch p/status", apierrors.NewForbidden(podKind, "p", errLeader), true, 1, 1, 0, []string{"patch p/status", "patch p"}},
		"nomination conflicts":    {"patch p/status", conflict, true, 1, 1, 0, []string{"patch p/status", "patch p"}},
		"nomination finds no pod": {"patch p/status", apierrors.NewNotFound(podKind, "p"), false, 1, 0, 1, []string{"patch p/status"}},
		"nomination finds another pod": {
			"patch p/status", conflict, false, 1, 0, 1, []string{"patch p/status"},
		},
		"gate, for a while": {"patch p", errLeader, true, 2, 1, 0, []string{"patch p/status", "patch p", "patch p", "patch p"}},
		"gate conflicts":    {"patch p", conflict, true, 1, 1, 0, []string{"patch p/status", "patch p", "patch p"}},
		"gate is refused by a policy, for a while": {
			"patch p", policy, true, 1, 1, 0, []string{"patch p/status", "patch p", "patch p"},
		},
		"gate of a pod that is gone": {"patch p", conflict, false, 1, 0, 1, []string{"patch p"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			run(t, func(k *kit) {
				pod := gated("p", contract.AdmissionGate)
				c := k.listen()
				if tc.exists {
					k.exists(pod)
				} else {
					other := pod.DeepCopy()
					other.UID = "another"
					k.exists(other)
				}
				left := tc.times
				c.answer = func(call string) error {
					if call == tc.call && left > 0 {
						left--
						return tc.err
					}
					return nil
				}
				node := "a"
				if tc.want[0] == "patch p" {
					node = ""
				}
				k.effects.Admit([]planner.Admission{{Pod: ref(pod), Node: node, Gated: true}})
				time.Sleep(time.Minute)
				synctest.Wait()
				k.wantCalls(c, tc.want...)
				k.wantCount(k.metrics.Admissions, tc.wantAdmitted, "ok")
				k.wantCount(k.metrics.Admissions, tc.wantGone, "gone")
				if len(k.effects.intents) != 0 {
					k.Error("something is still wanted")
				}
			})
		})
	}
}

func TestTheLastWishCounts(t *testing.T) {
	broken := func(k *kit) (*corev1.Pod, *calls) {
		pod := gated("p", contract.AdmissionGate)
		k.exists(pod)
		c := k.listen()
		c.answer = func(call string) error {
			if call == "patch p" {
				return errLeader
			}
			return nil
		}
		k.effects.Admit([]planner.Admission{{Pod: ref(pod), Node: "a", Gated: true}})
		time.Sleep(10 * time.Second)
		c.take()
		c.mu.Lock()
		c.answer = nil
		c.mu.Unlock()
		return pod, c
	}
	t.Run("withdrawn", func(t *testing.T) {
		run(t, func(k *kit) {
			pod, c := broken(k)
			k.effects.Withdraw(ref(pod))
			time.Sleep(time.Minute)
			k.wantCalls(c, "patch p/status")
			stored := k.stored("p")
			if stored.Status.NominatedNodeName != "" || len(stored.Spec.SchedulingGates) != 1 {
				k.Errorf("pod %+v", stored)
			}
			k.wantCount(k.metrics.Admissions, 1, "withdrawn")
			k.wantCount(k.metrics.Admissions, 0, "ok")
		})
	})
	t.Run("placed elsewhere", func(t *testing.T) {
		run(t, func(k *kit) {
			pod, c := broken(k)
			k.effects.Admit([]planner.Admission{{Pod: ref(pod), Node: "b", Gated: true}})
			time.Sleep(time.Minute)
			k.wantCalls(c, "patch p/status", "patch p")
			if got := k.stored("p").Status.NominatedNodeName; got != "b" {
				k.Errorf("nominated to %q", got)
			}
			k.wantCount(k.metrics.Admissions, 1, "ok")
		})
	})
	t.Run("withdrawn while it is nominated", func(t *testing.T) {
		run(t, func(k *kit) {
			pod := gated("p", contract.AdmissionGate)
			k.exists(pod)
			c := k.listen()
			first := true
			c.answer = func(string) error {
				if first {
					first = false
					k.effects.Withdraw(ref(pod))
				}
				return nil
			}
			k.effects.Admit([]planner.Admission{{Pod: ref(pod), Node: "a", Gated: true}})
			time.Sleep(time.Minute)
			k.wantCalls(c, "patch p/status", "patch p/status")
			if got := k.stored("p"); len(got.Spec.SchedulingGates) != 1 || got.Status.NominatedNodeName != "" {
				k.Errorf("pod %+v", got)
			}
		})
	})
}

func TestAdmissionsAreParallelAndLimited(t *testing.T) {
	run(t, func(k *kit) {
		const pods = 300
		var admissions []planner.Admission
		for i := range pods {
			pod := gated(fmt.Sprint("p", i), contract.AdmissionGate)
			k.exists(pod)
			admissions = append(admissions, planner.Admission{Pod: ref(pod), Node: "a", Gated: true})
		}
		c := k.listen()
		began := time.Now()
		k.effects.Admit(admissions)
		time.Sleep(time.Second)
		if n := len(c.take()); n < 250 || n > 301 {
			k.Errorf("%d requests in the first second, want a burst of 200 and 100 more", n)
		}
		for testutil.ToFloat64(k.metrics.Admissions.WithLabelValues("ok")) < pods {
			time.Sleep(100 * time.Millisecond)
			if time.Since(began) > time.Minute {
				k.Fatal("not all admitted")
			}
		}
		// 600 requests, 200 of them at once.
		if took := time.Since(began); took > 5*time.Second {
			k.Errorf("took %v", took)
		}
	})
}

func TestEvictionHeedsBudgetsAndTellsOnce(t *testing.T) {
	run(t, func(k *kit) {
		pod := gated("p")
		k.exists(pod)
		c := k.listen()
		left := 3
		c.answer = func(string) error {
			if left > 0 {
				left--
				return apierrors.NewTooManyRequests("disruption budget", 1)
			}
			return nil
		}
		k.effects.Evict(ref(pod), "BelowMinCount", "the gang has lost a member")
		time.Sleep(time.Second)
		if len(k.events.Events) != 0 {
			k.Errorf("told before it happened: %s", <-k.events.Events)
		}
		time.Sleep(time.Minute)
		k.wantCalls(c, "evict p", "evict p", "evict p", "evict p")
		k.wantCount(k.metrics.Evictions, 3, "BelowMinCount", "failed")
		// Its end takes a while, so it is wished for again.
		k.effects.Evict(ref(pod), "BelowMinCount", "the gang has lost a member")
		time.Sleep(time.Minute)
		k.wantCalls(c, "evict p")
		k.wantCount(k.metrics.Evictions, 2, "BelowMinCount", "ok")
		if n := len(k.events.Events); n != 1 {
			k.Fatalf("%d events, want 1", n)
		}
		if got := <-k.events.Events; got != "Warning BelowMinCount the gang has lost a member" {
			k.Errorf("event %q", got)
		}
	})
}

// Pods that go together are asked about first: nobody goes for nothing.
func TestPodsThatGoTogetherOrNotAtAll(t *testing.T) {
	run(t, func(k *kit) {
		budget := apierrors.NewTooManyRequests("disruption budget", 0)
		budget.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: policyv1.DisruptionBudgetCause}}
		p, q := gated("p"), gated("q")
		k.exists(p)
		k.exists(q)
		c := k.listen()
		protected := true
		c.answer = func(call string) error {
			if protected && call == "may evict q" {
				return budget
			}
			return nil
		}
		together := []planner.Eviction{{Pod: ref(p), Reason: "R", Message: "m"}, {Pod: ref(q), Reason: "R", Message: "m"}}
		k.effects.EvictTogether(together)
		time.Sleep(time.Minute)
		k.wantCalls(c, "may evict p", "may evict q")
		protected = false
		k.effects.EvictTogether(together)
		time.Sleep(time.Minute)
		got := c.take()
		slices.Sort(got)
		if diff := cmp.Diff([]string{"evict p", "evict q", "may evict p", "may evict q"}, got); diff != "" {
			k.Errorf("calls (-want +got):\n%s", diff)
		}
	})
}

func TestEvictionEnds(t *testing.T) {
	cases := map[string]struct {
		err    error
		exists bool
		want   string
	}{
		"the pod is gone":            {apierrors.NewNotFound(podKind, "p"), false, "gone"},
		"another pod has its name":   {apierrors.NewConflict(podKind, "p", errLeader), false, "gone"},
		"a budget forbids it always": {apierrors.NewTooManyRequests("disruption budget", 1), true, "given_up"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			run(t, func(k *kit) {
				pod := gated("p")
				if tc.exists {
					k.exists(pod)
				}
				c := k.listen()
				c.answer = func(string) error { return tc.err }
				k.effects.Evict(ref(pod), "R", "m")
				time.Sleep(2 * evictWithin)
				k.wantCount(k.metrics.Evictions, 1, "R", tc.want)
				n := len(c.take())
				time.Sleep(time.Hour)
				if again := c.take(); len(again) != 0 || n > 30 {
					k.Errorf("%d calls, then %q", n, again)
				}
				if len(k.events.Events) != 0 {
					k.Errorf("event %q", <-k.events.Events)
				}
			})
		})
	}
}

func TestReportsAreHandedOn(t *testing.T) {
	run(t, func(k *kit) {
		k.effects.Report(planner.GangReport{Key: planner.GangKey{Namespace: "demo", Name: "g"}, Keep: true})
		if len(k.reports) != 1 || !strings.HasPrefix(k.reports[0].Key.Name, "g") {
			k.Errorf("reports %+v", k.reports)
		}
	})
}
