package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/contract"
	. "github.com/tranche-dev/tranche/tests/testkit"
)

// An arena is a set of simulated nodes of eight GPUs that one test, or one part
// of it, has to itself.
type arena []string

// arenaOf returns the i-th arena of n nodes.
func arenaOf(i, n int) arena {
	a := make(arena, 0, n)
	for node := range n {
		a = append(a, fmt.Sprintf("tranche-sim-%d", i*n+node))
	}
	return a
}

// within keeps a pod on the arena's nodes.
func (a arena) within(b *PodBuilder) *PodBuilder {
	return b.Spec(func(spec *corev1.PodSpec) {
		spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
				Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: a,
			}}}},
		}}}
	})
}

// member is a pod of a gang with one whole GPU.
func (a arena) member(ns, gang string, i, minCount int) *PodBuilder {
	return a.within(MakePod(ns, fmt.Sprintf("%s-%d", gang, i))).
		Label(contract.GangLabel, gang).Annotation(contract.GangMinCountAnnotation, strconv.Itoa(minCount)).
		Container("main", GPUs("1"))
}

// gang is n members that need each other.
func (a arena) gang(ns, gang string, n int) []*corev1.Pod {
	pods := make([]*corev1.Pod, 0, n)
	for i := range n {
		pods = append(pods, a.member(ns, gang, i, n).Obj())
	}
	return pods
}

// createAll creates pods at once, each as soon as the API server takes it.
func createAll(t *testing.T, pods ...*corev1.Pod) {
	t.Helper()
	var wg sync.WaitGroup
	for _, pod := range pods {
		wg.Go(func() {
			err := wait.PollUntilContextTimeout(t.Context(), pollEvery, settle, true, func(ctx context.Context) (bool, error) {
				_, err := client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
				return err == nil || apierrors.IsAlreadyExists(err), nil
			})
			if err != nil {
				t.Errorf("creating %s: %v", pod.Name, err)
			}
		})
	}
	wg.Wait()
}

// membersOf lists a gang's pods.
func membersOf(ctx context.Context, ns, gang string) ([]corev1.Pod, error) {
	list, err := client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{LabelSelector: labels.Set{contract.GangLabel: gang}.String()})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

func countBound(pods []corev1.Pod) int {
	n := 0
	for i := range pods {
		if pods[i].Spec.NodeName != "" {
			n++
		}
	}
	return n
}

// waitBound waits until n members of a gang are bound.
func waitBound(t *testing.T, ns, gang string, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d members of gang %s/%s are bound", n, ns, gang), func(ctx context.Context) error {
		pods, err := membersOf(ctx, ns, gang)
		if err != nil {
			return err
		}
		if got := countBound(pods); got != n {
			word, message, err := gangReason(ctx, ns, gang)
			return errors.Join(fmt.Errorf("%d of %d are bound; %s: %s", got, len(pods), word, message), err)
		}
		return nil
	})
}

// gangReason is why a gang waits, by its object.
func gangReason(ctx context.Context, ns, gang string) (word, message string, err error) {
	var g v1alpha1.Gang
	if err := gangs.Get(ctx, ctrlclient.ObjectKey{Namespace: ns, Name: gang}, &g); err != nil {
		return "", "", err
	}
	if len(g.Status.Reasons) == 0 {
		return "", string(g.Status.Phase), nil
	}
	return g.Status.Reasons[0].Type, g.Status.Reasons[0].Message, nil
}

// waitReason waits until a gang says that it waits for this.
func waitReason(t *testing.T, ns, gang, word, part string) {
	t.Helper()
	eventually(t, fmt.Sprintf("gang %s waits for %s", gang, word), func(ctx context.Context) error {
		got, message, err := gangReason(ctx, ns, gang)
		if err != nil {
			return err
		}
		if got != word || !strings.Contains(message, part) {
			return fmt.Errorf("it says %s: %s", got, message)
		}
		return nil
	})
}

// wantNothingHeld checks that nobody in the namespace holds or has a GPU.
func wantNothingHeld(ctx context.Context, ns string) error {
	s, err := extenderState(ctx)
	if err != nil {
		return err
	}
	for _, n := range s.Nodes {
		for _, g := range n.GPUs {
			for _, p := range g.Pods {
				if p.Namespace == ns {
					return fmt.Errorf("pod %s has %d shares of a GPU of %s (%s)", p.Name, p.Shares, n.Name, p.State)
				}
			}
		}
	}
	return nil
}

