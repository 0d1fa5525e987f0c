package extender

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/tranche-dev/tranche/extender/internal/fixture"
	"github.com/tranche-dev/tranche/extender/metrics"
	"github.com/tranche-dev/tranche/extender/planner"
	"github.com/tranche-dev/tranche/extender/watch"
	"github.com/tranche-dev/tranche/pkg/contract"
)

// mute does nothing outside; what bound pods do not need is missing.
type mute struct{ planner.Effects }

func (mute) ReportQueue(planner.QueueReport) {}
func (mute) Report(planner.GangReport)       {}

// BenchmarkPodMemory tells how many bytes of the heap each running pod takes in
// informers and planner together.
func BenchmarkPodMemory(b *testing.B) {
	const nodes, each = 200, 28
	const label = "default"
	client := fake.NewClientset()
	var names []string
	for i := range nodes {
		name := fmt.Sprintf("node-%05d", i)
		inv := fixture.Inventory(name, 8)
		for j := range inv.GPUs {
			inv.GPUs[j].UUID = uuidOf(name, j)
		}
		if err := client.Tracker().Add(fixture.Node(b, name, inv)); err != nil {
			b.Fatal(err)
		}
		names = append(names, name)
	}
	// As they come over the wire, each with strings of its own.
	var wire [][]byte
	for i := range nodes * each {
		node, nth := names[i%nodes], i/nodes
		pod := fixture.Bound(b, fixture.Pod(fmt.Sprintf("trainer-%d-%d", i%nodes, nth), "25"), node, map[string]contract.Grant{
			"c0": {GPU: uuidOf(node, nth/4), Shares: 25, MemoryMiB: 20480},
		})
		pod.UID, pod.ResourceVersion = uuid.NewUUID(), fmt.Sprint(1_000_000+i)
		pod.Labels = labels.Set{contract.QueueLabel: label}
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "trainer", UID: types.UID("uid"), Controller: new(true)}}
		pod.Status.Phase = corev1.PodRunning
		text, err := pod.Marshal()
		if err != nil {
			b.Fatal(err)
		}
		wire = append(wire, text)
	}
	client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, kruntime.Object, error) {
		list := &corev1.PodList{Items: make([]corev1.Pod, len(wire))}
		for i, text := range wire {
			if err := list.Items[i].Unmarshal(text); err != nil {
				return true, nil, err
			}
		}
		return true, list, nil
	})
	for b.Loop() {
		before := heap()
		o := NewOptions()
		p, err := planner.New(planner.Options{
			Resources: contract.DefaultResources(), Placement: contract.Placement(o.Placement), HoldTimeout: o.HoldTimeout, Clock: clock.RealClock{},
			Queues: true, DefaultQueue: label, Gangs: true, GangBindTimeout: o.GangBindTimeout, GangHoldTimeout: o.GangHoldTimeout,
		}, metrics.New(prometheus.NewRegistry()), mute{})
		if err != nil {
			b.Fatal(err)
		}
		ctx, cancel := context.WithCancel(b.Context())
		var parts sync.WaitGroup
		parts.Go(func() { p.Run(ctx) })
		w := watch.New(client, fixture.Gangs(b, interceptor.Funcs{}), contract.DefaultResources(), watch.Audience{
			Pods: p, Nodes: p, Usages: p, Gangs: p, Groups: p, Queues: p, Namespaces: p,
		})
		synced := make(chan struct{})
		parts.Go(func() {
			_ = w.Run(ctx, func(ctx context.Context) error {
				defer close(synced)
				return p.Rebuilt(ctx)
			})
		})
		<-synced
		if got := p.Snapshot().Ledger.Totals().Allocated; got != nodes*each*25 {
			b.Fatalf("%d shares are allocated", got)
		}
		b.ReportMetric(float64(heap()-before)/(nodes*each), "B/pod")
		cancel()
		parts.Wait()
		runtime.KeepAlive(w)
	}
}

// uuidOf is as long as those of real GPUs.
func uuidOf(node string, gpu int) contract.GPUUUID {
	return contract.GPUUUID(fmt.Sprintf("GPU-%s-4a5b-8c9d-%014d", node, gpu))
}

// heap is what is in use.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
