package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

// holdsGPUs says whether the pod's containers may still use GPUs.
func holdsGPUs(pod *corev1.Pod) bool {
	return pod.Spec.NodeName != "" && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}

// checkTruth looks at the cluster from three sides, the API's plans, the
// kubelet's device IDs and the extender's ledger, and complains where they
// differ or where a GPU is given out twice. It is the invariants 1 and 5 of the
// design.
func checkTruth(ctx context.Context) error {
	pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	s, err := extenderState(ctx)
	if err != nil {
		return err
	}
	var problems []error
	complain := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }

	planned := map[string]units.Shares{}          // by GPU
	byPod := map[string]map[string]units.Shares{} // pod UID → GPU → shares
	holder := map[string]types.UID{}              // resource/device ID → pod
	given := map[string]units.Shares{}            // by GPU, as the kubelet counts
	for i := range pods.Items {
		pod := &pods.Items[i]
		if !holdsGPUs(pod) || !contract.UsesGPU(&pod.Spec, contract.DefaultResources()) {
			continue
		}
		plan, err := planOf(pod)
		if err != nil {
			complain("bound %s/%s: %w", pod.Namespace, pod.Name, err)
			continue
		}
		if plan.Node != pod.Spec.NodeName {
			complain("pod %s is on %s, planned for %s", pod.Name, pod.Spec.NodeName, plan.Node)
		}
		byPod[string(pod.UID)] = map[string]units.Shares{}
		for gpu, shares := range plan.Charges(contract.Roles(&pod.Spec)) {
			planned[string(gpu)] += shares
			byPod[string(pod.UID)][string(gpu)] = shares
		}
		for container := range plan.Containers {
			gpus, ids, err := deviceGPUs(pod, container)
			if err != nil {
				complain("pod %s: %w", pod.Name, err)
			}
			if len(ids) == 0 {
				continue // not reported yet, or a simulated node
			}
			if want := planGPUs(plan, container); !slices.Equal(gpus, want) {
				complain("pod %s, container %s: the kubelet gave %v, planned %v", pod.Name, container, gpus, want)
			}
			for _, id := range ids {
				other, taken := holder[id]
				if taken && other != pod.UID {
					complain("device %s is with two pods, one of them %s", id, pod.Name)
				}
				holder[id] = pod.UID
				if taken {
					continue // handed on by an init container
				}
				weight, gpu := units.Shares(1), strings.SplitN(id, "/", 3)[2]
				if strings.HasPrefix(id, "nvidia.com/gpu/") {
					weight = units.DefaultSharesPerGPU
				}
				given[strings.Split(gpu, "::")[0]] += weight
			}
		}
	}
	for gpu, shares := range given {
		if shares > units.DefaultSharesPerGPU {
			complain("GPU %s: the kubelet gave out %d shares", gpu, shares)
		}
	}
	for gpu, shares := range planned {
		if shares > units.DefaultSharesPerGPU {
			complain("GPU %s: plans give out %d shares", gpu, shares)
		}
	}

	inLedger := map[string]map[string]units.Shares{}
	for _, node := range s.Nodes {
		for _, gpu := range node.GPUs {
			if gpu.Shares.Free < 0 || gpu.Shares.Allocated+gpu.Shares.Held > gpu.Shares.Total {
				complain("ledger: GPU %s: %+v", gpu.UUID, gpu.Shares)
			}
			for _, p := range gpu.Pods {
				if p.State != "allocated" {
					continue
				}
				if inLedger[p.UID] == nil {
					inLedger[p.UID] = map[string]units.Shares{}
				}
				inLedger[p.UID][gpu.UUID] += units.Shares(p.Shares)
			}
		}
	}
	if diff := cmp.Diff(byPod, inLedger); diff != "" {
		complain("ledger differs from the bound pods' plans (-pods +ledger):\n%s", diff)
	}
	return errors.Join(problems...)
}

// checkInside compares, for every running pod of the namespace on the real
// node, the GPUs seen from inside each container with the plan.
func checkInside(t *testing.T, namespace string) {
	t.Helper()
	pods, err := client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if pod.Status.Phase != corev1.PodRunning || pod.Spec.NodeName != realNode {
			continue
		}
		plan, err := planOf(pod)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, container := range slices.Sorted(maps.Keys(plan.Containers)) {
			eventually(t, "GPUs seen inside "+pod.Name+"/"+container, func(ctx context.Context) error {
				got, err := visibleDevices(ctx, pod, container)
				if err != nil {
					return err
				}
				if want := planGPUs(plan, container); !slices.Equal(got, want) {
					return fmt.Errorf("inside: %v, planned: %v", got, want)
				}
				return nil
			})
		}
	}
}
