package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tranche-dev/tranche/pkg/contract"
	. "github.com/tranche-dev/tranche/tests/testkit"
)

func TestTwoHalvesShareOneGPUAndALargerThirdGoesElsewhere(t *testing.T) {
	ns := optedIn(t)
	a := waitRunning(t, create(t, MakePod(ns, "a").OnNode(realNode).Container("main", Shares("50")).Obj()))
	b := waitRunning(t, create(t, MakePod(ns, "b").OnNode(realNode).Container("main", Shares("50")).Obj()))
	c := waitRunning(t, create(t, MakePod(ns, "c").OnNode(realNode).Container("main", Shares("60")).Obj()))

	onA, onB, onC := gpusOf(t, a, "main"), gpusOf(t, b, "main"), gpusOf(t, c, "main")
	if !slices.Equal(onA, onB) || len(onA) != 1 {
		t.Errorf("two pods of 50 shares are on %v and %v, want one GPU", onA, onB)
	}
	if slices.Equal(onC, onA) {
		t.Errorf("a pod of 60 shares is on %v, which two pods of 50 fill", onC)
	}
	waitKubeletAgrees(t, a, b, c)
	checkInside(t, ns)
	eventually(t, "all three views agree", checkTruth)
}

// waitKubeletAgrees waits until the kubelet has reported, for each container
// of the pods, devices of exactly the planned GPUs. Of an init container that
// has ended it reports none.
func waitKubeletAgrees(t *testing.T, pods ...*corev1.Pod) {
	t.Helper()
	for _, p := range pods {
		eventually(t, "device IDs of "+p.Name, func(ctx context.Context) error {
			pod, err := client.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			plan, err := planOf(pod)
			if err != nil {
				return err
			}
			for _, c := range contract.Roles(&pod.Spec) {
				container := c.Name
				gpus, ids, err := deviceGPUs(pod, container)
				if err != nil {
					return err
				}
				if c.Role == contract.RoleInit && len(ids) == 0 {
					continue
				}
				if want := planGPUs(plan, container); !slices.Equal(gpus, want) {
					return fmt.Errorf("container %s has %v (%d IDs), planned %v", container, gpus, len(ids), want)
				}
			}
			return nil
		})
	}
}

func TestContainersOfOnePodGetTheirOwnShares(t *testing.T) {
	ns := optedIn(t)
	pod := waitRunning(t, create(t, MakePod(ns, "two").OnNode(realNode).
		Container("large", Shares("70")).Container("small", Shares("20")).Container("none").Obj()))
	plan, err := planOf(pod)
	if err != nil {
		t.Fatal(err)
	}
	for container, want := range map[string]int64{"large": 70, "small": 20} {
		if g := plan.Containers[container]; len(g) != 1 || int64(g[0].Shares) != want {
			t.Errorf("container %s was planned %v, want %d shares of one GPU", container, g, want)
		}
	}
	waitKubeletAgrees(t, pod)
	checkInside(t, ns)
	eventually(t, "the container without GPUs sees none", func(ctx context.Context) error {
		got, err := visibleDevices(ctx, pod, "none")
		if err == nil && !slices.Equal(got, []string{"void"}) {
			err = fmt.Errorf("it sees %v", got)
		}
		return err
	})
}

func TestInitContainerAndAppUseTheSameGPU(t *testing.T) {
	ns := optedIn(t)
	pod := waitRunning(t, create(t, MakePod(ns, "init").OnNode(realNode).
		InitContainer("prepare", Shares("40"), Command("exit", "0", "0s")).
		Container("main", Shares("30")).Obj()))
	if init, main := gpusOf(t, pod, "prepare"), gpusOf(t, pod, "main"); !slices.Equal(init, main) {
		t.Errorf("init container on %v, app container on %v", init, main)
	}
	waitKubeletAgrees(t, pod)
	checkInside(t, ns)
	eventually(t, "the pod is charged 40 shares, the larger of both", func(ctx context.Context) error {
		return wantCharge(ctx, pod, 40)
	})
}

