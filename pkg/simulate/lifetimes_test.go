//go:build !race

package simulate

import (
	"container/heap"
	"math/rand"
	"strconv"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/placement"
	trace "github.com/tranche-dev/tranche/tests/openb"
)

// ending is a pod that runs until then.
type ending struct {
	at   float64
	uid  types.UID
	pod  *Pod
	node int
}

type endings []ending

func (e endings) Len() int           { return len(e) }
func (e endings) Less(i, j int) bool { return e[i].at < e[j].at }
func (e endings) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *endings) Push(x any) {
	if v, ok := x.(ending); ok {
		*e = append(*e, v)
	}
}

func (e *endings) Pop() any {
	last := len(*e) - 1
	x := (*e)[last]
	*e = (*e)[:last]
	return x
}

// end has a pod leave its node.
func (r *replay) end(e ending) {
	r.ledger.Release(e.uid)
	n := &r.nodes[e.node]
	n.milliCPU += e.pod.MilliCPU
	n.memory += e.pod.Memory
	n.view = r.ledger.Node(n.name)
	r.changes = append(r.changes, e.node)
}

// turnover lets pods of a workload come and go: so many on average that all would
// ask for load times the GPUs if they found room, which those that find none do not
// wait for. It returns the percentage of the GPUs that is allocated, on average
// over two mean life times after two others.
func turnover(c *Cluster, pods []Pod, load float64, seed int64, choose Chooser) float64 {
	random := rand.New(rand.NewSource(seed))
	asked := int64(0)
	for i := range pods {
		asked += pods[i].Asked
	}
	capacity := c.GPUs() * 1000
	mean := load * float64(capacity) / (float64(asked) / float64(len(pods))) // in arrivals
	r := newReplay(c)
	var running endings
	var allocated, sum int64
	for i := range int(4 * mean) {
		for len(running) > 0 && running[0].at <= float64(i) {
			if e, ok := heap.Pop(&running).(ending); ok {
				r.end(e)
				allocated -= e.pod.Asked
			}
		}
		p := &pods[random.Intn(len(pods))]
		life := random.ExpFloat64() * mean
		uid := types.UID(strconv.Itoa(i))
		if node := r.place(p, uid, choose.Choose(p)); node >= 0 {
			allocated += p.Asked
			heap.Push(&running, ending{float64(i) + life, uid, p, node})
		}
		if i >= int(2*mean) {
			sum += allocated
		}
	}
	return 100 * float64(sum) / float64(capacity) / (2 * mean)
}

// The published comparison has no departures. Where pods come and go, no other
// policy is to use more of the GPUs either, on average over the workloads.
func TestLeastWasteUsesMostWherePodsComeAndGo(t *testing.T) {
	policies := []struct {
		name    string
		chooser func(*Cluster, []Pod) Chooser
	}{
		{"least-waste", leastWaste},
		{"FGD", knowing},
		{"binpack", func(*Cluster, []Pod) Chooser { return Always(placement.Binpack) }},
		{"spread", func(*Cluster, []Pod) Chooser { return Always(placement.Spread) }},
	}
	for _, load := range []float64{1, 1.3} {
		means := make([]float64, len(policies))
		var mu sync.Mutex
		var running sync.WaitGroup
		for _, w := range trace.FGD {
			c, pods := openb(t, w.Workload)
			for i, p := range policies {
				running.Go(func() {
					used := turnover(c, pods, load, 47, p.chooser(c, pods))
					t.Logf("%s, pods ask for %.0f %%: %s %.2f %%", w.Workload, 100*load, p.name, used)
					mu.Lock()
					defer mu.Unlock()
					means[i] += used / float64(len(trace.FGD))
				})
			}
		}
		running.Wait()
		for i, p := range policies {
			if t.Logf("pods ask for %.0f %%: %s %.2f %%", 100*load, p.name, means[i]); means[i] > means[0] {
				t.Errorf("pods ask for %.0f %%: %s uses %.2f %% of the GPUs, more than least-waste with %.2f %%", 100*load, p.name, means[i], means[0])
			}
		}
	}
}
