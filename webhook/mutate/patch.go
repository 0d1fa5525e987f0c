package mutate

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"gomodules.xyz/jsonpatch/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Patch returns the JSON patch that makes after of before, where after is what
// Pod or EphemeralContainers made of it.
//
// It is not the difference of the two objects in JSON. That would delete every
// field that a newer API server knows and this program does not, and could
// build on objects that the server left out because they are empty. Only what
// this package changes is looked at, and a parent that may be missing is
// written whole: that is right whether the server shows it empty or not at all.
func Patch(before, after *corev1.Pod) []jsonpatch.Operation {
	if before == after {
		return nil
	}
	var p patch
	p.stringMap("/metadata/labels", before.Labels, after.Labels)
	p.stringMap("/metadata/annotations", before.Annotations, after.Annotations)
	appended(&p, "/spec/schedulingGates", before.Spec.SchedulingGates, after.Spec.SchedulingGates)
	appended(&p, "/spec/tolerations", before.Spec.Tolerations, after.Spec.Tolerations)
	p.containers("/spec/initContainers", before.Spec.InitContainers, after.Spec.InitContainers)
	p.containers("/spec/containers", before.Spec.Containers, after.Spec.Containers)
	for i := range before.Spec.EphemeralContainers {
		appended(&p, fmt.Sprintf("/spec/ephemeralContainers/%d/env", i),
			before.Spec.EphemeralContainers[i].Env, after.Spec.EphemeralContainers[i].Env)
	}
	return p
}

type patch []jsonpatch.Operation

func (p *patch) add(path string, value any) {
	*p = append(*p, jsonpatch.NewOperation("add", path, value))
}

func (p *patch) stringMap(path string, before, after map[string]string) {
	addKeys(p, path, before, after, func(a, b string) bool { return a == b })
}

func (p *patch) containers(path string, before, after []corev1.Container) {
	for i := range before {
		at := path + "/" + strconv.Itoa(i)
		old, changed := &before[i], &after[i]
		appended(p, at+"/env", old.Env, changed.Env)
		if len(old.Resources.Limits) == 0 && len(old.Resources.Requests) == 0 && len(old.Resources.Claims) == 0 {
			if len(changed.Resources.Limits) > 0 {
				p.add(at+"/resources", changed.Resources)
			}
			continue
		}
		p.resources(at+"/resources/limits", old.Resources.Limits, changed.Resources.Limits)
		p.resources(at+"/resources/requests", old.Resources.Requests, changed.Resources.Requests)
	}
}

func (p *patch) resources(path string, before, after corev1.ResourceList) {
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if _, kept := after[name]; !kept && len(after) > 0 {
			*p = append(*p, jsonpatch.NewOperation("remove", path+"/"+escape(string(name)), nil))
		}
	}
	addKeys(p, path, before, after, func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 })
}

// addKeys writes the keys of after that before lacks or has otherwise.
func addKeys[K ~string, V any](p *patch, path string, before, after map[K]V, equal func(a, b V) bool) {
	if len(before) == 0 {
		if len(after) > 0 {
			p.add(path, after)
		}
		return
	}
	for _, key := range slices.Sorted(maps.Keys(after)) {
		if old, ok := before[key]; !ok || !equal(old, after[key]) {
			p.add(path+"/"+escape(string(key)), after[key]) // "add" replaces, too
		}
	}
}

// appended writes what after has at its end and before has not.
func appended[T any](p *patch, path string, before, after []T) {
	if len(before) == 0 {
		if len(after) > 0 {
			p.add(path, after)
		}
		return
	}
	for _, v := range after[len(before):] {
		p.add(path+"/-", v)
	}
}

// escape writes a key as a JSON pointer's token (RFC 6901).
func escape(key string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
}
