package planner

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/placement"
	"github.com/tranche-dev/tranche/pkg/units"
)

// recount is the planner as one would write it without any thought of speed. It
// keeps the objects that the API server has, and who holds what, in lists, and
// counts everything anew for every question.
//
// Verdicts, reasons, and the ratings of the policies are written from the
// contract and from the documentation of the packages; nothing of the ledger, of
// the placement's search, or of what the planner remembers is used for them.
// Three things are not its own:
//
//   - What a pod asks for and what an annotation says are read by package
//     contract, which has oracles of its own.
//   - Of several ways to put a pod with several containers onto one node, or any
//     pod onto a node with NVLinks, recount takes the planner's word for which
//     GPUs they were, and checks that the pod fits there. It rates such a node by
//     a Query of package placement, made for this one question on a ledger made
//     for it: that knows no caches, and nothing of what was before.
//   - The shape of a pod, as least-waste counts it, is waste.ShapeOf.
type recount struct {
	opts Options
	// nodes and pods are what the API server has; pods also those who have gone and
	// may run on.
	nodes []*apiNode
	pods  []*apiPod
	// queuePlacement is the policy of the default queue, empty if it has none.
	queuePlacement contract.Placement
	workload       workload
}

// apiNode is a node as it was told.
type apiNode struct {
	object *corev1.Node
	// inventory is nil if there is none that can be read.
	inventory *contract.Inventory
}

// apiPod is a pod as it was told, and what became of it.
type apiPod struct {
	object *corev1.Pod
	// like is the pod as it was made, nil if there are to be no others like it.
	like    *corev1.Pod
	asks    contract.Request
	amounts map[corev1.ResourceName]int64
	// problem says that asks cannot be understood.
	problem bool
	// refused says that all nodes of a Filter call refused it, and that it has found
	// no place since.
	refused bool
	claim   *claimed
	// kept is the node of which its hold keeps other resources than GPUs, empty if
	// none: what a round has given keeps them until the pod is seen there.
	kept string
	// given is the node that a round has found, empty if the hold is elsewhere now.
	given string
	// runs is the node on which it is seen, empty before.
	runs string
	// lingers is until when it may run on though it is gone, zero if it is not gone.
	lingers time.Time
	// waitsForNews says that its Binding is decided, and maybe done, but not seen.
	waitsForNews bool
	// heard says that the planner was told that the API server accepted it.
	heard   bool
	learned bool
}

// claimed are the GPUs of a pod.
type claimed struct {
	node    string
	charges map[contract.GPUUUID]units.Shares
	plan    contract.Plan
	// held says that it may expire, and is not decided.
	held    bool
	expires time.Time
}

func (o *recount) node(name string) *apiNode {
	i := slices.IndexFunc(o.nodes, func(n *apiNode) bool { return n.object.Name == name })
	if i < 0 {
		return nil
	}
	return o.nodes[i]
}

func (o *recount) pod(uid types.UID) *apiPod {
	i := slices.IndexFunc(o.pods, func(p *apiPod) bool { return p.object.UID == uid })
	if i < 0 {
		return nil
	}
	return o.pods[i]
}

// String is for whoever reads of a failure.
func (n *apiNode) String() string {
	text := fmt.Sprintf("node %s, zone %s, cpu %s", n.object.Name, n.object.Labels["zone"], n.object.Status.Allocatable.Cpu())
	if n.object.Spec.Unschedulable {
		text += ", cordoned"
	}
	if len(n.object.Spec.Taints) > 0 {
		text += ", tainted"
	}
	if n.inventory == nil {
		return text + fmt.Sprintf(", no inventory, foreign %v", n.foreign())
	}
	for _, g := range n.gpus() {
		text += fmt.Sprintf(", %s %dMi %s", g.Model, g.MemoryMiB, g.Isolation)
		if !g.Healthy {
			text += " sick"
		}
		for _, l := range g.Links {
			text += fmt.Sprintf("-%d", l.To)
		}
	}
	return text
}

func (p *apiPod) String() string {
	text := fmt.Sprintf("pod %s", p.object.Name)
	if gated(p.object) {
		text += ", gated"
	}
	if p.refused {
		text += ", refused"
	}
	if p.claim != nil {
		text += fmt.Sprintf(", held %v until %v: %v", p.claim.held, p.claim.expires, p.claim.charges)
	}
	return text + fmt.Sprintf(", asks %+v, amounts %v, queue %q, priority %d, selects %v, tolerates %v, kept %q, given %q, runs %q", p.asks, p.amounts,
		p.object.Labels[contract.QueueLabel], priority(p.object), p.object.Spec.NodeSelector, p.object.Spec.Tolerations, p.kept, p.given, p.runs)
}

