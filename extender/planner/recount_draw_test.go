package planner

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"

	"github.com/tranche-dev/tranche/extender/internal/fixture"
	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

// kindsDrawn are few, so that nodes are often equal.
var kindsDrawn = []kindOfGPU{{"A", 24576}, {"B", 40960}, {"C", 81920}}

// drawNode draws a node of that name.
func (w *recounted) drawNode(name string) *corev1.Node {
	inv := contract.Inventory{Version: 1, SharesPerGPU: units.DefaultSharesPerGPU}
	kind := draw(w.T, "kind", kindsDrawn...)
	mixed, linked := oneIn(w.T, 5, "mixed"), oneIn(w.T, 6, "linked")
	isolation := draw(w.T, "isolation", contract.IsolationNone, contract.IsolationCgroup)
	gpus := draw(w.T, "GPUs", 2, 4, 1, 3, 4, 0)
	for i := range gpus {
		if mixed {
			kind = draw(w.T, "kind", kindsDrawn...)
		}
		g := contract.GPU{UUID: gpuOf(name, i), Index: i, Model: kind.model, MemoryMiB: kind.memory, Healthy: !oneIn(w.T, 8, "sick"), NUMA: -1, Isolation: isolation}
		for to := range i {
			if linked && oneIn(w.T, 2, "link") {
				g.Links = append(g.Links, contract.Link{To: to, Type: contract.LinkNVLink, Count: 2})
			}
		}
		inv.GPUs = append(inv.GPUs, g)
	}
	node := fixture.Node(w.test, name, inv)
	switch text, err := inv.Format(); {
	case err != nil:
		w.wrong("%v", err)
	case w.foreign && oneIn(w.T, 4, "foreign"):
		node = fixture.ForeignNode(name)
	case oneIn(w.T, 12, "broken"):
		node.Annotations[contract.InventoryAnnotation] = "{"
	default:
		node.Annotations[contract.InventoryAnnotation] = text
	}
	node.Labels = map[string]string{"zone": draw(w.T, "zone", "x", "y")}
	node.Spec.Unschedulable = oneIn(w.T, 6, "cordoned")
	if oneIn(w.T, 6, "tainted") {
		node.Spec.Taints = []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}}
	}
	node.Status.Allocatable[corev1.ResourceCPU] = resource.MustParse(draw(w.T, "cpu", "8", "16", "16", "4", "64"))
	node.Status.Allocatable[corev1.ResourceMemory] = resource.MustParse("1Ti")
	node.Status.Allocatable[corev1.ResourcePods] = resource.MustParse(draw(w.T, "pods", "110", "110", "5"))
	return node
}

// another draws a pod that is there for good: often one like another, as
// workloads make them.
func (w *recounted) another() *apiPod {
	if like := w.some(func(p *apiPod) bool { return p.like != nil }); like != nil && !oneIn(w.T, 3, "new") {
		w.made++
		pod := like.like.DeepCopy()
		pod.Name = fmt.Sprint("p", w.made)
		p := w.podOf(fixture.Created(fixture.Identify(pod), time.Duration(w.made%7)*time.Second))
		p.like = like.like
		return p
	}
	p := w.drawPod(false)
	p.like = p.object
	return p
}

