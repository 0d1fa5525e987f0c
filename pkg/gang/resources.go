package gang

import (
	"cmp"
	"slices"
	"unique"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	podresource "k8s.io/component-helpers/resource"
)

// Resources is what a pod requests, or a node has left, as kube-scheduler's
// NodeResourcesFit counts it. The zero value is nothing. It is copied freely:
// Scalars is never written to after it was made, so copies share it. That, and
// names that are kept once, make a pod's Resources less than 100 bytes.
type Resources struct {
	// MilliCPU is in thousandths of a core, Memory and Ephemeral storage in
	// bytes. What a node has left may be negative.
	MilliCPU, Memory, Ephemeral int64
	// Pods is 1 for a pod and, for a node, how many more it takes.
	Pods int64
	// Scalars are all other resources, such as hugepages and GPUs, sorted by
	// name, without zeros; nil if there are none.
	Scalars []Scalar
}

// Scalar is an amount of a resource that is counted in whole numbers.
type Scalar struct {
	Name  corev1.ResourceName
	Value int64
}

// RequestsOf returns what kube-scheduler counts for pod: init containers,
// sidecars, pod-level requests, overhead and a resize under way included.
func RequestsOf(pod *corev1.Pod) Resources {
	if !countable(pod) {
		return Resources{MilliCPU: most, Memory: most, Pods: 1}
	}
	// The options are those of a scheduler with all features: what a feature
	// adds is in the pod's status only where the feature is on.
	r := of(podresource.PodRequests(pod, podresource.PodResourcesOptions{
		UseStatusResources: true,
		InPlacePodLevelResourcesVerticalScalingEnabled: true,
		UseDRANodeAllocatableResourceClaimStatus:       true,
	}))
	r.Pods = 1
	return r
}

// AllocatableOf returns what an empty node offers.
func AllocatableOf(list corev1.ResourceList) Resources { return of(list) }

// most bounds every amount: 2^50 is a pebibyte, or a million million cores, so
// that the sum over the pods of a node stays far from 2^63.
const most = int64(1) << 50

// of reads a list; an amount that cannot be counted is most.
func of(list corev1.ResourceList) Resources {
	var r Resources
	for name, q := range list {
		switch name {
		case corev1.ResourceCPU:
			r.MilliCPU = bounded(q, q.MilliValue)
		case corev1.ResourceMemory:
			r.Memory = bounded(q, q.Value)
		case corev1.ResourceEphemeralStorage:
			r.Ephemeral = bounded(q, q.Value)
		case corev1.ResourcePods:
			r.Pods = bounded(q, q.Value)
		default:
			if v := bounded(q, q.Value); v != 0 {
				// Every decoded object has its own copy of the name.
				r.Scalars = append(r.Scalars, Scalar{unique.Make(name).Value(), v})
			}
		}
	}
	slices.SortFunc(r.Scalars, func(a, b Scalar) int { return cmp.Compare(a.Name, b.Name) })
	r.Scalars = slices.Clip(r.Scalars)
	return r
}

func bounded(q resource.Quantity, value func() int64) int64 {
	// Beyond most, value may have wrapped around.
	if !tame(q) || q.CmpInt64(most) > 0 {
		return most
	}
	return min(max(value(), 0), most)
}

// tame says whether q can be computed with. A quantity such as 1e999999999 is
// three numbers until the first sum or comparison writes out its digits.
func tame(q resource.Quantity) bool {
	if _, ok := q.AsInt64(); ok {
		return true
	}
	const digits = 40
	scale := int64(q.AsDec().Scale()) // q is a copy
	return -digits <= scale && scale <= digits
}

// countable says whether all that pod asks for can be added up.
func countable(pod *corev1.Pod) bool {
	ok := listTame(pod.Spec.Overhead)
	if pod.Spec.Resources != nil {
		ok = ok && listTame(pod.Spec.Resources.Requests)
	}
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			ok = ok && listTame(containers[i].Resources.Requests)
		}
	}
	return ok
}

