package nodeplugin_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/tests/testkit"
)

type on = map[contract.GPUUUID]int

func TestSixEqualPodsAtOnceEachGetTheirOwnGPU(t *testing.T) {
	n := newNode(t, "A100-80GB", "A100-80GB", "A30-24GB", "A30-24GB", "T4-16GB", "T4-16GB").up()
	var wg sync.WaitGroup
	pods := make([]*corev1.Pod, 6)
	for i := range pods {
		pods[i] = n.simple(fmt.Sprintf("p%d", i), 5-i, 50)
	}
	for _, p := range pods {
		wg.Go(func() {
			if err := n.kubelet.Admit(t.Context(), p); err != nil {
				t.Errorf("pod %s: %v", p.Name, err)
			}
		})
	}
	wg.Wait()
	for i, p := range pods {
		if diff := cmp.Diff(on{gpu(5 - i): 50}, n.on(p, "main", share)); diff != "" {
			t.Errorf("pod %s (-want +got):\n%s", p.Name, diff)
		}
	}
	if got := n.kubelet.Lists(); got != 0 {
		t.Errorf("%d calls of pod-resources List", got)
	}
	if got := n.metric("tranche_nodeplugin_ambiguous_identifications_total", "resource", share); got != 0 {
		t.Errorf("%v ambiguous", got)
	}
}

// The pods API allows bursts of ten; an admission must wait, not fail.
func TestABurstBeyondTheKubeletsRateLimitIsServed(t *testing.T) {
	n := newNode(t, "A100-80GB", "A100-80GB").up()
	for i := range 60 {
		p := n.admit(n.simple(fmt.Sprintf("p%d", i), i%2, 3))
		if diff := cmp.Diff(on{gpu(i % 2): 3}, n.on(p, "main", share)); diff != "" {
			t.Errorf("pod %s (-want +got):\n%s", p.Name, diff)
		}
	}
}

func TestContainersOfOnePodGetTheirOwnPlans(t *testing.T) {
	n := newNode(t, "A100-80GB", "A100-80GB", "A30-24GB").up()
	p := n.admit(n.pod(
		testkit.MakePod("ns", "two").Container("a", testkit.Shares("30")).Container("b", testkit.Shares("30")).Container("c", testkit.GPUs("1")),
		plan{"a": {n.grant(1, 30)}, "b": {n.grant(0, 30)}, "c": {n.grant(2, 100)}}))
	for _, w := range []struct {
		container, resource string
		want                on
	}{{"a", share, on{gpu(1): 30}}, {"b", share, on{gpu(0): 30}}, {"c", whole, on{gpu(2): 1}}} {
		if diff := cmp.Diff(w.want, n.on(p, w.container, w.resource)); diff != "" {
			t.Errorf("container %s (-want +got):\n%s", w.container, diff)
		}
	}
}

func TestSeveralGPUsOfOneContainer(t *testing.T) {
	n := newNode(t, "A100-80GB", "A100-80GB", "A30-24GB", "A30-24GB").up()
	parts := n.admit(n.pod(testkit.MakePod("ns", "parts").Container("main", testkit.Shares("100")),
		plan{"main": {n.grant(3, 50), n.grant(1, 50)}}))
	if diff := cmp.Diff(on{gpu(1): 50, gpu(3): 50}, n.on(parts, "main", share)); diff != "" {
		t.Errorf("2 × 0.5 (-want +got):\n%s", diff)
	}
	both := n.admit(n.pod(testkit.MakePod("ns", "whole").Container("main", testkit.GPUs("2")),
		plan{"main": {n.grant(0, 100), n.grant(2, 100)}}))
	if diff := cmp.Diff(on{gpu(0): 1, gpu(2): 1}, n.on(both, "main", whole)); diff != "" {
		t.Errorf("two whole GPUs (-want +got):\n%s", diff)
	}
	n.refused(n.pod(testkit.MakePod("ns", "more").Container("main", testkit.GPUs("1")), plan{"main": {n.grant(1, 100)}}),
		"100 of 100 shares of GPU "+string(gpu(1)), "50 are in use by ns/parts", "Create the pod again")
}

