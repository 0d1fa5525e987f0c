package contract_test

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/tests/testkit"
)

// TestAbsurdNumbersAreRefusedWithoutWritingThemOut has numbers of a few
// characters and a thousand million digits. Comparing one of them with
// anything takes minutes and gigabytes, so this test does not end if that is
// ever done again; a user once kept the webhook busy that way.
func TestAbsurdNumbersAreRefusedWithoutWritingThemOut(t *testing.T) {
	const huge = "1e999999999"
	absurd := resource.MustParse(huge)
	limit := func(limits, requests corev1.ResourceList) *corev1.Pod {
		pod := testkit.MakePod("ns", "p").Obj()
		pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Limits: limits, Requests: requests}
		return pod
	}
	cases := map[string]*corev1.Pod{
		"memory":                  testkit.MakePod("ns", "p").Memory(huge).Obj(),
		"memory of one container": testkit.MakePod("ns", "p").Annotation(contract.MemoryAnnotation+".main", huge).Obj(),
		"tiny memory":             testkit.MakePod("ns", "p").Memory("1e-999999999").Obj(),
		"negative memory":         testkit.MakePod("ns", "p").Memory("-1e999999999").Obj(),
		"many digits":             testkit.MakePod("ns", "p").Memory("1" + string(make([]byte, 1<<16)) + "Gi").Obj(),
		"fraction":                testkit.MakePod("ns", "p").Fraction(huge).Obj(),
		"count":                   testkit.MakePod("ns", "p").Fraction("0.5").Count(huge).Obj(),
		"count with a sign":       testkit.MakePod("ns", "p").Fraction("0.5").Count("+2").Obj(),
		"shares":                  limit(corev1.ResourceList{"nvidia.com/gpu-share": absurd}, nil),
		"GPUs":                    limit(corev1.ResourceList{"nvidia.com/gpu": absurd}, nil),
		"requested shares": limit(corev1.ResourceList{"nvidia.com/gpu-share": resource.MustParse("50")},
			corev1.ResourceList{"nvidia.com/gpu-share": absurd}),
		"other amount requested": limit(corev1.ResourceList{"nvidia.com/gpu-share": resource.MustParse("50")},
			corev1.ResourceList{"nvidia.com/gpu-share": resource.MustParse("40")}),
	}
	for name, pod := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := contract.ParsePod(pod, contract.DefaultResources())
			if !errors.Is(err, contract.ErrRequest) {
				t.Errorf("got %v, want a refusal", err)
			} else if len(err.Error()) > 500 {
				t.Errorf("the refusal has %d characters", len(err.Error()))
			}
		})
	}
	for _, text := range []string{"20Gi", "512Mi", "1.5Gi", "2e10", "21474836480", "20G"} {
		if _, err := contract.ParsePod(testkit.MakePod("ns", "p").Memory(text).Obj(), contract.DefaultResources()); err != nil {
			t.Errorf("memory %s: %v", text, err)
		}
	}
}
