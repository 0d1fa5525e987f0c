package mutate

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

// hint adds a warning. The API server cuts warnings off at 256 characters, so
// they are kept shorter than refusals.
func (r *review) hint(format string, args ...any) {
	r.warnings = append(r.warnings, fmt.Sprintf(format, args...))
}

// perContainer are annotations that may have ".CONTAINER" appended.
var perContainer = []string{contract.FractionAnnotation, contract.MemoryAnnotation}

// wishes are the annotations that say what a pod's GPUs must be like.
var wishes = []string{
	contract.CountAnnotation, contract.ModelAnnotation, contract.PlacementAnnotation, contract.IsolationAnnotation,
}

// podAnnotations are all that a user may write on a pod, podLabels likewise.
var (
	podAnnotations = slices.Concat(perContainer, wishes, []string{
		contract.ContainerAnnotation, contract.GangMinCountAnnotation, contract.SimRunForAnnotation,
	})
	podLabels = []string{contract.QueueLabel, contract.GangLabel}
)

// written are annotations that the system puts on pods; checkForgery looks
// after those that a user may not bring.
var written = []string{contract.PlanAnnotation, contract.RetryAnnotation, contract.TranslatedFromAnnotation}

// elsewhere says where keys belong that are for other objects.
var elsewhere = map[string]string{
	contract.DefaultFractionAnnotation: "an annotation of the namespace",
	contract.InjectLabel:               "a label of the namespace",
	contract.InventoryAnnotation:       "an annotation that the node plugin writes on nodes",
	contract.NodeLabel:                 "a label of nodes",
}

// hintUnknownKeys finds keys under Tranche's prefix that mean nothing on a pod.
func (r *review) hintUnknownKeys() {
	unknownKeys(r, "annotation", r.in.Pod.Annotations, slices.Concat(podAnnotations, written), "label", podLabels)
	unknownKeys(r, "label", r.in.Pod.Labels, podLabels, "annotation", podAnnotations)
}

// unknownKeys looks through keys, of one kind, for what is none of known; other
// lists what would be right on the other kind.
func unknownKeys(r *review, kind string, keys map[string]string, known []string, otherKind string, other []string) {
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if !strings.HasPrefix(key, contract.Prefix) || slices.Contains(known, key) {
			continue
		}
		base, name, dotted := strings.Cut(strings.TrimPrefix(key, contract.Prefix), ".")
		base = contract.Prefix + base
		if dotted && slices.Contains(perContainer, base) && slices.Contains(known, base) {
			continue
		}
		switch near := nearest(base, known); {
		case elsewhere[key] != "":
			r.hint("%s %s has no effect on a pod: it is %s", kind, key, elsewhere[key])
		case slices.Contains(other, base):
			r.hint("%s %s has no effect: write it as %s", kind, key, article(otherKind))
		case near == "":
			r.hint("%s %s is unknown and has no effect", kind, key)
		case dotted && slices.Contains(perContainer, near):
			r.hint("%s %s is unknown and has no effect; did you mean %s.%s?", kind, key, near, name)
		default:
			r.hint("%s %s is unknown and has no effect; did you mean %s?", kind, key, near)
		}
	}
}

func article(noun string) string {
	if noun == "annotation" {
		return "an annotation"
	}
	return "a label"
}

// nearest returns the candidate with the fewest changed characters, the first
// among equals, or "" if more than half of its own would have to change.
func nearest(key string, candidates []string) string {
	best, fewest := "", 0
	for _, c := range candidates {
		if slices.Contains(written, c) {
			continue // nobody means to write those
		}
		d := distance(key, c)
		if d <= len(strings.TrimPrefix(c, contract.Prefix))/2 && (best == "" || d < fewest) {
			best, fewest = c, d
		}
	}
	return best
}

