//go:build !race

// The race detector makes this ten times as long, and nothing here is concurrent.
package simulate

import (
	"math"
	"math/rand"
	"strconv"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/placement"
)

// profile is what of kube-scheduler's configuration decides where pods go.
type profile struct {
	// gpus and others are the weights of the extender's ratings of nodes for pods
	// with GPUs and without; 0: it is not asked.
	gpus, others int64
	// scores are kube-scheduler's own, nil if they are off.
	scores func(cpu, memory float64) int64
	// percent is percentageOfNodesToScore, 0 if that is left to kube-scheduler.
	percent int
}

// What kube-scheduler's scores make of the parts of a node that are requested.
func leastAllocated(cpu, memory float64) int64 {
	return (int64(100*(1-cpu)) + int64(100*(1-memory))) / 2
}
func mostAllocated(cpu, memory float64) int64 { return (int64(100*cpu) + int64(100*memory)) / 2 }
func balanced(cpu, memory float64) int64      { return int64(100 * (1 - math.Abs(cpu-memory)/2)) }

// schedule is Replay by way of a kube-scheduler with that profile. A pod for which
// no node of its sample will do goes to the best of all: the extender has it tried
// again.
func schedule(c *Cluster, arrivals []Pod, p profile) *Outcome {
	s := &scheduler{replay: newReplay(c), cluster: c, profile: p, random: rand.New(rand.NewSource(1)), used: make([]counted, len(c.Nodes))}
	n := len(c.Nodes)
	s.sample = n * max(50-n/125, 5) / 100
	if p.percent > 0 {
		s.sample = n * p.percent / 100
	}
	s.order = s.random.Perm(n)
	chooser := LeastWaste(c)
	o := &Outcome{Capacity: c.GPUs() * 1000}
	var step Step
	for i := range arrivals {
		step.Asked += arrivals[i].Asked
		if s.schedule(&arrivals[i], types.UID(strconv.Itoa(i)), chooser.Choose(&arrivals[i])) {
			step.Placed += arrivals[i].Asked
		}
		o.Steps = append(o.Steps, step)
	}
	return o
}

type scheduler struct {
	*replay
	cluster *Cluster
	profile profile
	random  *rand.Rand
	// used is what kube-scheduler counts.
	used []counted
	// order is the order in which nodes are looked at, from next on, until sample
	// of them will do.
	order        []int
	next, sample int
}

// counted are shares and whole GPUs, which kube-scheduler counts one by one.
type counted struct{ shares, gpus int64 }

func asks(p *Pod) (c counted) {
	for _, d := range p.Request.Demands {
		if d.Whole {
			c.gpus += int64(d.Count)
		} else {
			c.shares += int64(d.Count) * int64(d.Shares)
		}
	}
	return c
}

func (s *scheduler) schedule(p *Pod, uid types.UID, policy placement.Policy) bool {
	at := s.rated(p, policy)
	best := s.choose(p, at, s.offered(p))
	if best < 0 {
		best = s.choose(p, at, s.order)
	}
	if best < 0 {
		return false
	}
	n := &s.nodes[best]
	plan, _ := at.query.PlanIn(n.view, placement.CPU(n.milliCPU))
	s.ledger.Allocate(ledger.Claim{Pod: ledger.Pod{UID: uid, Name: p.Name}, Node: n.name, Charges: plan.Charges(at.query.Roles())})
	n.milliCPU, n.memory, n.view = n.milliCPU-p.MilliCPU, n.memory-p.Memory, s.ledger.Node(n.name)
	s.changes = append(s.changes, best)
	ask := asks(p)
	s.used[best].shares += ask.shares
	s.used[best].gpus += ask.gpus
	return true
}

// offered are the nodes that kube-scheduler's filters let pass.
func (s *scheduler) offered(p *Pod) []int {
	var pass []int
	ask, looked := asks(p), 0
	for ; looked < len(s.order) && len(pass) < s.sample; looked++ {
		i := s.order[(s.next+looked)%len(s.order)]
		all, used := int64(len(s.cluster.Nodes[i].Inventory.GPUs)), s.used[i]
		if p.MilliCPU <= s.nodes[i].milliCPU && p.Memory <= s.nodes[i].memory &&
			used.shares+ask.shares <= all*int64(s.perGPU.PerGPU) && used.gpus+ask.gpus <= all {
			pass = append(pass, i)
		}
	}
	s.next = (s.next + looked) % len(s.order)
	return pass
}

