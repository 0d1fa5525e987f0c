package gang_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/tranche-dev/tranche/pkg/gang"
)

// list makes a ResourceList of names and quantities.
func list(pairs ...string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		l[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return l
}

func container(pairs ...string) corev1.Container {
	return corev1.Container{Resources: corev1.ResourceRequirements{Requests: list(pairs...)}}
}

func sidecar(pairs ...string) corev1.Container {
	c := container(pairs...)
	c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	return c
}

func TestRequestsOfCountsAsTheScheduler(t *testing.T) {
	cases := map[string]struct {
		spec corev1.PodSpec
		want gang.Resources
	}{
		"nothing": {want: gang.Resources{Pods: 1}},
		"containers": {
			corev1.PodSpec{Containers: []corev1.Container{container("cpu", "100m", "memory", "1Gi"), container("cpu", "1", "ephemeral-storage", "2Gi", "nvidia.com/gpu-share", "50", "hugepages-2Mi", "4Mi")}},
			gang.Resources{MilliCPU: 1100, Memory: 1 << 30, Ephemeral: 2 << 30, Pods: 1, Scalars: []gang.Scalar{{"hugepages-2Mi", 4 << 20}, {"nvidia.com/gpu-share", 50}}},
		},
		"parts are rounded up": {
			corev1.PodSpec{Containers: []corev1.Container{container("cpu", "100u", "memory", "1500m")}},
			gang.Resources{MilliCPU: 1, Memory: 2, Pods: 1},
		},
		"init containers are a minimum, sidecars stay": {
			corev1.PodSpec{
				InitContainers: []corev1.Container{container("cpu", "3"), sidecar("cpu", "1"), container("cpu", "5")},
				Containers:     []corev1.Container{container("cpu", "2")},
			},
			gang.Resources{MilliCPU: 6000, Pods: 1},
		},
		"overhead and pod-level requests": {
			corev1.PodSpec{
				Containers: []corev1.Container{container("cpu", "1", "memory", "1Gi")}, Overhead: list("cpu", "250m"),
				Resources: &corev1.ResourceRequirements{Requests: list("cpu", "2")},
			},
			gang.Resources{MilliCPU: 2250, Memory: 1 << 30, Pods: 1},
		},
		"zero is nothing": {
			corev1.PodSpec{Containers: []corev1.Container{container("nvidia.com/gpu", "0")}},
			gang.Resources{Pods: 1},
		},
		"more than can be": {
			corev1.PodSpec{Containers: []corev1.Container{container("memory", "1e30")}},
			gang.Resources{Memory: 1 << 50, Pods: 1},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := gang.RequestsOf(&corev1.Pod{Spec: tc.spec})
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("RequestsOf (-want +got):\n%s", diff)
			}
			if !got.Equal(tc.want) {
				t.Error("they are not Equal")
			}
		})
	}
}

// TestRequestsOfAbsurdNumbersIsQuick: a sum with 1e999999999 would write out a
// thousand million digits.
func TestRequestsOfAbsurdNumbersIsQuick(t *testing.T) {
	absurd := *resource.NewScaledQuantity(1, resource.Scale(math.MaxInt32))
	began := time.Now()
	for _, spec := range []corev1.PodSpec{
		{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": absurd}}}, container("cpu", "1")}},
		{InitContainers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"x/y": absurd}}}}},
		{Overhead: corev1.ResourceList{"memory": absurd}},
		{Resources: &corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": absurd}}},
	} {
		if ok, _ := gang.Fits(plenty, gang.RequestsOf(&corev1.Pod{Spec: spec})); ok {
			t.Errorf("%v fits", spec)
		}
	}
	if got := gang.AllocatableOf(corev1.ResourceList{"cpu": absurd, "pods": resource.MustParse("5")}); got.MilliCPU != 1<<50 || got.Pods != 5 {
		t.Errorf("AllocatableOf: %v", got)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("took %s", took)
	}
}

func TestFitsSaysWhatLacks(t *testing.T) {
	free := gang.Resources{MilliCPU: 1000, Memory: 100, Ephemeral: 10, Pods: 1, Scalars: []gang.Scalar{{"a", 1}, {"b", 2}}}
	cases := map[string]struct {
		needs gang.Resources
		free  gang.Resources
		want  corev1.ResourceName
	}{
		"all of it":              {free, free, ""},
		"nothing of nothing":     {gang.Resources{}, gang.Resources{MilliCPU: -5, Pods: -1}, ""},
		"one cpu too much":       {gang.Resources{MilliCPU: 1001}, free, "cpu"},
		"memory":                 {gang.Resources{Memory: 101}, free, "memory"},
		"ephemeral storage":      {gang.Resources{Ephemeral: 11}, free, "ephemeral-storage"},
		"pods":                   {gang.Resources{Pods: 2}, free, "pods"},
		"scalar":                 {gang.Resources{Scalars: []gang.Scalar{{"a", 1}, {"b", 3}}}, free, "b"},
		"scalar that is unknown": {gang.Resources{Scalars: []gang.Scalar{{"c", 1}}}, free, "c"},
		"overcommitted":          {gang.Resources{MilliCPU: 1}, gang.Resources{MilliCPU: -1000}, "cpu"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if ok, lacks := gang.Fits(tc.free, tc.needs); lacks != tc.want || ok != (tc.want == "") {
				t.Errorf("Fits: %t, %q lacks; want %q", ok, lacks, tc.want)
			}
		})
	}
}

func TestSubUndoesAdd(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 0))
		some := func() gang.Resources {
			x := gang.Resources{MilliCPU: r.Int64N(9), Memory: r.Int64N(9), Ephemeral: r.Int64N(9), Pods: r.Int64N(3)}
			for _, name := range []corev1.ResourceName{"a", "b", "c"} {
				if r.IntN(2) == 0 {
					x.Scalars = append(x.Scalars, gang.Scalar{Name: name, Value: 1 + r.Int64N(4)})
				}
			}
			return x
		}
		a, b := some(), some()
		sum := a.Add(b)
		for _, name := range []corev1.ResourceName{"a", "b", "c"} {
			if sum.Of(name) != a.Of(name)+b.Of(name) {
				t.Fatalf("seed %d: %v + %v = %v", seed, a, b, sum)
			}
		}
		if back := sum.Sub(b); !back.Equal(a) {
			t.Fatalf("seed %d: %v + %v - %v = %v", seed, a, b, b, back)
		}
		if ok, _ := gang.Fits(sum, a); !ok {
			t.Fatalf("seed %d: %v does not fit into %v", seed, a, sum)
		}
	}
}