// drawPod draws a pod. Probes may be anything that Filter can be asked about.
func (w *recounted) drawPod(probe bool) *apiPod {
	w.made++
	var limits []string
	memory := map[int]string{}
	for i := range draw(w.T, "containers", 1, 1, 1, 1, 1, 1, 2, 3) {
		limit := draw(w.T, "limit", "50", "30", "1 GPU", "25", "100", "10", "60", "2 GPU", "5", "memory", "memory", "75")
		if limit == "memory" {
			memory[i], limit = draw(w.T, "memory", "10Gi", "20Gi", "4Gi", "30Gi", "70Gi", "100Gi"), "1"
		}
		limits = append(limits, limit)
	}
	pod := fixture.Created(podAsking(fmt.Sprint("p", w.made), limits...), time.Duration(w.made%7)*time.Second)
	for i, amount := range memory {
		annotated(pod, contract.MemoryAnnotation+"."+pod.Spec.Containers[i].Name, amount)
	}
	if cpu := draw(w.T, "cpu", "", "1", "2", "500m", "4"); cpu != "" {
		withCPU(pod, cpu)
	}
	if len(limits) == 1 && len(memory) == 0 && oneIn(w.T, 6, "several") {
		if total, err := strconv.Atoi(limits[0]); err == nil && total%2 == 0 {
			annotated(pod, contract.CountAnnotation, draw(w.T, "count", "2", "1"))
		}
	}
	if len(limits) > 1 && oneIn(w.T, 3, "init") {
		pod.Spec.InitContainers, pod.Spec.Containers = pod.Spec.Containers[:1], pod.Spec.Containers[1:]
	}
	if oneIn(w.T, 5, "models") || w.foreign && !probe && slices.ContainsFunc(limits, func(l string) bool { return l == "1 GPU" || l == "2 GPU" }) {
		annotated(pod, contract.ModelAnnotation, draw(w.T, "models", "A", "B", "A,C", "A,B,C", "D"))
	}
	if oneIn(w.T, 8, "isolated") {
		annotated(pod, contract.IsolationAnnotation, contract.IsolationRequired)
	}
	if policy := draw(w.T, "placement", "", contract.PlacementBinpack, contract.PlacementSpread, contract.PlacementLeastWaste); policy != "" {
		annotated(pod, contract.PlacementAnnotation, string(policy))
	}
	switch {
	case !probe:
		w.drawConstraints(pod)
	case oneIn(w.T, 40, "invalid"):
		annotated(pod, contract.CountAnnotation, "none")
	case oneIn(w.T, 40, "deleting"):
		pod = deleted(pod, time.Now())
	}
	if oneIn(w.T, 2, "labelled") {
		pod.Labels[contract.QueueLabel] = "default"
	}
	return w.podOf(pod)
}

// drawConstraints draws what only rounds and the scheduler heed.
func (w *recounted) drawConstraints(pod *corev1.Pod) {
	if oneIn(w.T, 6, "selects") {
		pod.Spec.NodeSelector = map[string]string{"zone": draw(w.T, "zone", "x", "y")}
	}
	if oneIn(w.T, 6, "tolerates") {
		pod.Spec.Tolerations = []corev1.Toleration{{Key: "gpu", Operator: corev1.TolerationOpExists}}
	}
	if oneIn(w.T, 4, "important") {
		withPriority(pod, 10)
	}
	if !oneIn(w.T, 3, "open") {
		pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: contract.AdmissionGate}}
	}
}

// podOf is a pod as recount keeps it.
func (w *recounted) podOf(pod *corev1.Pod) *apiPod {
	p := &apiPod{object: pod, amounts: amountsOf(pod)}
	var err error
	p.asks, err = contract.ParsePod(pod, w.o.opts.Resources)
	p.problem = err != nil
	return p
}

// some draws one of the pods that are as asked, nil if none is.
func (w *recounted) some(are func(p *apiPod) bool) *apiPod {
	var list []*apiPod
	for _, p := range w.o.pods {
		if are(p) {
			list = append(list, p)
		}
	}
	if len(list) == 0 {
		return nil
	}
	return list[rapid.IntRange(0, len(list)-1).Draw(w.T, "pod")]
}

// observeNode tells of a node.
func (w *recounted) observeNode(object *corev1.Node) {
	n := &apiNode{object: object}
	if text, ok := object.Annotations[contract.InventoryAnnotation]; ok {
		if inv, err := contract.ParseInventory(text); err == nil {
			n.inventory = &inv
		}
	}
	w.note("%s", n)
	if !slices.Contains(w.names, object.Name) {
		w.names = append(w.names, object.Name)
	}
	w.o.nodes = slices.DeleteFunc(w.o.nodes, func(old *apiNode) bool { return old.object.Name == object.Name })
	w.o.nodes = append(w.o.nodes, n)
	w.p.ObserveNode(w.ctx, view.NodeOf(object, w.o.opts.Resources))
	w.o.workload.moved = true
	w.displaced()
}

// podAsking is a pod with a container for each limit, as the API server has it.
func podAsking(name string, limits ...string) *corev1.Pod {
	pod := fixture.Pod(name, limits...)
	for i := range pod.Spec.Containers {
		pod.Spec.Containers[i].Resources.Requests = pod.Spec.Containers[i].Resources.Limits.DeepCopy()
	}
	return pod
}
