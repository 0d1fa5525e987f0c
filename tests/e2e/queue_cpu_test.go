package e2e

import (
	"context"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/contract"
	. "github.com/tranche-dev/tranche/tests/testkit"
)

func cpuLimit(cores string) term {
	return func(s *v1alpha1.QueueSpec) { s.Limit.CPU = new(resource.MustParse(cores)) }
}

// cpu is a pod of a queue without GPUs.
func (p *plot) cpu(queue, name, cores string) *PodBuilder {
	return MakePod(p.ns, name).Label(contract.QueueLabel, p.q(queue)).Container("main", Limit("cpu", cores))
}

// Pods without GPUs wait for their queue's cpu, and kube-scheduler places them
// without asking the extender.
func testPodsWithoutGPUsHaveQuotaToo(p *plot) {
	p.queue("a", cpuLimit("3"))
	p.queue("free")
	before, err := countFilterCalls(p.Context(), p.kube)
	if err != nil {
		p.Fatal(err)
	}
	// The webhook has to know the queue: until it does, it holds pods too, but
	// for another reason.
	if pod := p.create(p.cpu("free", "free", "2").Obj()); len(pod.Spec.SchedulingGates) > 0 {
		p.Logf("pod of a queue without cpu quota: gates %v", pod.Spec.SchedulingGates)
	}
	first := p.create(p.cpu("a", "first", "2").Obj())
	p.boundAt(first)
	second := p.create(p.cpu("a", "second", "2").Obj())
	if len(second.Spec.SchedulingGates) != 1 {
		p.Errorf("gates %v, want the one of the queue", second.Spec.SchedulingGates)
	}
	p.wantEvent(second, "QueueWaiting", "ueue "+p.q("a")+" uses 2 cpu of its limit of 3 cpu, and the pod asks for 2 cpu")
	p.change("a", cpuLimit("4"))
	p.boundAt(second)
	p.wantRunning(map[string]int{"a": 2, "free": 1})
	p.wantStatus("a", "uses 4 cores", func(s *v1alpha1.QueueStatus) bool {
		return s.Allocated.CPU != nil && s.Allocated.CPU.Value() == 4 && gpus(s.Allocated) == 0
	})
	after, err := countFilterCalls(p.Context(), p.kube)
	if err != nil {
		p.Fatal(err)
	}
	if after != before {
		p.Errorf("%v filter calls for pods without GPUs", after-before)
	}
}

// A gang starts whole although one of its members asks for no GPU.
func testGangWithMemberWithoutGPUStartsWhole(p *plot) {
	p.queue("a", limit("1"))
	member := func(b *PodBuilder) *corev1.Pod {
		return b.Label(contract.GangLabel, "mixed").Annotation(contract.GangMinCountAnnotation, strconv.Itoa(3)).Obj()
	}
	p.create(member(p.cpu("a", "driver", "1")))
	for i := range 2 {
		p.create(member(p.pod("a", fmt.Sprintf("worker-%d", i))))
	}
	eventually(p.T, "the gang says what it waits for", func(ctx context.Context) error {
		var g v1alpha1.Gang
		if err := p.objects.Get(ctx, ctrlclient.ObjectKey{Namespace: p.ns, Name: "mixed"}, &g); err != nil {
			return err
		}
		if len(g.Status.Reasons) == 0 || g.Status.Reasons[0].Type != v1alpha1.ReasonQueueTooSmall {
			return fmt.Errorf("reasons %+v", g.Status.Reasons)
		}
		return nil
	})
	steadily(p.T, "none of it starts", func(context.Context) error { return p.isRunning(map[string]int{"a": 0}) })
	p.change("a", limit("2"))
	p.wantRunning(map[string]int{"a": 3})
	driver, err := p.client.CoreV1().Pods(p.ns).Get(p.Context(), "driver", metav1.GetOptions{})
	if err != nil {
		p.Fatal(err)
	}
	if plan, err := planOf(driver); err == nil && len(plan.Containers) > 0 {
		p.Errorf("the member without GPUs has the plan %+v", plan)
	}
}