// wantCharge complains unless the ledger charges the pod that many shares in
// all.
func wantCharge(ctx context.Context, pod *corev1.Pod, want int64) error {
	s, err := extenderState(ctx)
	if err != nil {
		return err
	}
	got := int64(0)
	for _, node := range s.Nodes {
		for _, gpu := range node.GPUs {
			for _, p := range gpu.Pods {
				if p.UID == string(pod.UID) {
					got += p.Shares
				}
			}
		}
	}
	if got != want {
		return fmt.Errorf("the ledger charges %s %d shares, want %d", pod.Name, got, want)
	}
	return nil
}

// TestDeletedPodKeepsItsSharesUntilItsContainersEnd deletes a pod whose process
// goes on for some seconds after SIGTERM.
func TestDeletedPodKeepsItsSharesUntilItsContainersEnd(t *testing.T) {
	ns := optedIn(t)
	pod := waitRunning(t, create(t, MakePod(ns, "slow").OnNode(realNode).
		Spec(func(s *corev1.PodSpec) { s.TerminationGracePeriodSeconds = new(int64(20)) }).
		Container("main", Shares("60"), Command("linger", "6s")).Obj()))
	other := waitRunning(t, create(t, MakePod(ns, "other").OnNode(realNode).Container("main", Shares("10")).Obj()))
	if err := client.CoreV1().Pods(ns).Delete(t.Context(), pod.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	sawTerminating := false
	eventually(t, "the pod is gone", func(ctx context.Context) error {
		// The charge is read before the pod: if the pod is still there
		// afterwards, it was there when the charge was read.
		charge := wantCharge(ctx, pod, 60)
		got, err := client.CoreV1().Pods(ns).Get(ctx, pod.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		}
		running := got.DeletionTimestamp != nil && got.Status.Phase == corev1.PodRunning
		sawTerminating = sawTerminating || running
		if running && charge != nil {
			t.Errorf("while its container still runs: %v", charge)
		}
		return errors.New("still there")
	})
	if !sawTerminating {
		t.Error("the pod was never seen terminating with its container still running")
	}
	eventually(t, "exactly its shares are free", func(ctx context.Context) error {
		return errors.Join(wantCharge(ctx, pod, 0), wantCharge(ctx, other, 10))
	})
	eventually(t, "all three views agree", checkTruth)
}

func TestMemoryIsExactOnEachSizeOfGPU(t *testing.T) {
	ns := optedIn(t)
	// 12 GiB are half of an A30 with 24 GiB, and 15 % of an A100 with 80 GiB.
	for model, want := range map[string]int64{"NVIDIA-A30": 50, "NVIDIA-A100-SXM4-80GB": 15} {
		pod := waitRunning(t, create(t, MakePod(ns, "mem-"+fmt.Sprint(want)).OnNode(realNode).
			Memory("12Gi").Annotation("tranche.dev/gpu-model", model).Obj()))
		plan, err := planOf(pod)
		if err != nil {
			t.Fatal(err)
		}
		if g := plan.Containers["main"]; len(g) != 1 || int64(g[0].Shares) != want || g[0].MemoryMiB != 12*1024 {
			t.Errorf("12Gi on %s: plan %+v, want %d shares and 12288 MiB", model, g, want)
		}
		waitKubeletAgrees(t, pod)
	}
	checkInside(t, ns)
}

func TestGPUCountGivesDifferentGPUsOfOneNode(t *testing.T) {
	ns := optedIn(t)
	parts := waitRunning(t, create(t, MakePod(ns, "parts").OnNode(realNode).Fraction("0.5").Count("2").Obj()))
	whole := waitRunning(t, create(t, MakePod(ns, "whole").OnNode(realNode).Container("main", GPUs("2")).Obj()))
	for _, pod := range []*corev1.Pod{parts, whole} {
		if gpus := gpusOf(t, pod, "main"); len(gpus) != 2 {
			t.Errorf("pod %s is on %v, want two GPUs", pod.Name, gpus)
		}
	}
	if a, b := gpusOf(t, parts, "main"), gpusOf(t, whole, "main"); slices.ContainsFunc(a, func(g string) bool { return slices.Contains(b, g) }) {
		t.Errorf("the whole-GPU pod on %v overlaps the shared one on %v", b, a)
	}
	waitKubeletAgrees(t, parts, whole)
	checkInside(t, ns)
	eventually(t, "all three views agree", checkTruth)
}