// distance is the Levenshtein distance in bytes. Annotation keys have at most
// 63 characters behind the prefix, so the square is small.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// hintIdleWishes finds pods that describe a GPU but do not ask for any.
func (r *review) hintIdleWishes() {
	if len(r.gpu) > 0 || len(r.refusals) > 0 {
		return
	}
	for _, key := range wishes {
		if _, ok := r.in.Pod.Annotations[key]; ok {
			r.hint("annotation %s has no effect: no container asks for a GPU; ask with %s or the annotation %s",
				key, r.in.Defaults.Resources.Share, contract.FractionAnnotation)
		}
	}
}

// hintIdleContainer finds pods that name a container for annotations which they
// do not have, or have for each container by itself.
func (r *review) hintIdleContainer() {
	if _, ok := r.in.Pod.Annotations[contract.ContainerAnnotation]; !ok || len(r.refusals) > 0 {
		return
	}
	for _, key := range append([]string{contract.CountAnnotation}, perContainer...) {
		if _, ok := r.in.Pod.Annotations[key]; ok {
			return
		}
	}
	r.hint("annotation %s has no effect: it says which container %s, %s and %s mean, without a container's name behind them, and the pod has none of these",
		contract.ContainerAnnotation, contract.FractionAnnotation, contract.MemoryAnnotation, contract.CountAnnotation)
}

// hintModels finds pods that no GPU of the cluster suits. They are created all
// the same and wait: the model may be on a node that is still to come.
func (r *review) hintModels() {
	if len(r.request.Models) == 0 || len(r.request.Demands) == 0 || len(r.in.Fleet.Models) == 0 {
		return
	}
	var most units.MiB
	found := false
	for _, m := range r.in.Fleet.Models {
		if r.request.AllowsModel(m.Name) {
			found, most = true, max(most, m.Memory)
		}
	}
	if !found {
		names := make([]string, 0, len(r.in.Fleet.Models))
		for _, m := range r.in.Fleet.Models {
			names = append(names, m.Name)
		}
		r.hint("no node has a GPU of the model %s now, so the pod will wait; there are: %s",
			strings.Join(r.request.Models, " or "), strings.Join(names, ", "))
		return
	}
	for _, d := range r.request.Demands {
		if d.Memory > most && d.Memory <= r.in.Fleet.largest().Memory {
			r.hint("container %s asks for %s on one GPU, but no GPU of the allowed models has more than %s now, so the pod will wait",
				d.Name, memory(d.Memory), memory(most))
		}
	}
}

func (r *review) hintNoInventory() {
	if len(r.in.Fleet.Models) > 0 {
		return
	}
	for _, d := range r.request.Demands {
		if d.Memory > 0 {
			r.hint("no node has reported its GPUs yet, so container %s counts as 1 of %d shares per GPU until it is placed",
				d.Name, r.in.Defaults.Resources.PerGPU)
		}
	}
}

// hintWeakIsolation finds pods that share GPUs and could see their neighbours.
func (r *review) hintWeakIsolation() {
	if !slices.ContainsFunc(r.request.Demands, func(d contract.Demand) bool { return !d.Whole }) {
		return
	}
	if r.in.Pod.Spec.HostPID {
		r.hint("the pod shares GPUs and uses hostPID: it sees the processes of the pods beside it")
	}
	for _, c := range containers(&r.in.Pod.Spec) {
		if privileged(c.SecurityContext) {
			r.hint("container %s is privileged in a pod that shares GPUs: it sees every GPU of its node, whatever it asks for", c.Name)
		}
	}
}

// hintInitContainer finds pods that a kubelet may end when it restarts. It admits
// all pods of its node anew then, and knows how to spare running containers but
// not those that have ended (devicesToAllocate of its device manager, as of
// 1.37): their devices must be there and healthy at that moment.
func (r *review) hintInitContainer() {
	for _, d := range r.request.Demands {
		if d.Role == contract.RoleInit {
			r.hint("init container %s has a GPU: a kubelet that restarts while that GPU or the node plugin is out of order ends the running pod, maybe as Succeeded; do its work in the app container", d.Name)
			return
		}
	}
}

func privileged(s *corev1.SecurityContext) bool {
	return s != nil && s.Privileged != nil && *s.Privileged
}
