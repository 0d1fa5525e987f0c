package contract_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

// translate writes a request into the limits, as the webhook does.
func translate(p *corev1.Pod, req contract.Request, largest units.MiB) *corev1.Pod {
	p = p.DeepCopy()
	for _, d := range req.Demands {
		name, n := d.Limit(contract.DefaultResources(), largest)
		for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
			for i := range list {
				if list[i].Name == d.Name {
					q := corev1.ResourceList{name: *resource.NewQuantity(n, resource.DecimalSI)}
					list[i].Resources = corev1.ResourceRequirements{Limits: q, Requests: q}
				}
			}
		}
	}
	return p
}

// tester is what testing.T and rapid.T have in common.
type tester interface {
	Fatalf(format string, args ...any)
}

// parsesTheSameTranslated checks that a pod reads the same before and after the
// webhook, whatever the cluster's largest GPU was then.
func parsesTheSameTranslated(t tester, p *corev1.Pod) {
	before, err := contract.ParsePod(p, contract.DefaultResources())
	if err != nil {
		if !errors.Is(err, contract.ErrRequest) {
			t.Fatalf("error %v is no ErrRequest", err)
		}
		return
	}
	wellFormed(t, before)
	for _, largest := range []units.MiB{0, 1, 16384, 81920, units.MaxMemory} {
		translated := translate(p, before, largest)
		after, err := contract.ParsePod(translated, contract.DefaultResources())
		if err != nil {
			t.Fatalf("the translation for GPUs of %d MiB is refused: %v\n%s", largest, err, dump(translated))
		}
		if diff := cmp.Diff(before, after); diff != "" {
			t.Fatalf("the translation for GPUs of %d MiB reads differently (-before +after):\n%s\n%s", largest, diff, dump(translated))
		}
		if len(before.Demands) > 0 && !contract.UsesGPU(&translated.Spec, contract.DefaultResources()) {
			t.Fatalf("the scheduler would not send the translation to us\n%s", dump(translated))
		}
	}
}

// wellFormed checks what everyone relies on.
func wellFormed(t tester, req contract.Request) {
	for _, d := range req.Demands {
		switch {
		case d.Count < 1, d.Whole && d.Shares != 100, d.Whole && d.Memory != 0, d.Memory > 0 && d.Shares != 0, d.Memory < 0:
			t.Fatalf("demand %+v", d)
		case d.Memory == 0 && (d.Shares < 1 || d.Shares > 100):
			t.Fatalf("demand %+v", d)
		}
		if !req.SameGPUs && d.Role == contract.RoleInit {
			t.Fatalf("an init container uses GPUs, but SameGPUs is not set: %+v", req)
		}
	}
	if !slices.IsSorted(req.Models) {
		t.Fatalf("models %v", req.Models)
	}
}

func dump(p *corev1.Pod) string {
	b, err := json.MarshalIndent(p, "", " ")
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func TestTranslationReadsTheSame(t *testing.T) {
	for name, tc := range accepted {
		t.Run(name, func(t *testing.T) { parsesTheSameTranslated(t, tc.pod) })
	}
}

// drawPod is a pod with requests that are more or less right.
func drawPod(t *rapid.T) *corev1.Pod {
	p := pod()
	always := corev1.ContainerRestartPolicyAlways
	quantity := rapid.OneOf(
		rapid.SampledFrom([]string{"1", "2", "10", "25", "50", "100", "150", "200", "101", "0", "-1", "0.5", "1e3", "100000m", "9E"}),
		rapid.Map(rapid.IntRange(1, 120), func(n int) string { return fmt.Sprint(n) }),
	)
	draw := func(name string) corev1.Container {
		c := corev1.Container{Name: name}
		for _, list := range []*corev1.ResourceList{&c.Resources.Limits, &c.Resources.Limits, &c.Resources.Requests} {
			if rapid.IntRange(0, 3).Draw(t, "resource") == 0 {
				if *list == nil {
					*list = corev1.ResourceList{}
				}
				res := corev1.ResourceName(rapid.SampledFrom([]string{share, share, whole}).Draw(t, "name"))
				(*list)[res] = resource.MustParse(quantity.Draw(t, "quantity"))
			}
		}
		return c
	}
	for i := range rapid.IntRange(0, 2).Draw(t, "init") {
		c := draw(fmt.Sprintf("i%d", i))
		if rapid.Bool().Draw(t, "sidecar") {
			c.RestartPolicy = &always
		}
		p.Spec.InitContainers = append(p.Spec.InitContainers, c)
	}
	for i := range rapid.IntRange(0, 3).Draw(t, "apps") {
		p.Spec.Containers = append(p.Spec.Containers, draw(fmt.Sprintf("a%d", i)))
	}
	texts := map[string]*rapid.Generator[string]{
		contract.FractionAnnotation:         rapid.SampledFrom([]string{"0.5", "0.333", "1", "0.01", "0", "1.5", "x"}),
		contract.FractionAnnotation + ".a0": rapid.SampledFrom([]string{"0.5", "0.000000001", "1.0"}),
		contract.FractionAnnotation + ".i0": rapid.SampledFrom([]string{"0.5", "0.25"}),
		contract.MemoryAnnotation:           rapid.SampledFrom([]string{"20Gi", "1Mi", "500Gi", "20", "-1Gi", "1Pi"}),
		contract.MemoryAnnotation + ".a1":   rapid.SampledFrom([]string{"20Gi", "7G"}),
		contract.CountAnnotation:            rapid.SampledFrom([]string{"1", "2", "3", "0", "1024", "two"}),
		contract.ContainerAnnotation:        rapid.SampledFrom([]string{"a0", "a1", "i0", "nobody"}),
		contract.ModelAnnotation:            rapid.SampledFrom([]string{"A", "B, A", ",", ""}),
		contract.PlacementAnnotation:        rapid.SampledFrom([]string{"least-waste", "binpack", "spread", "x"}),
		contract.IsolationAnnotation:        rapid.SampledFrom([]string{"required", "x"}),
	}
	for _, key := range slices.Sorted(maps.Keys(texts)) {
		if rapid.IntRange(0, 4).Draw(t, "annotated") == 0 {
			p.Annotations[key] = texts[key].Draw(t, key)
		}
	}
	return p
}

func TestRandomPodsReadTheSameTranslated(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { parsesTheSameTranslated(t, drawPod(t)) })
}

// FuzzParsePod throws arbitrary JSON of a pod at the parser.
func FuzzParsePod(f *testing.F) {
	for _, tc := range accepted {
		f.Add([]byte(dump(tc.pod)))
	}
	for _, tc := range refused {
		f.Add([]byte(dump(tc.pod)))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p := &corev1.Pod{}
		if json.Unmarshal(data, p) != nil {
			return
		}
		req, err := contract.ParsePod(p, contract.DefaultResources())
		if err != nil {
			if !errors.Is(err, contract.ErrRequest) {
				t.Errorf("error %v is no ErrRequest", err)
			}
			return
		}
		wellFormed(t, req)
	})
}