// gpus are those of a node, in the order of their index.
func (n *apiNode) gpus() []contract.GPU {
	if n == nil || n.inventory == nil {
		return nil
	}
	return n.inventory.GPUs
}

// foreign says that another device plugin offers the node's GPUs.
func (n *apiNode) foreign() bool {
	_, annotated := n.object.Annotations[contract.InventoryAnnotation]
	q := n.object.Status.Allocatable["nvidia.com/gpu"]
	return !annotated && q.Sign() > 0
}

// free are the shares that a node's GPUs have left beside all pods but one.
func (o *recount) free(n *apiNode, but *apiPod) []units.Shares {
	list := make([]units.Shares, len(n.gpus()))
	for i := range list {
		list[i] = n.inventory.SharesPerGPU
	}
	for _, p := range o.pods {
		if p == but || p.claim == nil || p.claim.node != n.object.Name {
			continue
		}
		for i := range list {
			list[i] -= p.claim.charges[n.inventory.GPUs[i].UUID]
		}
	}
	return list
}

// amountsOf are what a pod requests besides GPUs' shares, processors in
// thousandths.
func amountsOf(pod *corev1.Pod) map[corev1.ResourceName]int64 {
	sum := map[corev1.ResourceName]int64{corev1.ResourcePods: 1}
	for i := range pod.Spec.Containers {
		for name, q := range pod.Spec.Containers[i].Resources.Requests {
			sum[name] += amount(name, q)
		}
	}
	for i := range pod.Spec.InitContainers { // they run alone, one after the other
		for name, q := range pod.Spec.InitContainers[i].Resources.Requests {
			sum[name] = max(sum[name], amount(name, q))
		}
	}
	return sum
}

func amount(name corev1.ResourceName, q resource.Quantity) int64 {
	if name == corev1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}

// left is what a node has of a resource beside all pods but one.
func (o *recount) left(n *apiNode, name corev1.ResourceName, but *apiPod) int64 {
	sum := amount(name, n.object.Status.Allocatable[name])
	for _, p := range o.pods {
		if p != but && (p.runs == n.object.Name || p.runs == "" && p.kept == n.object.Name) {
			sum -= p.amounts[name]
		}
	}
	return sum
}

// open says whether kube-scheduler's own filters would let the pod onto the node.
func (o *recount) open(p *apiPod, n *apiNode) bool {
	tolerates := func(key string) bool {
		return slices.ContainsFunc(p.object.Spec.Tolerations, func(t corev1.Toleration) bool { return t.Key == key })
	}
	if n.object.Spec.Unschedulable && !tolerates(corev1.TaintNodeUnschedulable) {
		return false
	}
	for _, t := range n.object.Spec.Taints {
		if !tolerates(t.Key) {
			return false
		}
	}
	for key, value := range p.object.Spec.NodeSelector {
		if n.object.Labels[key] != value {
			return false
		}
	}
	for name, wants := range p.amounts {
		if wants > 0 && wants > o.left(n, name, p) {
			return false
		}
	}
	return true
}

// wholeOnly says whether another device plugin could serve the pod.
func (p *apiPod) wholeOnly() bool {
	if len(p.asks.Models) > 0 || p.asks.RequireIsolation {
		return false
	}
	return !slices.ContainsFunc(p.asks.Demands, func(d contract.Demand) bool { return !d.Whole })
}

// suits says whether a pod may use a GPU, whatever is free on it.
func (p *apiPod) suits(g *contract.GPU) bool {
	return (len(p.asks.Models) == 0 || slices.Contains(p.asks.Models, g.Model)) && (!p.asks.RequireIsolation || g.Isolation == contract.IsolationCgroup)
}

// need is what a container takes of a GPU of perGPU shares; more than that if it
// is too big for it.
func need(d *contract.Demand, g *contract.GPU, perGPU units.Shares) units.Shares {
	switch {
	case d.Whole:
		return perGPU
	case d.Memory > g.MemoryMiB:
		return perGPU + 1
	case d.Memory > 0:
		return units.Shares((int64(d.Memory)*int64(perGPU) + int64(g.MemoryMiB) - 1) / int64(g.MemoryMiB))
	default:
		return d.Shares
	}
}

