package view

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

// Queue is what the extender keeps of a Queue object.
type Queue struct {
	Name       string
	UID        types.UID
	Generation int64
	// Deleting says that somebody wants it gone; Finalized that our finalizer
	// is on it, so that it stays until we take it off.
	Deleting, Finalized bool

	// Parent is empty for a queue at the top.
	Parent string
	// Weight is at least 1.
	Weight          int64
	Priority        int32
	Deserved, Limit QueueAmounts

	Reclaim      v1alpha1.ReclaimMode
	ReclaimDelay time.Duration
	// MinRuntime is how long pods of this queue run before they are evicted
	// for others.
	MinRuntime time.Duration
	Stop       v1alpha1.StopPolicy
	// Placement is empty if the queue leaves it to the setting.
	Placement contract.Placement
	Admission v1alpha1.AdmissionMode
	WhenFull  v1alpha1.WhenFullPolicy
	// Selector is nil if pods of all namespaces may use the queue. Of a
	// selector that cannot be read it is nobody's.
	Selector labels.Selector
	// HoldTimeout and Staleness are nil if the queue leaves them to the
	// settings.
	HoldTimeout, Staleness *time.Duration

	// Problem, if not empty, is a sentence that says what cannot be understood
	// and what to write. The amounts that it is about are absent.
	Problem string

	// Status is the last that was seen when something else changed. Nobody may
	// change it.
	Status v1alpha1.QueueStatus
}

// QueueAmounts are what a Queue names of each resource, nil or absent if it
// does not name it.
type QueueAmounts struct {
	GPU *units.Shares
	// Models are shares of one GPU model each, part of GPU.
	Models map[string]units.Shares
	// CPU is in millicores, Memory in bytes.
	CPU, Memory *int64
}

// QueueOf reads o, which it does not change, nor may the caller afterwards.
// perGPU is how many shares a GPU has.
func QueueOf(o *v1alpha1.Queue, perGPU units.Shares) *Queue {
	spec := &o.Spec
	q := &Queue{
		Name: o.Name, UID: o.UID, Generation: o.Generation,
		Deleting: o.DeletionTimestamp != nil, Finalized: slices.Contains(o.Finalizers, v1alpha1.QueueFinalizer),
		// The defaults are the CustomResourceDefinition's; an object that was
		// written before they existed lacks them.
		Parent: spec.Parent, Weight: max(int64(spec.Weight), 1), Priority: spec.Priority,
		Reclaim: or(spec.Reclaim.Policy, v1alpha1.ReclaimAny), ReclaimDelay: max(spec.Reclaim.Delay.Duration, 0),
		MinRuntime: max(spec.Reclaim.MinRuntime.Duration, 0),
		Stop:       or(spec.StopPolicy, v1alpha1.StopNone), Placement: contract.Placement(spec.Placement),
		Admission: or(spec.Admission, v1alpha1.AdmissionAuto), WhenFull: or(spec.WhenFull, v1alpha1.WhenFullHold),
		HoldTimeout: duration(spec.Gang.HoldTimeout), Staleness: duration(spec.Gang.StalenessGracePeriod),
		Status: o.Status,
	}
	r := queueReader{perGPU: perGPU}
	q.Deserved = r.amounts("deserved", spec.Deserved, up)
	q.Limit = r.amounts("limit", spec.Limit, down)
	q.Selector = r.selector(spec.NamespaceSelector)
	q.Problem = strings.Join(r.problems, "; ")
	return q
}

// queueReader collects what cannot be understood.
type queueReader struct {
	perGPU   units.Shares
	problems []string
}

func (r *queueReader) refuse(format string, args ...any) {
	r.problems = append(r.problems, fmt.Sprintf(format, args...))
}

func (r *queueReader) amounts(field string, a v1alpha1.QueueResources, round rounding) QueueAmounts {
	var out QueueAmounts
	if a.GPU != nil {
		if shares, ok := amount(*a.GPU, int64(r.perGPU), mostGPUs*int64(r.perGPU), round); ok {
			out.GPU = new(units.Shares(shares))
		} else {
			r.refuse("spec.%s.gpu is not a number of GPUs from 0 to %d; write a decimal number such as \"3.5\"", field, mostGPUs)
		}
	}
	for _, model := range slices.Sorted(maps.Keys(a.GPUModels)) {
		shares, ok := amount(a.GPUModels[model], int64(r.perGPU), mostGPUs*int64(r.perGPU), round)
		if !ok {
			r.refuse("spec.%s.gpuModels.%s is not a number of GPUs from 0 to %d; write a decimal number such as \"3.5\"", field, model, mostGPUs)
			continue
		}
		if out.Models == nil {
			out.Models = make(map[string]units.Shares, len(a.GPUModels))
		}
		out.Models[model] = units.Shares(shares)
	}
	out.CPU = r.amount(field, "cpu", a.CPU, 1000, mostMilliCPU, round, "a number of cores, at most 1000000000, such as \"16\"")
	out.Memory = r.amount(field, "memory", a.Memory, 1, mostMemory, round, "an amount of memory, at most \"64Pi\", such as \"64Gi\"")
	return out
}

func (r *queueReader) amount(field, name string, q *resource.Quantity, per, most int64, round rounding, write string) *int64 {
	if q == nil {
		return nil
	}
	n, ok := amount(*q, per, most, round)
	if !ok {
		r.refuse("spec.%s.%s cannot be counted; write %s", field, name, write)
		return nil
	}
	return &n
}

func (r *queueReader) selector(s *metav1.LabelSelector) labels.Selector {
	if s == nil || len(s.MatchLabels)+len(s.MatchExpressions) == 0 {
		return nil
	}
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		r.refuse("spec.namespaceSelector is not a label selector: %v; write matchLabels or matchExpressions as Kubernetes defines them", err)
		// To let everybody in would be the opposite of what was meant.
		return labels.Nothing()
	}
	return selector
}

func or[T ~string](value, otherwise T) T {
	if value == "" {
		return otherwise
	}
	return value
}

func duration(d *metav1.Duration) *time.Duration {
	if d == nil {
		return nil
	}
	return new(max(d.Duration, 0))
}

// Same says whether q and o differ in nothing but the version and the status,
// which is what our own writes change.
func (q *Queue) Same(o *Queue) bool {
	return q.Name == o.Name && q.UID == o.UID && q.Generation == o.Generation &&
		q.Deleting == o.Deleting && q.Finalized == o.Finalized &&
		q.Parent == o.Parent && q.Weight == o.Weight && q.Priority == o.Priority &&
		q.Deserved.Same(o.Deserved) && q.Limit.Same(o.Limit) &&
		q.Reclaim == o.Reclaim && q.ReclaimDelay == o.ReclaimDelay && q.MinRuntime == o.MinRuntime &&
		q.Stop == o.Stop && q.Placement == o.Placement && q.Admission == o.Admission && q.WhenFull == o.WhenFull &&
		sameSelector(q.Selector, o.Selector) &&
		equal(q.HoldTimeout, o.HoldTimeout) && equal(q.Staleness, o.Staleness) && q.Problem == o.Problem
}

// Same says whether a and o are equal.
func (a QueueAmounts) Same(o QueueAmounts) bool {
	return equal(a.GPU, o.GPU) && maps.Equal(a.Models, o.Models) && equal(a.CPU, o.CPU) && equal(a.Memory, o.Memory)
}

func sameSelector(a, b labels.Selector) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return a.String() == b.String()
}

func equal[T comparable](a, b *T) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}
