package main

import (
	"context"
	"fmt"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/tranche-dev/tranche/tests/cluster"
)

// requests are the kinds of the extender's requests that the API server counts:
// each has a flow schema of its own, of the same level that the requests of any
// service account have, so that nothing else changes.
var requests = []struct {
	name string
	rule flowcontrolv1.ResourcePolicyRule
}{
	{"bench-pod-writes", writes("", "pods", "pods/status", "pods/binding", "bindings")},
	{"bench-other-writes", writes("*", "*")},
	{"bench-reads", flowcontrolv1.ResourcePolicyRule{Verbs: []string{"get", "list", "watch"}, APIGroups: []string{"*"}, Resources: []string{"*"}, Namespaces: []string{"*"}, ClusterScope: true}},
}

func writes(group string, resources ...string) flowcontrolv1.ResourcePolicyRule {
	return flowcontrolv1.ResourcePolicyRule{
		Verbs: []string{"create", "update", "patch", "delete", "deletecollection"}, APIGroups: []string{group}, Resources: resources,
		Namespaces: []string{"*"}, ClusterScope: true,
	}
}

// countRequests has the API server begin to count.
func (k *kit) countRequests(ctx context.Context) error {
	for i, r := range requests {
		rule := r.rule
		_, err := k.client.FlowcontrolV1().FlowSchemas().Create(ctx, &flowcontrolv1.FlowSchema{
			ObjectMeta: metav1.ObjectMeta{Name: r.name},
			Spec: flowcontrolv1.FlowSchemaSpec{
				MatchingPrecedence:         int32(1000 + i), // the first that fits counts
				PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: "workload-low"},
				DistinguisherMethod:        &flowcontrolv1.FlowDistinguisherMethod{Type: flowcontrolv1.FlowDistinguisherMethodByUserType},
				Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
					Subjects: []flowcontrolv1.Subject{{
						Kind: rbacv1.ServiceAccountKind, ServiceAccount: &flowcontrolv1.ServiceAccountSubject{Namespace: "tranche-system", Name: cluster.Extender},
					}},
					ResourceRules: []flowcontrolv1.ResourcePolicyRule{rule},
				}},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
	}
	// A flow schema is in force when the API server says that its level is there.
	return wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		for _, r := range requests {
			f, err := k.client.FlowcontrolV1().FlowSchemas().Get(ctx, r.name, metav1.GetOptions{})
			if err != nil || len(f.Status.Conditions) == 0 {
				return false, err
			}
		}
		return true, nil
	})
}

// counted are the requests of each kind up to now.
func (k *kit) counted(ctx context.Context) ([]int, error) {
	counts := make([]int, len(requests))
	for i, r := range requests {
		n, err := k.metric(ctx, cluster.APIServer, "apiserver_flowcontrol_dispatched_requests_total", fmt.Sprintf("flow_schema=%q", r.name))
		if err != nil {
			return nil, err
		}
		counts[i] = int(n)
	}
	return counts, nil
}

// writesPerPod says what the extender asked of the API server for n pods.
func writesPerPod(n int, before, after []int) row {
	each := func(i int) float64 { return float64(after[i]-before[i]) / float64(n) }
	return row{
		"... API writes by the extender to each pod", fmt.Sprintf("%.2f", each(0)),
		fmt.Sprintf("%.2f others for each, %d reads in all", each(1), after[2]-before[2]), "", "<= 3",
	}
}
