package bind

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/pager"

	"github.com/tranche-dev/tranche/pkg/ledger"
)

// A dry run asks about each pod by itself, so it permits two of a budget that
// allows one. This file counts them together.

// budgetRefusal is why some pods of a party may not go.
type budgetRefusal struct {
	why  string
	pods []types.UID
}

// overBudget finds a budget that allows fewer disruptions than the party needs.
// It refuses only as many of the pods as are too many, the last ones, so that
// the rest may go together with others.
func (e *Effects) overBudget(ctx context.Context, p *party) (*budgetRefusal, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	byNamespace := map[string][]ledger.Pod{}
	for _, pod := range p.pods {
		byNamespace[pod.Namespace] = append(byNamespace[pod.Namespace], pod)
	}
	for _, namespace := range slices.Sorted(maps.Keys(byNamespace)) {
		budgets, err := e.budgets(ctx, namespace)
		if err != nil {
			return nil, fmt.Errorf("list disruption budgets: %w", err)
		}
		if len(budgets) == 0 {
			continue
		}
		var pods []*corev1.Pod
		for _, pod := range byNamespace[namespace] {
			found, err := readPod(ctx, e.clients.Main, target(pod))
			if err != nil {
				return nil, fmt.Errorf("read victim: %w", err)
			}
			if found != nil && disrupts(found) {
				pods = append(pods, found)
			}
		}
		if r := refusedBy(budgets, pods); r != nil {
			return r, nil
		}
	}
	return nil, nil
}

// budgets lists those of a namespace.
func (e *Effects) budgets(ctx context.Context, namespace string) ([]*policyv1.PodDisruptionBudget, error) {
	list := pager.New(func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
		return e.clients.Main.PolicyV1().PodDisruptionBudgets(namespace).List(ctx, opts)
	})
	var budgets []*policyv1.PodDisruptionBudget
	err := list.EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
		if b, ok := o.(*policyv1.PodDisruptionBudget); ok {
			budgets = append(budgets, b)
		}
		return nil
	})
	return budgets, err
}

// disrupts says whether the end of a pod counts against budgets: the API server
// asks none about one that is ending or does not run yet.
func disrupts(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodRunning
}

// refusedBy finds the first budget that does not allow all of the pods to go.
func refusedBy(budgets []*policyv1.PodDisruptionBudget, pods []*corev1.Pod) *budgetRefusal {
	selecting := map[types.UID][]string{}
	var refusal *budgetRefusal
	for _, b := range budgets {
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil {
			continue // the API server does not heed it either
		}
		var counted []types.UID
		for _, pod := range pods {
			if !selector.Matches(labels.Set(pod.Labels)) {
				continue
			}
			selecting[pod.UID] = append(selecting[pod.UID], b.Namespace+"/"+b.Name)
			if always := b.Spec.UnhealthyPodEvictionPolicy; always != nil && *always == policyv1.AlwaysAllow && !ready(pod) {
				continue
			}
			// With the other policy a pod that is not ready may cost nothing either, if
			// the rest are healthy. To count it is careful.
			counted = append(counted, pod.UID)
		}
		if allowed := int(max(b.Status.DisruptionsAllowed, 0)); len(counted) > allowed && refusal == nil {
			refusal = &budgetRefusal{
				why:  fmt.Sprintf("PodDisruptionBudget %s/%s allows %s, %s needed", b.Namespace, b.Name, count(allowed, "more disruption"), are(len(counted))),
				pods: counted[allowed:],
			}
		}
	}
	for _, pod := range pods {
		if names := selecting[pod.UID]; len(names) > 1 {
			return &budgetRefusal{
				why:  fmt.Sprintf("pod %s/%s is in several PodDisruptionBudgets (%s), and then the API server evicts it for nobody", pod.Namespace, pod.Name, strings.Join(names, ", ")),
				pods: []types.UID{pod.UID},
			}
		}
	}
	return refusal
}

func ready(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// count writes a number of things.
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

func are(n int) string {
	if n == 1 {
		return "1 is"
	}
	return fmt.Sprintf("%d are", n)
}
