package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
	. "github.com/tranche-dev/tranche/tests/testkit"
)

// burstKinds are the shapes that a burst deals out in turn. Together, 40 pods
// ask for about twice what the real node's four GPUs have.
var burstKinds = []func(*PodBuilder) *PodBuilder{
	func(b *PodBuilder) *PodBuilder { return b.Container("main", Shares("30")) },
	func(b *PodBuilder) *PodBuilder { return b.Fraction("0.25") },
	func(b *PodBuilder) *PodBuilder { return b.Memory("8Gi") }, // 10 shares of an A100, 34 of an A30
	func(b *PodBuilder) *PodBuilder { return b.Fraction("0.5").Count("2") },
	func(b *PodBuilder) *PodBuilder { return b.Container("one", Shares("20")).Container("two", Shares("5")) },
	func(b *PodBuilder) *PodBuilder {
		return b.InitContainer("prepare", Shares("25"), Command("exit", "0", "0s")).Container("main", Shares("10"))
	},
	func(b *PodBuilder) *PodBuilder { return b.Container("main", GPUs("1")) },
	func(b *PodBuilder) *PodBuilder { return b.Container("main", Shares("7")) },
}

// createBurst creates n pods at once, each as soon as the API server takes it.
func createBurst(t *testing.T, ns string, n int) {
	t.Helper()
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			pod := burstKinds[i%len(burstKinds)](MakePod(ns, fmt.Sprintf("burst-%02d", i)).OnNode(realNode)).Obj()
			err := wait.PollUntilContextTimeout(t.Context(), 200*time.Millisecond, settle, true, func(ctx context.Context) (bool, error) {
				_, err := client.CoreV1().Pods(ns).Create(ctx, pod, metav1.CreateOptions{})
				// An answer may be lost with the API server that gave it.
				return err == nil || apierrors.IsAlreadyExists(err), nil
			})
			if err != nil {
				t.Errorf("creating %s: %v", pod.Name, err)
			}
		})
	}
	wg.Wait()
}

// waitSettled waits until every pod of the namespace runs or has ended, or
// waits with a reason although nothing that waits would fit any more.
func waitSettled(t *testing.T, ns string) (running, waiting []corev1.Pod) {
	t.Helper()
	eventually(t, "the burst settles", func(ctx context.Context) error {
		running, waiting = nil, nil
		list, err := client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var problems []error
		for _, pod := range list.Items {
			switch {
			case pod.Status.Phase == corev1.PodRunning:
				running = append(running, pod)
			case !holdsGPUs(&pod) && pod.Spec.NodeName != "":
			case pod.Spec.NodeName == "":
				waiting = append(waiting, pod)
			default:
				problems = append(problems, fmt.Errorf("%s is %s on %s: %s", pod.Name, pod.Status.Phase, pod.Spec.NodeName, conditions(&pod)))
			}
		}
		if err := errors.Join(problems...); err != nil {
			return err
		}
		s, err := extenderState(ctx)
		if err != nil {
			return err
		}
		for i := range waiting {
			if fits(t, &waiting[i], s) {
				return fmt.Errorf("%s waits although it fits: %s", waiting[i].Name, conditions(&waiting[i]))
			}
		}
		return nil
	})
	return running, waiting
}

// fits says whether the pod would fit on the real node. It tries every way to
// deal the pod's containers out to the GPUs: slow, and plainly right.
func fits(t *testing.T, pod *corev1.Pod, s state) bool {
	t.Helper()
	res := contract.DefaultResources()
	req, err := contract.ParsePod(pod, res)
	if err != nil {
		t.Fatal(err)
	}
	node, err := client.CoreV1().Nodes().Get(t.Context(), realNode, metav1.GetOptions{})
	if err != nil {
		return false
	}
	inventory, err := contract.ParseInventory(node.Annotations[contract.InventoryAnnotation])
	if err != nil {
		t.Fatal(err)
	}
	free := map[contract.GPUUUID]units.Shares{}
	for _, n := range s.Nodes {
		if n.Name == realNode {
			for _, g := range n.GPUs {
				free[contract.GPUUUID(g.UUID)] = units.Shares(g.Shares.Free)
			}
		}
	}
	return deal(req, 0, contract.Plan{Containers: map[string][]contract.Grant{}}, inventory.GPUs, func(plan contract.Plan) bool {
		if req.SameGPUs && !onSameGPUs(plan) {
			return false
		}
		for gpu, shares := range plan.Charges(contract.Roles(&pod.Spec)) {
			if shares > free[gpu] {
				return false
			}
		}
		return true
	})
}