// choose takes the node with the most points, one of them at random if there are
// several.
func (s *scheduler) choose(p *Pod, at *shape, nodes []int) int {
	weight := s.profile.gpus
	if len(p.Request.Demands) == 0 {
		weight = s.profile.others
	}
	var fit []int
	var names []string
	var scores []int64
	for _, i := range nodes {
		if at.scores[i] != unfit {
			fit, names, scores = append(fit, i), append(names, s.nodes[i].name), append(scores, at.scores[i])
		}
	}
	best, equal, most := -1, 0, int64(-1)
	for k, priority := range placement.Priorities(names, scores) {
		n, all := &s.nodes[fit[k]], &s.cluster.Nodes[fit[k]]
		points := 10 * weight * priority
		if s.profile.scores != nil {
			points += s.profile.scores(1-float64(n.milliCPU-p.MilliCPU)/float64(all.MilliCPU), 1-float64(n.memory-p.Memory)/float64(all.Memory))
		}
		if points > most {
			best, equal, most = fit[k], 0, points
		}
		if points == most {
			if equal++; s.random.Intn(equal) == 0 {
				best = fit[k]
			}
		}
	}
	return best
}

// What kube-scheduler adds to the extender's ratings, and whom it does not ask
// about, costs packing. With nodes rated for pods without GPUs that is next to
// nothing, and without, as shipped, not much more than what those pods waste.
func TestShippedProfileCostsLittle(t *testing.T) {
	stock := func(cpu, memory float64) int64 { return leastAllocated(cpu, memory) + balanced(cpu, memory) }
	tight := func(cpu, memory float64) int64 { return mostAllocated(cpu, memory) + balanced(cpu, memory) }
	const noBound = 100
	profiles := []struct {
		name string
		profile
		most float64 // points that it may cost
	}{
		{"nodes rated for pods without GPUs", profile{gpus: 10, others: 1}, 0.2},
		{"pods without GPUs anywhere, as shipped", profile{gpus: 10}, 2},
		{"all nodes are looked at", profile{gpus: 10, others: 1, percent: 100}, noBound},
		{"5 % of nodes are looked at", profile{gpus: 10, others: 1, percent: 5}, noBound},
		{"with the stock scores", profile{gpus: 10, others: 1, scores: stock}, noBound},
		{"with the stock scores and weight 1", profile{gpus: 1, others: 1, scores: stock}, noBound},
		{"with MostAllocated and balance", profile{gpus: 10, others: 1, scores: tight}, noBound},
		{"pods without GPUs by the stock scores", profile{gpus: 10, scores: stock}, noBound},
		{"pods without GPUs by MostAllocated and balance", profile{gpus: 10, scores: tight}, noBound},
		{"no ratings, with the stock scores", profile{scores: stock}, noBound},
	}
	for _, workload := range []string{"default", "gpuspec20"} {
		c, pods := openb(t, workload)
		drawn := Draw(pods, c, 1.3, 47)
		c, load := c.Ordered(drawn.Order), drawn.Arrivals
		ideal := Replay(c, load, LeastWaste(c))
		ideal100, _ := ideal.AllocationAt(100)
		ideal130, _ := ideal.AllocationAt(130)
		t.Logf("%s: %.2f at 100 %%, %.2f at 130 %% in the extender's hands alone", workload, ideal100, ideal130)
		for _, tc := range profiles {
			o := schedule(c, load, tc.profile)
			at100, _ := o.AllocationAt(100)
			at130, _ := o.AllocationAt(130)
			t.Logf("%s, %s: %.2f (%+.2f), %.2f (%+.2f)", workload, tc.name, at100, at100-ideal100, at130, at130-ideal130)
			if at100 < ideal100-tc.most || at130 < ideal130-tc.most {
				t.Errorf("%s, %s: %.2f at 100 %% and %.2f at 130 %%, want at most %v less than %.2f and %.2f", workload, tc.name, at100, at130, tc.most, ideal100, ideal130)
			}
		}
	}
}
