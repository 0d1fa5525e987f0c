package contract_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	"pgregory.net/rapid"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

func TestPlanIsTheJSONOfTheDesign(t *testing.T) {
	p := contract.Plan{Node: "n", Containers: map[string][]contract.Grant{
		"c": {{GPU: "GPU-a", Shares: 50, MemoryMiB: 40960}},
		"a": {{GPU: "GPU-a", Shares: 10, MemoryMiB: 8192}, {GPU: "GPU-b", Shares: 10, MemoryMiB: 2457}},
	}}
	want := `{"v":1,"node":"n","containers":{"a":[{"gpu":"GPU-a","shares":10,"memoryMiB":8192},{"gpu":"GPU-b","shares":10,"memoryMiB":2457}],"c":[{"gpu":"GPU-a","shares":50,"memoryMiB":40960}]}}`
	got, err := p.Format()
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("Format: %v (-want +got):\n%s", err, diff)
	}
}

func TestParsePlanRefuses(t *testing.T) {
	container := func(s string) string { return `{"v":1,"node":"n","containers":{"c":` + s + `}}` }
	cases := map[string]struct{ text, want string }{
		"nothing":            {text: "", want: "unexpected end"},
		"no JSON":            {text: "GPU-a", want: "invalid character"},
		"another version":    {text: `{"v":2,"node":"n","containers":{"c":[{"gpu":"GPU-a","shares":1}]}}`, want: "version 2 is not 1"},
		"no node":            {text: `{"v":1,"containers":{"c":[{"gpu":"GPU-a","shares":1}]}}`, want: "no node"},
		"no containers":      {text: `{"v":1,"node":"n"}`, want: "no containers"},
		"no GPU":             {text: container(`[]`), want: "container c has no GPU"},
		"an empty GPU":       {text: container(`[{"shares":1}]`), want: `GPU ""`},
		"a GPU with a slash": {text: container(`[{"gpu":"../x","shares":1}]`), want: `GPU "../x"`},
		"a GPU twice":        {text: container(`[{"gpu":"GPU-a","shares":1},{"gpu":"GPU-a","shares":1}]`), want: `GPU "GPU-a"`},
		"no shares":          {text: container(`[{"gpu":"GPU-a"}]`), want: "0 shares"},
		"negative shares":    {text: container(`[{"gpu":"GPU-a","shares":-1}]`), want: "-1 shares"},
		"too many shares":    {text: container(`[{"gpu":"GPU-a","shares":1001}]`), want: "1001 shares"},
		"half a share":       {text: container(`[{"gpu":"GPU-a","shares":0.5}]`), want: "cannot unmarshal number"},
		"negative memory":    {text: container(`[{"gpu":"GPU-a","shares":1,"memoryMiB":-1}]`), want: "-1 MiB"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := contract.ParsePlan(tc.text)
			if !errors.Is(err, contract.ErrPlan) || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), contract.PlanAnnotation) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

func TestPlanParsesAsItWasFormatted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := contract.Plan{Version: 1, Node: rapid.StringN(0, 9, -1).Draw(t, "node"), Containers: map[string][]contract.Grant{}}
		for range rapid.IntRange(0, 4).Draw(t, "containers") {
			var grants []contract.Grant
			for range rapid.IntRange(0, 3).Draw(t, "grants") {
				grants = append(grants, contract.Grant{
					GPU:       contract.GPUUUID(fmt.Sprintf("GPU-%d", rapid.IntRange(0, 9).Draw(t, "gpu"))),
					Shares:    units.Shares(rapid.Int64Range(0, 1001).Draw(t, "shares")),
					MemoryMiB: units.MiB(rapid.Int64Range(-1, 1<<40).Draw(t, "memory")),
				})
			}
			want.Containers[rapid.String().Draw(t, "container")] = grants
		}
		text, err := want.Format()
		if err != nil {
			if !errors.Is(err, contract.ErrPlan) {
				t.Fatalf("Format: %v", err)
			}
			return
		}
		got, err := contract.ParsePlan(text)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Fatalf("ParsePlan(%s): %v (-want +got):\n%s", text, err, diff)
		}
	})
}

func FuzzParsePlan(f *testing.F) {
	f.Add(`{"v":1,"node":"n","containers":{"c":[{"gpu":"GPU-a","shares":50,"memoryMiB":40960}]}}`)
	f.Add(`{"v":1,"node":"n","containers":{"c":null,"":[null]}}`)
	f.Add(`null`)
	f.Fuzz(func(t *testing.T, s string) {
		p, err := contract.ParsePlan(s)
		if err != nil {
			return
		}
		for gpu, shares := range p.Charges(nil) {
			if gpu == "" || shares < 1 {
				t.Errorf("plan %s charges %q with %d shares", s, gpu, shares)
			}
		}
		text, err := p.Format()
		if err != nil {
			t.Fatalf("what was parsed cannot be formatted: %v", err)
		}
		if again, err := contract.ParsePlan(text); err != nil || !cmp.Equal(again.Charges(nil), p.Charges(nil)) {
			t.Errorf("ParsePlan(%s) = %+v, %v; want %+v", text, again, err, p)
		}
	})
}