func listTame(list corev1.ResourceList) bool {
	for _, q := range list {
		if !tame(q) {
			return false
		}
	}
	return true
}

// Add returns r and o together.
func (r Resources) Add(o Resources) Resources { return r.combine(o, 1) }

// Sub returns r without o; amounts may become negative.
func (r Resources) Sub(o Resources) Resources { return r.combine(o, -1) }

func (r Resources) combine(o Resources, sign int64) Resources {
	return Resources{
		MilliCPU:  r.MilliCPU + sign*o.MilliCPU,
		Memory:    r.Memory + sign*o.Memory,
		Ephemeral: r.Ephemeral + sign*o.Ephemeral,
		Pods:      r.Pods + sign*o.Pods,
		Scalars:   combineScalars(r.Scalars, o.Scalars, sign),
	}
}

// combineScalars merges two sorted lists into a new one.
func combineScalars(a, b []Scalar, sign int64) []Scalar {
	if len(b) == 0 {
		return a
	}
	sum := make([]Scalar, 0, len(a)+len(b))
	for len(a) > 0 || len(b) > 0 {
		switch {
		case len(b) == 0 || len(a) > 0 && a[0].Name < b[0].Name:
			sum, a = append(sum, a[0]), a[1:]
		case len(a) == 0 || b[0].Name < a[0].Name:
			sum, b = append(sum, Scalar{b[0].Name, sign * b[0].Value}), b[1:]
		default:
			if v := a[0].Value + sign*b[0].Value; v != 0 {
				sum = append(sum, Scalar{a[0].Name, v})
			}
			a, b = a[1:], b[1:]
		}
	}
	if len(sum) == 0 {
		return nil
	}
	return sum
}

// Of returns r's amount of one scalar resource.
func (r Resources) Of(name corev1.ResourceName) int64 {
	for _, s := range r.Scalars { // there are a handful
		if s.Name == name {
			return s.Value
		}
	}
	return 0
}

// Equal says whether both are the same amounts.
func (r Resources) Equal(o Resources) bool {
	return r.MilliCPU == o.MilliCPU && r.Memory == o.Memory && r.Ephemeral == o.Ephemeral && r.Pods == o.Pods &&
		slices.Equal(r.Scalars, o.Scalars)
}

// Fits says whether a node that has free left takes needs, and if not, the
// first resource that lacks, in kube-scheduler's order. What is not asked for
// cannot lack, even on a node that is overcommitted.
func Fits(free, needs Resources) (ok bool, lacks corev1.ResourceName) {
	n, lacks := timesFit(free, needs, 1)
	return n > 0, lacks
}

// timesFit returns how often free takes needs, at most limit, and the resource
// that allows no more; empty if limit does.
func timesFit(free, needs Resources, limit int) (n int, lacks corev1.ResourceName) {
	left := int64(limit)
	bound := func(free, need int64, name corev1.ResourceName) {
		if need > 0 && max(free, 0)/need < left {
			left, lacks = max(free, 0)/need, name
		}
	}
	bound(free.Pods, needs.Pods, corev1.ResourcePods)
	bound(free.MilliCPU, needs.MilliCPU, corev1.ResourceCPU)
	bound(free.Memory, needs.Memory, corev1.ResourceMemory)
	bound(free.Ephemeral, needs.Ephemeral, corev1.ResourceEphemeralStorage)
	for _, s := range needs.Scalars {
		bound(free.Of(s.Name), s.Value, s.Name)
	}
	return int(left), lacks
}

// times returns r n times.
func (r Resources) times(n int) Resources {
	var sum Resources
	m := int64(n)
	sum.MilliCPU, sum.Memory, sum.Ephemeral, sum.Pods = r.MilliCPU*m, r.Memory*m, r.Ephemeral*m, r.Pods*m
	for _, s := range r.Scalars {
		sum.Scalars = append(sum.Scalars, Scalar{s.Name, s.Value * m})
	}
	return sum
}