// verdict says why Filter has to refuse a node for a pod; empty: it takes it.
func (o *recount) verdict(p *apiPod, name string) Reason {
	switch {
	case p.object.DeletionTimestamp != nil:
		return Deleting
	case p.problem:
		return Invalid
	case p.claim != nil && !p.claim.held && name != p.claim.node:
		return Decided
	case p.claim != nil && !p.claim.held:
		return ""
	}
	return o.fits(p, o.node(name))
}

// fits says why a node's GPUs do not take a pod that is not bound.
func (o *recount) fits(p *apiPod, n *apiNode) Reason {
	switch {
	case n != nil && n.foreign() && p.wholeOnly():
		return "" // the other plugin's business
	case n == nil, n.inventory == nil:
		return placement.NoInventory
	case len(n.gpus()) == 0:
		return placement.NoGPUs
	}
	free := o.free(n, p)
	if len(p.asks.Demands) == 1 {
		return p.lacks(n, free)
	}
	if p.together(n, free, false) {
		return ""
	}
	for i := range free {
		free[i] = n.inventory.SharesPerGPU
	}
	switch {
	case p.together(n, free, false):
		return someLater
	case p.together(n, free, true):
		return placement.Unhealthy
	default:
		return never
	}
}

// Classes of reasons: of a pod with several containers it only matters what would
// help, since which of several true reasons is told is a matter of taste.
const (
	someLater Reason = "it would fit if others left"
	never     Reason = "it would not fit if the node were empty and healthy"
)

// classOf says which class a reason is in.
func classOf(r Reason) Reason {
	switch r {
	case placement.NoWholeGPU, placement.NotEnoughFree, placement.NotEnoughGPUs, placement.NotTogether:
		return someLater
	case placement.NoSuchModel, placement.NoIsolation, placement.TooBig, placement.TooFewGPUs, placement.TooBigTogether:
		return never
	default:
		return r
	}
}

// lacks says which condition of a pod's only container too few GPUs meet, the
// conditions that only a person can change first.
func (p *apiPod) lacks(n *apiNode, free []units.Shares) Reason {
	d := &p.asks.Demands[0]
	var model, isolated, sized, healthy, roomy int
	for i := range n.inventory.GPUs {
		g := &n.inventory.GPUs[i]
		needs := need(d, g, n.inventory.SharesPerGPU)
		switch {
		case len(p.asks.Models) > 0 && !slices.Contains(p.asks.Models, g.Model):
			continue
		case !p.suits(g):
			model++
			continue
		case needs > n.inventory.SharesPerGPU:
			model, isolated = model+1, isolated+1
			continue
		}
		model, isolated, sized = model+1, isolated+1, sized+1
		if g.Healthy {
			healthy++
			if needs <= free[i] {
				roomy++
			}
		}
	}
	switch {
	case roomy >= d.Count:
		return ""
	case model == 0:
		return placement.NoSuchModel
	case model >= d.Count && isolated < d.Count:
		return placement.NoIsolation
	case isolated > 0 && sized == 0:
		return placement.TooBig
	case sized < d.Count:
		return placement.TooFewGPUs
	case healthy < d.Count:
		return placement.Unhealthy
	case d.Count > 1:
		return placement.NotEnoughGPUs
	case d.Whole:
		return placement.NoWholeGPU
	default:
		return placement.NotEnoughFree
	}
}

// together tries every set of GPUs for every container. With cured it ignores that
// GPUs are unhealthy.
func (p *apiPod) together(n *apiNode, free []units.Shares, cured bool) bool {
	gpus := n.inventory.GPUs
	sets := make([]int, len(p.asks.Demands))
	roomy := func(upTo int) bool {
		for g := range gpus {
			if takes := p.peak(n, sets[:upTo], g); takes > 0 && takes > free[g] {
				return false
			}
		}
		return true
	}
	var try func(at int) bool
	try = func(at int) bool {
		if at == len(sets) {
			return true
		}
		for set := range 1 << len(gpus) {
			if p.asks.SameGPUs && at > 0 && set != sets[0] {
				continue
			}
			count := 0
			for g := range gpus {
				if set>>g&1 == 0 {
					continue
				}
				if count++; !p.suits(&gpus[g]) || !gpus[g].Healthy && !cured {
					count = -100
				}
			}
			if sets[at] = set; count == p.asks.Demands[at].Count && roomy(at+1) && try(at+1) {
				return true
			}
		}
		return false
	}
	return try(0)
}