func TestInitContainersHandTheirDevicesOn(t *testing.T) {
	n := newNode(t, "A100-80GB", "A30-24GB").up()
	// The kubelet reuses 40 of the 50 for b, in random order and without asking,
	// then the other 10 and 20 new ones for c, asking.
	p := n.admit(n.pod(
		testkit.MakePod("ns", "p").InitContainer("i", testkit.Shares("50")).Container("b", testkit.Shares("40")).Container("c", testkit.Shares("30")),
		plan{"i": {n.grant(1, 50)}, "b": {n.grant(1, 40)}, "c": {n.grant(1, 30)}}))
	for container, want := range map[string]int{"i": 50, "b": 40, "c": 30} {
		if diff := cmp.Diff(on{gpu(1): want}, n.on(p, container, share)); diff != "" {
			t.Errorf("container %s (-want +got):\n%s", container, diff)
		}
	}
	n.refused(n.simple("full", 1, 31), "31 of 100 shares", "70 are in use by ns/p")
	n.admit(n.simple("fits", 1, 30))
}

func TestAPodWhoseInitContainerAndAppUseSeveralGPUs(t *testing.T) {
	n := newNode(t, "A100-80GB", "A100-80GB", "A30-24GB").up()
	two := []contract.Grant{n.grant(0, 25), n.grant(1, 25)}
	p := n.admit(n.pod(testkit.MakePod("ns", "p").InitContainer("i", testkit.Shares("50")).Container("a", testkit.Shares("50")), plan{"i": two, "a": two}))
	for _, c := range []string{"i", "a"} {
		if diff := cmp.Diff(on{gpu(0): 25, gpu(1): 25}, n.on(p, c, share)); diff != "" {
			t.Errorf("container %s (-want +got):\n%s", c, diff)
		}
	}
}

func TestSidecarsKeepTheirDevices(t *testing.T) {
	n := newNode(t, "A100-80GB").up()
	p := n.admit(n.pod(testkit.MakePod("ns", "p").InitContainer("s", testkit.Shares("20"), testkit.Sidecar).Container("a", testkit.Shares("20")),
		plan{"s": {n.grant(0, 20)}, "a": {n.grant(0, 20)}}))
	s, _ := n.kubelet.Devices(p.UID, "s", share)
	a, _ := n.kubelet.Devices(p.UID, "a", share)
	for _, id := range s {
		for _, other := range a {
			if id == other {
				t.Errorf("both hold %s", id)
			}
		}
	}
}

// 20Gi are 25 shares of an A100-80GB, and of an A30 84, but the kubelet counts
// what they take on the largest GPU.
func TestMemoryRequestsAreExactAlthoughTheKubeletCountsLess(t *testing.T) {
	n := newNode(t, "A30-24GB").up()
	exact := contract.Grant{GPU: gpu(0), Shares: 84, MemoryMiB: 20480}
	p := n.admit(n.pod(testkit.MakePod("ns", "p").Container("main", testkit.Shares("25")), plan{"main": {exact}}))
	if diff := cmp.Diff(on{gpu(0): 25}, n.on(p, "main", share)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// The kubelet has 75 devices left; in truth there is room for 16 shares.
	n.refused(n.simple("big", 0, 17), "17 of 100 shares", "84 are in use by ns/p")
	n.admit(n.simple("small", 0, 16))
}

func TestRefusalsSayWhichPodWhatAndWhatToDo(t *testing.T) {
	n := newNode(t, "A100-80GB", "A30-24GB").up()
	cases := map[string]struct {
		pod  *corev1.Pod
		want []string
	}{
		"no plan": {
			n.pod(testkit.MakePod("ns", "p1").Container("main", testkit.Shares("5")), nil),
			[]string{"pod ns/p1 has no plan", "without spec.nodeName"},
		},
		"a plan that is none": {
			n.pod(testkit.MakePod("ns", "p2").Container("main", testkit.Shares("5")).Annotation(contract.PlanAnnotation, "{"), nil),
			[]string{"pod ns/p2 has a plan that cannot be read", "Delete it"},
		},
		"a plan for another node": {
			n.pod(testkit.MakePod("ns", "p3").Container("main", testkit.Shares("5")).Annotation(contract.PlanAnnotation,
				`{"v":1,"node":"elsewhere","containers":{"main":[{"gpu":"GPU-x","shares":5,"memoryMiB":1}]}}`), nil),
			[]string{"pod ns/p3", "for node elsewhere", nodeName},
		},
		"a container that is not planned": {
			n.pod(testkit.MakePod("ns", "p4").Container("main", testkit.Shares("5")), plan{"other": {n.grant(0, 5)}}),
			[]string{"container main of pod ns/p4", "does not mention it"},
		},
		"a GPU that is not there": {
			n.pod(testkit.MakePod("ns", "p5").Container("main", testkit.Shares("5")), plan{"main": {{GPU: "GPU-gone", Shares: 5}}}),
			[]string{"container main of pod ns/p5", "GPU GPU-gone", "0 of them free", "Create the pod again"},
		},
		"whole GPUs planned in parts": {
			n.pod(testkit.MakePod("ns", "p6").Container("main", testkit.GPUs("1")), plan{"main": {n.grant(0, 50)}}),
			[]string{"container main of pod ns/p6", "parts of GPUs"},
		},
		"a number that does not divide": {
			n.pod(testkit.MakePod("ns", "p7").Container("main", testkit.Shares("7")), plan{"main": {n.grant(0, 4), n.grant(1, 4)}}),
			[]string{"container main of pod ns/p7", "does not divide over the 2 GPUs"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			err := n.kubelet.Admit(t.Context(), tc.pod)
			if err == nil {
				t.Fatal("admitted")
			}
			for _, w := range tc.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%v; want %q in it", err, w)
				}
			}
		})
	}
	// None of them is in the way of others.
	n.admit(n.simple("good", 0, 5))
	n.admit(n.simple("whole", 1, 100))
}