func TestChargesFollowTheLifeOfThePod(t *testing.T) {
	role := func(name string, r contract.Role) contract.ContainerRole {
		return contract.ContainerRole{Name: name, Role: r}
	}
	on := func(gpu contract.GPUUUID, s units.Shares) []contract.Grant {
		return []contract.Grant{{GPU: gpu, Shares: s}}
	}
	type grants = map[string][]contract.Grant
	type charges = map[contract.GPUUUID]units.Shares
	app, init, sidecar := contract.RoleApp, contract.RoleInit, contract.RoleSidecar
	cases := map[string]struct {
		roles  []contract.ContainerRole
		grants grants
		want   charges
	}{
		"nothing": {want: charges{}},
		"app containers add up": {
			roles: []contract.ContainerRole{role("a", app), role("b", app)}, grants: grants{"a": on("A", 30), "b": on("A", 20)}, want: charges{"A": 50},
		},
		"each GPU on its own": {
			roles: []contract.ContainerRole{role("a", app), role("b", app)}, grants: grants{"a": on("A", 30), "b": on("B", 20)}, want: charges{"A": 30, "B": 20},
		},
		"a small init container is free": {
			roles: []contract.ContainerRole{role("i", init), role("a", app)}, grants: grants{"i": on("A", 30), "a": on("A", 50)}, want: charges{"A": 50},
		},
		"a big init container decides": {
			roles: []contract.ContainerRole{role("i", init), role("a", app)}, grants: grants{"i": on("A", 80), "a": on("A", 50)}, want: charges{"A": 80},
		},
		"init containers follow each other": {
			roles: []contract.ContainerRole{role("i", init), role("j", init)}, grants: grants{"i": on("A", 60), "j": on("A", 70)}, want: charges{"A": 70},
		},
		"a sidecar runs beside the apps": {
			roles: []contract.ContainerRole{role("s", sidecar), role("a", app)}, grants: grants{"s": on("A", 20), "a": on("A", 50)}, want: charges{"A": 70},
		},
		"a sidecar runs beside later init containers": {
			roles: []contract.ContainerRole{role("s", sidecar), role("i", init), role("a", app)}, grants: grants{"s": on("A", 20), "i": on("A", 60), "a": on("A", 10)}, want: charges{"A": 80},
		},
		"a sidecar does not run beside earlier init containers": {
			roles: []contract.ContainerRole{role("i", init), role("s", sidecar), role("a", app)}, grants: grants{"i": on("A", 60), "s": on("A", 20), "a": on("A", 10)}, want: charges{"A": 60},
		},
		"containers without a role count as apps": {
			roles: []contract.ContainerRole{role("a", app)}, grants: grants{"a": on("A", 30), "x": on("A", 20)}, want: charges{"A": 50},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, contract.Plan{Containers: tc.grants}.Charges(tc.roles)); diff != "" {
				t.Errorf("charges (-want +got):\n%s", diff)
			}
		})
	}
}

// What the scheduler counts for a pod is what we charge, if all is on one GPU.
func TestChargesAreKubernetesEffectiveRequest(t *testing.T) {
	const share = corev1.ResourceName("nvidia.com/gpu-share")
	always := corev1.ContainerRestartPolicyAlways
	rapid.Check(t, func(t *rapid.T) {
		pod := &corev1.Pod{}
		plan := contract.Plan{Containers: map[string][]contract.Grant{}}
		container := func(name string) corev1.Container {
			c := corev1.Container{Name: name}
			if s := rapid.Int64Range(0, 100).Draw(t, "shares"); s > 0 {
				list := corev1.ResourceList{share: *resource.NewQuantity(s, resource.DecimalSI)}
				c.Resources = corev1.ResourceRequirements{Requests: list, Limits: list}
				plan.Containers[name] = []contract.Grant{{GPU: "GPU-a", Shares: units.Shares(s)}}
			}
			return c
		}
		for i := range rapid.IntRange(0, 5).Draw(t, "init") {
			c := container(fmt.Sprintf("i%d", i))
			if rapid.Bool().Draw(t, "sidecar") {
				c.RestartPolicy = &always
			}
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
		}
		for i := range rapid.IntRange(1, 4).Draw(t, "apps") {
			pod.Spec.Containers = append(pod.Spec.Containers, container(fmt.Sprintf("a%d", i)))
		}
		counted := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})[share]
		if got := plan.Charges(contract.Roles(&pod.Spec))["GPU-a"]; int64(got) != counted.Value() {
			t.Fatalf("charged %d shares, Kubernetes counts %d", got, counted.Value())
		}
	})
}
