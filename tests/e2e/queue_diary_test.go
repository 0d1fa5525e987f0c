package e2e

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/tranche-dev/tranche/pkg/contract"
)

// A diary has the life of every pod of a namespace, by a watch: of a pod that
// was evicted nothing is left to look at.
type diary struct {
	mu    sync.Mutex
	lives map[types.UID]*life
	// onEviction, if set, is called with the pod and the diary locked.
	onEviction func(l *life)
}

// life is what the diary has of one pod. Times are those at which the watch told
// of it, zero before.
type life struct {
	pod *corev1.Pod
	// asked is when it was on its way out, ended when its containers were at
	// their end, or it was gone.
	bound, asked, ended time.Time
	gone                bool
}

// What can be asked of lives.
func running(l *life) bool {
	return !l.gone && l.pod.Status.Phase == corev1.PodRunning && l.pod.DeletionTimestamp == nil
}
func waiting(l *life) bool { return alive(l) && l.pod.Spec.NodeName == "" }
func alive(l *life) bool   { return !l.gone && l.pod.DeletionTimestamp == nil }

// evicted says whether the Eviction API took it: the API server says so in the
// pod's conditions.
func evicted(l *life) bool {
	return slices.ContainsFunc(l.pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Reason == "EvictionByEvictionAPI"
	})
}

func gated(l *life) bool {
	return slices.ContainsFunc(l.pod.Spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool { return g.Name == contract.AdmissionGate })
}

func queueIs(name string) func(*life) bool {
	return func(l *life) bool { return l.pod.Labels[contract.QueueLabel] == name }
}

func podIs(pod *corev1.Pod) func(*life) bool {
	return func(l *life) bool { return l.pod.UID == pod.UID }
}

func labelled(key, value string) func(*life) bool {
	return func(l *life) bool { return l.pod.Labels[key] == value }
}

// keepDiary starts one, until the test ends.
func keepDiary(t *testing.T, client kubernetes.Interface, ns string) *diary {
	t.Helper()
	d := &diary{lives: map[types.UID]*life{}}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(ns))
	_, err := factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { d.note(o, false) },
		UpdateFunc: func(_, o any) { d.note(o, false) },
		DeleteFunc: func(o any) { d.note(o, true) },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	factory.StartWithContext(ctx)
	t.Cleanup(func() {
		cancel()
		factory.Shutdown()
	})
	factory.WaitForCacheSyncWithContext(ctx)
	return d
}

func (d *diary) note(o any, gone bool) {
	if tombstone, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = tombstone.Obj
	}
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.lives[pod.UID]
	if l == nil {
		l = &life{pod: pod}
		d.lives[pod.UID] = l
	}
	before := evicted(l)
	now := time.Now()
	l.pod, l.gone = pod, gone
	first := func(at *time.Time, when bool) {
		if when && at.IsZero() {
			*at = now
		}
	}
	first(&l.bound, pod.Spec.NodeName != "")
	first(&l.asked, pod.DeletionTimestamp != nil)
	first(&l.ended, gone || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed)
	if !before && evicted(l) && d.onEviction != nil {
		d.onEviction(l)
	}
}

// matching lists lives of which everything holds, by name. d.mu is held.
func (d *diary) matching(all []func(*life) bool) []*life {
	var list []*life
	for _, l := range d.lives {
		if !slices.ContainsFunc(all, func(is func(*life) bool) bool { return !is(l) }) {
			list = append(list, l)
		}
	}
	slices.SortFunc(list, func(a, b *life) int { return strings.Compare(a.pod.Name, b.pod.Name) })
	return list
}

// count is for thousands of pods, several times a second.
func (d *diary) count(all ...func(*life) bool) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for _, l := range d.lives {
		if !slices.ContainsFunc(all, func(is func(*life) bool) bool { return !is(l) }) {
			n++
		}
	}
	return n
}

func (d *diary) names(all ...func(*life) bool) []string {
	var names []string
	for _, pod := range d.pods(all...) {
		names = append(names, pod.Name)
	}
	return names
}

func (d *diary) pods(all ...func(*life) bool) []corev1.Pod {
	d.mu.Lock()
	defer d.mu.Unlock()
	var pods []corev1.Pod
	for _, l := range d.matching(all) {
		pods = append(pods, *l.pod)
	}
	return pods
}