func TestAllocateAnswersWithCDIDevicesOnly(t *testing.T) {
	n := newNode(t, "A100-80GB", "A30-24GB").up()
	p := n.admit(n.simple("p", 0, 50))
	_, cdi := n.kubelet.Devices(p.UID, "main", share)
	if diff := cmp.Diff([]string{"tranche.dev/gpu=" + string(gpu(0)), "tranche.dev/gpu=memory-40960MiB"}, cdi); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestDevicesAreFreedWhenThePodHasEndedNotBefore(t *testing.T) {
	n := newNode(t, "A100-80GB").up()
	old := n.admit(n.simple("old", 0, 100))
	n.refused(n.pod(testkit.MakePod("ns", "early").Container("main", testkit.GPUs("1")), plan{"main": {n.grant(0, 100)}}), "in use by ns/old")
	n.kubelet.FinishPod(old.UID)
	n.admit(n.pod(testkit.MakePod("ns", "next").Container("main", testkit.GPUs("1")), plan{"main": {n.grant(0, 100)}}))
	n.kubelet.RemovePod(old.UID)
}

// The kubelet frees the devices of a pod that is deleted by force at once, but
// its containers run on for their grace period.
func TestAPodDeletedByForceHoldsItsGPUUntilItsContainersAreGone(t *testing.T) {
	n := newNode(t, "A100-80GB").up()
	old := n.admit(n.simple("old", 0, 60))
	folder := n.podFolder(old)
	n.kubelet.RemovePod(old.UID)
	n.refused(n.simple("early", 0, 60), "in use by ns/old")
	n.kubelet.EndForced(old)
	n.eventually(func() bool { return n.metric("tranche_nodeplugin_gpu_allocated_shares", "gpu", string(gpu(0))) == 0 }, says("released"))
	n.admit(n.simple("next", 0, 60))
	if folder == "" {
		t.Error("no folder")
	}
}

// kubernetes/kubernetes#137534: the kubelet may offer devices that a running
// pod holds.
func TestADeviceIsNeverGivenTwice(t *testing.T) {
	n := newNode(t, "A100-80GB").up()
	first := n.admit(n.simple("first", 0, 60))
	n.kubelet.DropInFlight(first.UID)
	second := n.admit(n.simple("second", 0, 40))
	a, _ := n.kubelet.Devices(first.UID, "main", share)
	b, _ := n.kubelet.Devices(second.UID, "main", share)
	held := map[string]bool{}
	for _, id := range append(a, b...) {
		if held[id] {
			t.Errorf("%s was given twice", id)
		}
		held[id] = true
	}
	n.kubelet.DropInFlight(first.UID)
	n.refused(n.simple("third", 0, 1), "ns/third", string(gpu(0)))
}