// deal extends the plan by every set of GPUs for demand i and the ones after
// it, until ok accepts one.
func deal(req contract.Request, i int, plan contract.Plan, gpus []contract.GPU, ok func(contract.Plan) bool) bool {
	if i == len(req.Demands) {
		return ok(plan)
	}
	d := req.Demands[i]
	for set := range 1 << len(gpus) {
		var grants []contract.Grant
		for g := range gpus {
			if set&(1<<g) != 0 {
				grants = append(grants, d.GrantOn(gpus[g], units.DefaultSharesPerGPU))
			}
		}
		if len(grants) != d.Count {
			continue
		}
		plan.Containers[d.Name] = grants
		if deal(req, i+1, plan, gpus, ok) {
			return true
		}
	}
	delete(plan.Containers, d.Name)
	return false
}

func onSameGPUs(plan contract.Plan) bool {
	first := ""
	for container := range plan.Containers {
		gpus := strings.Join(planGPUs(plan, container), ",")
		if first == "" {
			first = gpus
		}
		if gpus != first {
			return false
		}
	}
	return true
}

func TestBurstOfMixedSizesRunsWhateverFits(t *testing.T) {
	ns := optedIn(t)
	createBurst(t, ns, 40)
	running, waiting := waitSettled(t, ns)
	if len(running)+len(waiting) != 40 {
		t.Errorf("%d run and %d wait, of 40: some failed", len(running), len(waiting))
	}
	if len(running) < 8 || len(waiting) < 8 {
		t.Errorf("%d run and %d wait: the burst does not test what it should", len(running), len(waiting))
	}
	for i := range running {
		waitKubeletAgrees(t, &running[i])
	}
	eventually(t, "all three views agree", checkTruth)
	checkInside(t, ns)
	for i := range waiting {
		wantOneReason(t, &waiting[i])
	}
}

// wantOneReason checks that a waiting pod says why, in one sentence that never
// changes with numbers, names or times.
func wantOneReason(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	waitEvent(t, pod, "GPUUnavailable", "")
	events, err := podEvents(t.Context(), pod)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		if e.Reason == "GPUUnavailable" && strings.ContainsAny(e.Message, "0123456789") {
			t.Errorf("pod %s: %q is not constant", pod.Name, e.Message)
		}
	}
}

// TestBurstSurvivesKilledComponents creates the burst while every component is
// killed and started again, one after the other.
func TestBurstSurvivesKilledComponents(t *testing.T) {
	for _, component := range []string{"tranche-extender", "tranche-nodeplugin", "kube-scheduler", "kubelet", "kube-apiserver"} {
		t.Run(component, func(t *testing.T) {
			ns := optedIn(t)
			done := make(chan struct{})
			go func() {
				defer close(done)
				createBurst(t, ns, 40)
			}()
			// Into the middle of it: once some pods are bound and others are not.
			eventually(t, "the burst has begun", func(ctx context.Context) error {
				list, err := client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
				if err != nil {
					return err
				}
				for _, pod := range list.Items {
					if pod.Spec.NodeName != "" {
						return nil
					}
				}
				return fmt.Errorf("%d pods, none bound", len(list.Items))
			})
			if err := kube.Kill(t.Context(), component); err != nil {
				t.Error(err)
			}
			if err := kube.Start(context.WithoutCancel(t.Context()), component); err != nil {
				t.Fatal(err)
			}
			<-done
			running, waiting := waitSettled(t, ns)
			t.Logf("%d run, %d wait, %d failed", len(running), len(waiting), 40-len(running)-len(waiting))
			eventually(t, "all three views agree", checkTruth)
			checkInside(t, ns)

			removeNamespace(t, ns)
			later := optedIn(t)
			for i := range 3 {
				waitRunning(t, create(t, MakePod(later, fmt.Sprintf("later-%d", i)).OnNode(realNode).Container("main", Shares("50")).Obj()))
			}
			eventually(t, "all three views agree on later pods", checkTruth)
			checkInside(t, later)
		})
	}
}