// peak is what a pod is charged for GPU g if container i is on the GPUs of
// sets[i]: Kubernetes' rule for effective requests. Ordinary init containers run
// one after the other before the others, sidecars beside all that start later.
func (p *apiPod) peak(n *apiNode, sets []int, g int) units.Shares {
	var running, peak units.Shares
	for i, set := range sets {
		if set>>g&1 == 0 {
			continue
		}
		d := &p.asks.Demands[i]
		s := need(d, &n.inventory.GPUs[g], n.inventory.SharesPerGPU)
		if d.Role == contract.RoleInit {
			peak = max(peak, running+s)
			continue
		}
		running += s
	}
	return max(peak, running)
}

// misplaced says what is wrong with a plan for a pod, empty if nothing: it must
// give every container what it asks for, on GPUs that it may use, that are
// healthy and have room beside all others.
func (o *recount) misplaced(p *apiPod, plan contract.Plan) string {
	n := o.node(plan.Node)
	if n == nil || n.inventory == nil || len(plan.Containers) != len(p.asks.Demands) {
		return "it is for no such node, or not for the pod's containers"
	}
	sets := make([]int, len(p.asks.Demands))
	for i := range p.asks.Demands {
		d := &p.asks.Demands[i]
		if len(plan.Containers[d.Name]) != d.Count {
			return "container " + d.Name + " has another number of GPUs than it asks for"
		}
		for _, grant := range plan.Containers[d.Name] {
			at := slices.IndexFunc(n.inventory.GPUs, func(g contract.GPU) bool { return g.UUID == grant.GPU })
			if at < 0 || sets[i]>>at&1 == 1 {
				return "container " + d.Name + " has a GPU that the node does not have, or one twice"
			}
			g := &n.inventory.GPUs[at]
			memory := d.Memory
			if memory == 0 {
				memory = units.MiB(int64(grant.Shares) * int64(g.MemoryMiB) / int64(n.inventory.SharesPerGPU))
			}
			if !g.Healthy || !p.suits(g) || grant.Shares != need(d, g, n.inventory.SharesPerGPU) || grant.MemoryMiB != memory {
				return "container " + d.Name + " has a GPU that it may not have, or not what it asks for of it"
			}
			sets[i] |= 1 << at
		}
		if p.asks.SameGPUs && sets[i] != sets[0] {
			return "containers that must share GPUs do not"
		}
	}
	for g, free := range o.free(n, p) {
		if takes := p.peak(n, sets, g); takes > 0 && takes > free {
			return "a GPU has no room for it"
		}
	}
	return ""
}

// chargesOf is what a plan that is not misplaced costs.
func (o *recount) chargesOf(p *apiPod, plan contract.Plan) map[contract.GPUUUID]units.Shares {
	n := o.node(plan.Node)
	charges := map[contract.GPUUUID]units.Shares{}
	for g := range n.inventory.GPUs {
		sets := make([]int, len(p.asks.Demands))
		for i, d := range p.asks.Demands {
			if slices.ContainsFunc(plan.Containers[d.Name], func(grant contract.Grant) bool { return grant.GPU == n.inventory.GPUs[g].UUID }) {
				sets[i] = 1 << g
			}
		}
		if s := p.peak(n, sets, g); s > 0 {
			charges[n.inventory.GPUs[g].UUID] = s
		}
	}
	return charges
}

// inOrder are the pods that wait, as rounds serve them: those with our gate and
// those that all nodes refused, as long as they hold nothing.
func (o *recount) inOrder() []*apiPod {
	var list []*apiPod
	for _, p := range o.pods {
		if (p.refused || gated(p.object)) && p.claim == nil && p.object.DeletionTimestamp == nil && p.runs == "" && p.lingers.IsZero() {
			list = append(list, p)
		}
	}
	slices.SortStableFunc(list, func(a, b *apiPod) int {
		switch {
		case priority(a.object) != priority(b.object):
			return int(priority(b.object) - priority(a.object))
		case !a.object.CreationTimestamp.Equal(&b.object.CreationTimestamp):
			return a.object.CreationTimestamp.Compare(b.object.CreationTimestamp.Time)
		default:
			return strings.Compare(a.object.Name, b.object.Name)
		}
	})
	return list
}

func gated(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool { return g.Name == contract.AdmissionGate })
}

func priority(pod *corev1.Pod) int32 {
	if pod.Spec.Priority == nil {
		return 0
	}
	return *pod.Spec.Priority
}

func deleted(pod *corev1.Pod, now time.Time) *corev1.Pod {
	pod = newer(pod)
	pod.DeletionTimestamp = &metav1.Time{Time: now}
	return pod
}

// newer is a copy that may be changed.
func newer(pod *corev1.Pod) *corev1.Pod {
	pod = pod.DeepCopy()
	pod.ResourceVersion += "1"
	return pod
}
