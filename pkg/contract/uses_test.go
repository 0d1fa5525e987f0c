package contract_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/tranche-dev/tranche/pkg/contract"
)

func TestWhatTheExtenderIsAskedAboutAndWhatUsesGPUs(t *testing.T) {
	cases := map[string]struct {
		pod                 *corev1.Pod
		wantSent, wantUsing bool
	}{
		"nothing":                 {pod("a cpu=1"), false, false},
		"another GPU":             {pod("a amd.com/gpu=1"), false, false},
		"annotation only":         {pod("a", "tranche.dev/gpu-fraction=0.5"), false, false},
		"shares":                  {pod("a nvidia.com/gpu-share=1"), true, true},
		"GPUs":                    {pod("a", "b nvidia.com/gpu=1"), true, true},
		"0 GPUs":                  {pod("a nvidia.com/gpu=0"), true, false},
		"0 shares":                {pod("a nvidia.com/gpu-share=0 request:nvidia.com/gpu-share=0"), true, false},
		"0 shares and a GPU":      {pod("a nvidia.com/gpu-share=0", "b nvidia.com/gpu=1"), true, true},
		"0 in an init container":  {pod("init:i nvidia.com/gpu-share=0", "a"), true, false},
		"less than none":          {pod("a nvidia.com/gpu=-1"), true, false},
		"part of a GPU":           {pod("a nvidia.com/gpu=500m"), true, true},
		"an absurd amount":        {pod("a nvidia.com/gpu=1e999999999"), true, true},
		"under requests":          {pod("a request:nvidia.com/gpu=1"), true, true},
		"0 under requests":        {pod("a request:nvidia.com/gpu=0"), true, false},
		"only an init container":  {pod("init:i nvidia.com/gpu-share=1", "a"), true, true},
		"only a sidecar":          {pod("sidecar:s nvidia.com/gpu-share=1", "a"), true, true},
		"a member of a gang":      {pod("a tranche.dev/member=0 request:tranche.dev/member=0"), true, false},
		"its second container":    {pod("a", "b tranche.dev/member=0"), true, false},
		"a member with GPUs":      {pod("a tranche.dev/member=0", "b nvidia.com/gpu=1"), true, true},
		"members are no GPUs":     {pod("a tranche.dev/member=1"), true, false},
		"a resource that is like": {pod("a nvidia.com/gpu-shared=1 tranche.dev/members=1"), false, false},
	}
	for name, tc := range cases {
		if got := contract.InterestsExtender(&tc.pod.Spec, contract.DefaultResources()); got != tc.wantSent {
			t.Errorf("%s: sent %v, want %v", name, got, tc.wantSent)
		}
		if got := contract.UsesGPU(&tc.pod.Spec, contract.DefaultResources()); got != tc.wantUsing {
			t.Errorf("%s: uses %v, want %v", name, got, tc.wantUsing)
		}
	}
}