// remove deletes pods and waits until they are gone.
func remove(t *testing.T, ns, selector string) {
	t.Helper()
	eventually(t, "pods "+selector+" are gone", func(ctx context.Context) error {
		options := metav1.ListOptions{LabelSelector: selector}
		if err := client.CoreV1().Pods(ns).DeleteCollection(ctx, metav1.DeleteOptions{}, options); err != nil {
			return err
		}
		list, err := client.CoreV1().Pods(ns).List(ctx, options)
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("%d are left", len(list.Items))
		}
		return err
	})
}

// bindings follows in which order the API server binds pods of a namespace.
type bindings struct {
	mu    sync.Mutex
	order []string
}

// watchBindings starts following those to come, until the test ends.
func watchBindings(t *testing.T, ns string) *bindings {
	t.Helper()
	now, err := client.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := client.CoreV1().Pods(ns).Watch(t.Context(), metav1.ListOptions{ResourceVersion: now.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	b := &bindings{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		seen := map[string]bool{}
		for i := range now.Items {
			seen[string(now.Items[i].UID)] = now.Items[i].Spec.NodeName != ""
		}
		for event := range w.ResultChan() {
			pod, ok := event.Object.(*corev1.Pod)
			if !ok || pod.Spec.NodeName == "" || seen[string(pod.UID)] {
				continue
			}
			seen[string(pod.UID)] = true
			b.mu.Lock()
			b.order = append(b.order, pod.Labels[contract.GangLabel])
			b.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		w.Stop()
		<-done
	})
	return b
}

// runs are the gangs in the order of their members' bindings, equal neighbours
// together, as "name×count".
func (b *bindings) runs() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var runs []string
	for start := 0; start < len(b.order); {
		end := start
		for end < len(b.order) && b.order[end] == b.order[start] {
			end++
		}
		runs = append(runs, fmt.Sprintf("%s×%d", b.order[start], end-start))
		start = end
	}
	return runs
}

// wantRuns checks the order of bindings, which may come a moment after a list.
func (b *bindings) wantRuns(t *testing.T, want ...string) {
	t.Helper()
	eventually(t, "the watch tells of all bindings", func(context.Context) error {
		if got := b.runs(); !slices.Equal(got, want) {
			return fmt.Errorf("bound in the order %v, want %v", got, want)
		}
		return nil
	})
}

// refuseBinding has the API server refuse every Binding of one pod until the
// function that it returns is called.
func refuseBinding(t *testing.T, ns, name string) (allow func()) {
	t.Helper()
	policies, policyBindings := client.AdmissionregistrationV1().ValidatingAdmissionPolicies(), client.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()
	policy := &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "e2e-" + ns + "-" + name},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			FailurePolicy: new(admissionv1.Fail),
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.Create},
				Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods/binding"}},
			}}}},
			Validations: []admissionv1.Validation{{Expression: fmt.Sprintf("request.namespace != %q || object.metadata.name != %q", ns, name), Message: "refused by the test"}},
		},
	}
	if _, err := policies.Create(t.Context(), policy, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := policyBindings.Create(t.Context(), &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: policy.ObjectMeta,
		Spec:       admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: policy.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	allow = sync.OnceFunc(func() {
		ctx := context.WithoutCancel(t.Context())
		if err := policyBindings.Delete(ctx, policy.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		if err := policies.Delete(ctx, policy.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(allow)

	// Policies take effect a moment after they were made: try on a pod of that
	// name that nobody else binds.
	create(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns}, Spec: corev1.PodSpec{
		SchedulerName: "nobody", Containers: []corev1.Container{{Name: "main", Image: "example.com/none"}},
	}})
	eventually(t, "the policy is in force", func(ctx context.Context) error {
		err := client.CoreV1().Pods(ns).Bind(ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns}, Target: corev1.ObjectReference{Kind: "Node", Name: "nowhere"},
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			return errors.New("it allows the binding")
		}
		if !strings.Contains(err.Error(), "refused by the test") {
			return fmt.Errorf("the binding is not refused by it: %w", err)
		}
		return nil
	})
	if err := client.CoreV1().Pods(ns).Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
		t.Fatal(err)
	}
	return allow
}
