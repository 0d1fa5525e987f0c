package contract_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

const (
	share = "nvidia.com/gpu-share"
	whole = "nvidia.com/gpu"
)

// container is a container with limits, written as "name resource=quantity …".
func container(spec string) corev1.Container {
	words := strings.Fields(spec)
	c := corev1.Container{Name: words[0]}
	for _, w := range words[1:] {
		name, q, _ := strings.Cut(w, "=")
		list := &c.Resources.Limits
		if rest, ok := strings.CutPrefix(name, "request:"); ok {
			name, list = rest, &c.Resources.Requests
		}
		if *list == nil {
			*list = corev1.ResourceList{}
		}
		(*list)[corev1.ResourceName(name)] = resource.MustParse(q)
	}
	return c
}

// pod has containers as container reads them; "init:" and "sidecar:" before a
// name make it that, and "tranche.dev/…=text" is an annotation.
func pod(parts ...string) *corev1.Pod {
	p := &corev1.Pod{}
	p.Annotations = map[string]string{}
	always := corev1.ContainerRestartPolicyAlways
	for _, part := range parts {
		if strings.HasPrefix(part, contract.Prefix) {
			key, text, _ := strings.Cut(part, "=")
			p.Annotations[key] = text
			continue
		}
		if rest, ok := strings.CutPrefix(part, "init:"); ok {
			p.Spec.InitContainers = append(p.Spec.InitContainers, container(rest))
			continue
		}
		if rest, ok := strings.CutPrefix(part, "sidecar:"); ok {
			c := container(rest)
			c.RestartPolicy = &always
			p.Spec.InitContainers = append(p.Spec.InitContainers, c)
			continue
		}
		p.Spec.Containers = append(p.Spec.Containers, container(part))
	}
	return p
}

func shares(name string, s units.Shares) contract.Demand {
	return contract.Demand{ContainerRole: contract.ContainerRole{Name: name}, Count: 1, Shares: s}
}

func gpus(name string, n int) contract.Demand {
	return contract.Demand{ContainerRole: contract.ContainerRole{Name: name}, Count: n, Whole: true, Shares: 100}
}

func memory(name string, m units.MiB) contract.Demand {
	return contract.Demand{ContainerRole: contract.ContainerRole{Name: name}, Count: 1, Memory: m}
}

func onTwo(d contract.Demand) contract.Demand {
	d.Count = 2
	return d
}

func as(role contract.Role, d contract.Demand) contract.Demand {
	d.Role = role
	return d
}

func demands(d ...contract.Demand) contract.Request { return contract.Request{Demands: d} }

func sameGPUs(d ...contract.Demand) contract.Request {
	return contract.Request{Demands: d, SameGPUs: true}
}

// accepted are pods and what they ask for. They also seed the fuzz test.
var accepted = map[string]struct {
	pod  *corev1.Pod
	want contract.Request
}{
	"no GPU":                               {pod: pod("a cpu=1"), want: contract.Request{}},
	"no GPU, but in a gang":                {pod: pod("a tranche.dev/member=0 request:tranche.dev/member=0"), want: contract.Request{}},
	"shares":                               {pod: pod("a nvidia.com/gpu-share=50"), want: demands(shares("a", 50))},
	"all shares of a GPU":                  {pod: pod("a nvidia.com/gpu-share=100"), want: demands(shares("a", 100))},
	"shares under requests and limits":     {pod: pod("a nvidia.com/gpu-share=50 request:nvidia.com/gpu-share=50"), want: demands(shares("a", 50))},
	"shares in thousands of thousandths":   {pod: pod("a nvidia.com/gpu-share=50000m"), want: demands(shares("a", 50))},
	"whole GPUs":                           {pod: pod("a nvidia.com/gpu=2"), want: demands(gpus("a", 2))},
	"a total over two GPUs":                {pod: pod("a nvidia.com/gpu-share=100", "tranche.dev/gpu-count=2"), want: demands(onTwo(shares("a", 50)))},
	"a total of more than one GPU has":     {pod: pod("a nvidia.com/gpu-share=150", "tranche.dev/gpu-count=2"), want: demands(onTwo(shares("a", 75)))},
	"fraction":                             {pod: pod("a", "tranche.dev/gpu-fraction=0.5"), want: demands(shares("a", 50))},
	"fraction, rounded up":                 {pod: pod("a", "tranche.dev/gpu-fraction=0.333"), want: demands(shares("a", 34))},
	"fraction of 1":                        {pod: pod("a", "tranche.dev/gpu-fraction=1"), want: demands(shares("a", 100))},
	"fraction on two GPUs":                 {pod: pod("a", "tranche.dev/gpu-fraction=0.5", "tranche.dev/gpu-count=2"), want: demands(onTwo(shares("a", 50)))},
	"fraction and what it translates into": {pod: pod("a nvidia.com/gpu-share=34", "tranche.dev/gpu-fraction=0.333"), want: demands(shares("a", 34))},
	"fraction means the first app":         {pod: pod("init:i", "a", "b", "tranche.dev/gpu-fraction=0.5"), want: demands(shares("a", 50))},
	"fraction of the named container":      {pod: pod("a", "b", "tranche.dev/gpu-fraction=0.5", "tranche.dev/container=b"), want: demands(shares("b", 50))},
	"fraction of a named sidecar": {
		pod:  pod("sidecar:s", "a", "tranche.dev/gpu-fraction=0.5", "tranche.dev/container=s"),
		want: demands(as(contract.RoleSidecar, shares("s", 50))),
	},
	"fractions per container": {
		pod:  pod("a", "b", "tranche.dev/gpu-fraction.b=0.5", "tranche.dev/gpu-fraction.a=0.25"),
		want: demands(shares("a", 25), shares("b", 50)),
	},
	"for the pod and for a container": {
		pod:  pod("a", "b", "tranche.dev/gpu-fraction=0.5", "tranche.dev/gpu-memory.b=20Gi"),
		want: demands(shares("a", 50), memory("b", 20480)),
	},
	"annotation and another container's limit": {
		pod:  pod("a nvidia.com/gpu=1", "b", "tranche.dev/gpu-fraction.b=0.5"),
		want: demands(gpus("a", 1), shares("b", 50)),
	},
	"memory":                      {pod: pod("a", "tranche.dev/gpu-memory=20Gi"), want: demands(memory("a", 20480))},
	"memory, rounded up":          {pod: pod("a", "tranche.dev/gpu-memory=20G"), want: demands(memory("a", 19074))},
	"memory on two GPUs":          {pod: pod("a", "tranche.dev/gpu-memory=20Gi", "tranche.dev/gpu-count=2"), want: demands(onTwo(memory("a", 20480)))},
	"memory and any lower bound":  {pod: pod("a nvidia.com/gpu-share=7", "tranche.dev/gpu-memory=20Gi"), want: demands(memory("a", 20480))},
	"count of one":                {pod: pod("a nvidia.com/gpu-share=50", "tranche.dev/gpu-count=1"), want: demands(shares("a", 50))},
	"count means the only sharer": {pod: pod("a", "b nvidia.com/gpu-share=50", "tranche.dev/gpu-count=2"), want: demands(onTwo(shares("b", 25)))},
	"count beside a whole GPU":    {pod: pod("a nvidia.com/gpu=1", "b nvidia.com/gpu-share=50", "tranche.dev/gpu-count=2"), want: demands(gpus("a", 1), onTwo(shares("b", 25)))},
	"count means the first of several": {
		pod:  pod("a nvidia.com/gpu-share=50", "b nvidia.com/gpu-share=50", "tranche.dev/gpu-count=2"),
		want: demands(onTwo(shares("a", 25)), shares("b", 50)),
	},
	"count means the named one": {
		pod:  pod("a nvidia.com/gpu-share=50", "b nvidia.com/gpu-share=50", "tranche.dev/gpu-count=2", "tranche.dev/container=b"),
		want: demands(shares("a", 50), onTwo(shares("b", 25))),
	},
	"two containers with different shares": {
		pod:  pod("a nvidia.com/gpu-share=50", "b nvidia.com/gpu-share=80"),
		want: demands(shares("a", 50), shares("b", 80)),
	},
	"more than one GPU over two containers": {
		pod:  pod("a nvidia.com/gpu=2", "b nvidia.com/gpu=3"),
		want: demands(gpus("a", 2), gpus("b", 3)),
	},
	"an init container": {
		pod:  pod("init:i nvidia.com/gpu-share=80", "a nvidia.com/gpu-share=50"),
		want: sameGPUs(as(contract.RoleInit, shares("i", 80)), shares("a", 50)),
	},
	"an init container alone": {pod: pod("init:i nvidia.com/gpu=2", "a"), want: sameGPUs(as(contract.RoleInit, gpus("i", 2)))},
	"an init container of the same two GPUs": {
		pod:  pod("init:i nvidia.com/gpu=2", "a nvidia.com/gpu=2"),
		want: sameGPUs(as(contract.RoleInit, gpus("i", 2)), gpus("a", 2)),
	},
	"an init container with memory": {
		pod:  pod("init:i", "a nvidia.com/gpu-share=50", "tranche.dev/gpu-memory.i=20Gi"),
		want: sameGPUs(as(contract.RoleInit, memory("i", 20480)), shares("a", 50)),
	},
	"an init container, a sidecar and an app that fill a GPU": {
		pod:  pod("init:i nvidia.com/gpu-share=100", "sidecar:s nvidia.com/gpu-share=40", "a nvidia.com/gpu-share=60"),
		want: sameGPUs(as(contract.RoleInit, shares("i", 100)), as(contract.RoleSidecar, shares("s", 40)), shares("a", 60)),
	},
	"a sidecar is free to sit elsewhere": {
		pod:  pod("sidecar:s nvidia.com/gpu=1", "a nvidia.com/gpu-share=50"),
		want: demands(as(contract.RoleSidecar, gpus("s", 1)), shares("a", 50)),
	},
	"an init container without GPU changes nothing": {pod: pod("init:i", "a nvidia.com/gpu-share=50"), want: demands(shares("a", 50))},
	"models": {
		pod:  pod("a nvidia.com/gpu=1", "tranche.dev/gpu-model= NVIDIA-B200,NVIDIA-A30 ,,NVIDIA-A30"),
		want: contract.Request{Demands: []contract.Demand{gpus("a", 1)}, Models: []string{"NVIDIA-A30", "NVIDIA-B200"}},
	},
	"binpack": {pod: pod("a nvidia.com/gpu=1", "tranche.dev/placement=binpack"), want: contract.Request{Demands: []contract.Demand{gpus("a", 1)}, Placement: contract.PlacementBinpack}},
	"spread":  {pod: pod("a nvidia.com/gpu=1", "tranche.dev/placement=spread"), want: contract.Request{Demands: []contract.Demand{gpus("a", 1)}, Placement: contract.PlacementSpread}},
	"isolation": {
		pod:  pod("a nvidia.com/gpu=1", "tranche.dev/isolation=required"),
		want: contract.Request{Demands: []contract.Demand{gpus("a", 1)}, RequireIsolation: true},
	},
}

func TestParsePodReadsWhatUsersWrite(t *testing.T) {
	for name, tc := range accepted {
		t.Run(name, func(t *testing.T) {
			got, err := contract.ParsePod(tc.pod, contract.DefaultResources())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("request (-want +got):\n%s", diff)
			}
		})
	}
}

// refused are pods and the sentence that says what to write instead.
var refused = map[string]struct {
	pod  *corev1.Pod
	want string
}{
	"no shares": {
		pod("a nvidia.com/gpu-share=0"),
		"container a asks for nvidia.com/gpu-share: 0; write at least 1, or leave it out if the container needs no GPU",
	},
	"no GPUs": {
		pod("a nvidia.com/gpu=0"),
		"container a asks for nvidia.com/gpu: 0; write at least 1, or leave it out if the container needs no GPU",
	},
	"negative shares": {
		pod("a nvidia.com/gpu-share=-1"),
		"container a asks for nvidia.com/gpu-share: -1; write at least 1, or leave it out if the container needs no GPU",
	},
	"one and a half shares": {
		pod("a nvidia.com/gpu-share=1500m"),
		`container a asks for nvidia.com/gpu-share: 1500m; write a whole number, such as 50, or for a fraction the pod annotation tranche.dev/gpu-fraction: "0.5"`,
	},
	"half a GPU": {
		pod("a nvidia.com/gpu=0.5"),
		`container a asks for nvidia.com/gpu: 500m; write a whole number, such as 1, or for a fraction the pod annotation tranche.dev/gpu-fraction: "0.5"`,
	},
	"a share too many": {
		pod("a nvidia.com/gpu-share=101"),
		"container a asks for nvidia.com/gpu-share: 101, but one GPU has 100; write at most 100, ask for nvidia.com/gpu for whole GPUs, or spread it over several GPUs with the annotation tranche.dev/gpu-count",
	},
	"far too many shares": {
		pod("a nvidia.com/gpu-share=9E"),
		"container a asks for nvidia.com/gpu-share: 9000000000000000000, but one GPU has 100; write at most 100, ask for nvidia.com/gpu for whole GPUs, or spread it over several GPUs with the annotation tranche.dev/gpu-count",
	},
	"more shares than two GPUs have": {
		pod("a nvidia.com/gpu-share=201", "tranche.dev/gpu-count=2"),
		"container a asks for nvidia.com/gpu-share: 201, but one GPU has 100; write at most 200, ask for nvidia.com/gpu for whole GPUs, or spread it over several GPUs with the annotation tranche.dev/gpu-count",
	},
	"a total that does not divide": {
		pod("a nvidia.com/gpu-share=101", "tranche.dev/gpu-count=2"),
		"container a asks for nvidia.com/gpu-share: 101 on 2 GPUs; write a total that 2 divides, such as 102",
	},
	"more GPUs than any node has": {
		pod("a nvidia.com/gpu=1025"),
		"container a asks for nvidia.com/gpu: 1025, which no node has; write at most 1024",
	},
	"shares under requests only": {
		pod("a request:nvidia.com/gpu-share=50"),
		"container a has nvidia.com/gpu-share under requests only; write it under limits",
	},
	"GPUs under requests only": {
		pod("a request:nvidia.com/gpu=1"),
		"container a has nvidia.com/gpu under requests only; write it under limits",
	},
	"both resources": {
		pod("a nvidia.com/gpu-share=50 nvidia.com/gpu=1"),
		"container a asks for both nvidia.com/gpu-share and nvidia.com/gpu; write nvidia.com/gpu-share for part of a GPU or nvidia.com/gpu for whole GPUs, not both",
	},
	"both resources, one under requests": {
		pod("a nvidia.com/gpu-share=50 request:nvidia.com/gpu=1"),
		"container a asks for both nvidia.com/gpu-share and nvidia.com/gpu; write nvidia.com/gpu-share for part of a GPU or nvidia.com/gpu for whole GPUs, not both",
	},
	"a word for a fraction": {
		pod("a", "tranche.dev/gpu-fraction=abc"),
		`annotation tranche.dev/gpu-fraction: not a GPU fraction: "abc"; write a decimal above 0 and at most 1, such as "0.5"`,
	},
	"a fraction of nothing": {
		pod("a", "tranche.dev/gpu-fraction=0"),
		`annotation tranche.dev/gpu-fraction: not a GPU fraction: "0" is nothing; write a decimal above 0 and at most 1, such as "0.5"`,
	},
	"a fraction above one": {
		pod("a", "tranche.dev/gpu-fraction=1.5"),
		`annotation tranche.dev/gpu-fraction: not a GPU fraction: "1.5" is more than one GPU; write at most "1", and for several GPUs add the annotation tranche.dev/gpu-count`,
	},
	"a container's fraction above one": {
		pod("a", "tranche.dev/gpu-fraction.a=2"),
		`annotation tranche.dev/gpu-fraction.a: not a GPU fraction: "2" is more than one GPU; write at most "1", and for several GPUs add the annotation tranche.dev/gpu-count`,
	},
	"memory without a unit": {
		pod("a", "tranche.dev/gpu-memory=20"),
		`annotation tranche.dev/gpu-memory: not an amount of GPU memory: "20" is less than 1Mi; did you leave out the unit? Write "20Gi" or "512Mi"`,
	},
	"memory that is no quantity": {
		pod("a", "tranche.dev/gpu-memory=20GB"),
		`annotation tranche.dev/gpu-memory: not an amount of GPU memory: "20GB"; write a number with a unit, such as "20Gi" or "512Mi"`,
	},
	"no memory": {
		pod("a", "tranche.dev/gpu-memory=0Gi"),
		`annotation tranche.dev/gpu-memory: not an amount of GPU memory: "0Gi" is nothing; write how much is needed, such as "20Gi"`,
	},
	"memory beyond any GPU": {
		pod("a", "tranche.dev/gpu-memory=2Pi"),
		`annotation tranche.dev/gpu-memory: not an amount of GPU memory: "2Pi" is more than any GPU has; write what one GPU can hold, such as "20Gi"`,
	},
	"fraction and memory": {
		pod("a", "tranche.dev/gpu-fraction=0.5", "tranche.dev/gpu-memory=20Gi"),
		"container a gets part of a GPU from two annotations, tranche.dev/gpu-fraction and tranche.dev/gpu-memory; keep one of them",
	},
	"two fractions": {
		pod("a", "tranche.dev/gpu-fraction=0.5", "tranche.dev/gpu-fraction.a=0.5"),
		"container a gets part of a GPU from two annotations, tranche.dev/gpu-fraction and tranche.dev/gpu-fraction.a; keep one of them",
	},
	"fraction of a whole GPU": {
		pod("a nvidia.com/gpu=1", "tranche.dev/gpu-fraction=0.5"),
		"container a asks for nvidia.com/gpu and the annotation tranche.dev/gpu-fraction asks for part of a GPU; remove one of them",
	},
	"fraction that contradicts the limit": {
		pod("a nvidia.com/gpu-share=60", "tranche.dev/gpu-fraction=0.5"),
		"container a asks for nvidia.com/gpu-share: 60, but the annotation tranche.dev/gpu-fraction makes it 50; remove one of them",
	},
	"fraction on two GPUs that contradicts the limit": {
		pod("a nvidia.com/gpu-share=50", "tranche.dev/gpu-fraction=0.5", "tranche.dev/gpu-count=2"),
		"container a asks for nvidia.com/gpu-share: 50, but the annotation tranche.dev/gpu-fraction makes it 100; remove one of them",
	},
	"memory with a limit above a GPU": {
		pod("a nvidia.com/gpu-share=101", "tranche.dev/gpu-memory=20Gi"),
		"container a asks for nvidia.com/gpu-share: 101, but one GPU has 100; write at most 100, ask for nvidia.com/gpu for whole GPUs, or spread it over several GPUs with the annotation tranche.dev/gpu-count",
	},
	"fraction of a container that is not there": {
		pod("init:i", "a", "tranche.dev/gpu-fraction.b=0.5"),
		`annotation tranche.dev/gpu-fraction.b names container "b", which the pod does not have; name one of its containers: i, a`,
	},
	"a container that is not there": {
		pod("a", "tranche.dev/gpu-fraction=0.5", "tranche.dev/container=b"),
		`annotation tranche.dev/container names container "b", which the pod does not have; name one of its containers: a`,
	},
	"a pod without containers": {
		pod("tranche.dev/gpu-fraction=0.5"),
		"annotation tranche.dev/gpu-fraction: the pod has no containers",
	},
	"a count that is no number": {
		pod("a nvidia.com/gpu-share=50", "tranche.dev/gpu-count=two"),
		`annotation tranche.dev/gpu-count: "two"; write the number of GPUs, such as "2"`,
	},
	"a count of nothing": {
		pod("a nvidia.com/gpu-share=50", "tranche.dev/gpu-count=0"),
		`annotation tranche.dev/gpu-count: "0"; write the number of GPUs, such as "2"`,
	},
	"a count beyond any node": {
		pod("a nvidia.com/gpu-share=50", "tranche.dev/gpu-count=1025"),
		`annotation tranche.dev/gpu-count: "1025"; write the number of GPUs, such as "2"`,
	},
	"a count of whole GPUs": {
		pod("a nvidia.com/gpu=2", "tranche.dev/gpu-count=2"),
		"annotation tranche.dev/gpu-count means container a, which asks for nvidia.com/gpu; that number already is the count of GPUs, so remove the annotation",
	},
	"a count of no part": {
		pod("a", "tranche.dev/gpu-count=2"),
		"annotation tranche.dev/gpu-count means container a, which asks for no part of a GPU; add tranche.dev/gpu-fraction or tranche.dev/gpu-memory, or name the container with tranche.dev/container",
	},
	"no model": {
		pod("a nvidia.com/gpu=1", "tranche.dev/gpu-model= ,"),
		`annotation tranche.dev/gpu-model is empty; write one or more models, such as "NVIDIA-A100-SXM4-80GB", or remove it`,
	},
	"an unknown placement": {
		pod("a nvidia.com/gpu=1", "tranche.dev/placement=pack"),
		`annotation tranche.dev/placement: "pack"; write "least-waste", "binpack" or "spread"`,
	},
	"an unknown isolation": {
		pod("a nvidia.com/gpu=1", "tranche.dev/isolation=true"),
		`annotation tranche.dev/isolation: "true"; write "required" or remove it`,
	},
	"an init container of the other resource": {
		pod("init:i nvidia.com/gpu=1", "a nvidia.com/gpu-share=50"),
		"init container and container a ask for GPUs in different ways; the kubelet hands an init container's GPUs on, so use only nvidia.com/gpu-share or only nvidia.com/gpu in this pod",
	},
	"an init container of more GPUs": {
		pod("init:i nvidia.com/gpu=2", "a nvidia.com/gpu=1"),
		"containers i and a ask for different parts of several GPUs in a pod with a GPU init container; the kubelet hands an init container's GPUs on, so ask for the same in each",
	},
	"an init container of other parts of two GPUs": {
		pod("init:i nvidia.com/gpu-share=50", "a", "tranche.dev/gpu-fraction=0.3", "tranche.dev/gpu-count=2", "tranche.dev/container=a"),
		"containers i and a ask for different parts of several GPUs in a pod with a GPU init container; the kubelet hands an init container's GPUs on, so ask for the same in each",
	},
	"an init container and more than a GPU": {
		pod("init:i nvidia.com/gpu-share=10", "a nvidia.com/gpu-share=60", "b nvidia.com/gpu-share=60"),
		"the containers of a pod with a GPU init container share its GPUs, and together they ask for 120 shares of each; one GPU has 100, so ask for less or take the GPU from the init container",
	},
	"an init container and two whole GPUs": {
		pod("init:i nvidia.com/gpu=1", "a nvidia.com/gpu=1", "b nvidia.com/gpu=1"),
		"the containers of a pod with a GPU init container share its GPUs, and together they ask for 200 shares of each; one GPU has 100, so ask for less or take the GPU from the init container",
	},
}

func TestParsePodSaysWhatToWriteInstead(t *testing.T) {
	for name, tc := range refused {
		t.Run(name, func(t *testing.T) {
			req, err := contract.ParsePod(tc.pod, contract.DefaultResources())
			if !errors.Is(err, contract.ErrRequest) {
				t.Fatalf("request %+v, error %v", req, err)
			}
			if diff := cmp.Diff("GPU request: "+tc.want, err.Error()); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(contract.Request{}, req); diff != "" {
				t.Errorf("a refused pod has a request: %s", diff)
			}
		})
	}
}

func TestParsePodReportsAllProblemsAtOnce(t *testing.T) {
	p := pod("a nvidia.com/gpu-share=0", "b nvidia.com/gpu=1 nvidia.com/gpu-share=1", "tranche.dev/gpu-fraction.c=2", "tranche.dev/placement=x", "tranche.dev/isolation=x")
	_, err := contract.ParsePod(p, contract.DefaultResources())
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{"container a asks for", "container b asks for both", `names container "c"`, "tranche.dev/placement", "tranche.dev/isolation"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error lacks %q:\n%v", want, err)
		}
	}
	if n := strings.Count(err.Error(), "GPU request: "); n != 5 {
		t.Errorf("%d problems, want 5:\n%v", n, err)
	}
}

func TestParsePodUsesTheConfiguredResources(t *testing.T) {
	res := contract.Resources{Share: "example.com/slice", GPU: "example.com/card", PerGPU: 10}
	got, err := contract.ParsePod(pod("a example.com/slice=10", "b example.com/card=1", "c nvidia.com/gpu=1", "tranche.dev/gpu-fraction.c=0.25"), res)
	if err != nil {
		t.Fatal(err)
	}
	card := gpus("b", 1)
	card.Shares = 10
	if diff := cmp.Diff(demands(shares("a", 10), card, shares("c", 3)), got); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
	if _, err := contract.ParsePod(pod("a example.com/slice=11"), res); err == nil || !strings.Contains(err.Error(), "one GPU has 10") {
		t.Errorf("11 of 10 shares: %v", err)
	}
}

func TestAllowsModel(t *testing.T) {
	if req := (contract.Request{Models: []string{"A", "B"}}); !req.AllowsModel("B") || req.AllowsModel("C") || req.AllowsModel("") {
		t.Error("the listed models, and only they, must be allowed")
	}
	if !(contract.Request{}).AllowsModel("C") {
		t.Error("without a list every model must be allowed")
	}
}

func TestDemandOnGPUsOfDifferentSize(t *testing.T) {
	big := contract.GPU{UUID: "big", MemoryMiB: 81920}
	small := contract.GPU{UUID: "small", MemoryMiB: 24576}
	cases := map[string]struct {
		demand     contract.Demand
		big, small contract.Grant
	}{
		"shares":       {shares("a", 33), contract.Grant{GPU: "big", Shares: 33, MemoryMiB: 27033}, contract.Grant{GPU: "small", Shares: 33, MemoryMiB: 8110}},
		"memory":       {memory("a", 20000), contract.Grant{GPU: "big", Shares: 25, MemoryMiB: 20000}, contract.Grant{GPU: "small", Shares: 82, MemoryMiB: 20000}},
		"whole":        {gpus("a", 2), contract.Grant{GPU: "big", Shares: 100, MemoryMiB: 81920}, contract.Grant{GPU: "small", Shares: 100, MemoryMiB: 24576}},
		"too big":      {memory("a", 30000), contract.Grant{GPU: "big", Shares: 37, MemoryMiB: 30000}, contract.Grant{GPU: "small", Shares: 123, MemoryMiB: 30000}},
		"all of a GPU": {memory("a", 24576), contract.Grant{GPU: "big", Shares: 30, MemoryMiB: 24576}, contract.Grant{GPU: "small", Shares: 100, MemoryMiB: 24576}},
	}
	for name, tc := range cases {
		if diff := cmp.Diff([]contract.Grant{tc.big, tc.small}, []contract.Grant{tc.demand.GrantOn(big, 100), tc.demand.GrantOn(small, 100)}); diff != "" {
			t.Errorf("%s: grants on a big and a small GPU (-want +got):\n%s", name, diff)
		}
	}
}

func TestLimitIsWhatTheKubeletCounts(t *testing.T) {
	cases := map[string]struct {
		demand contract.Demand
		name   corev1.ResourceName
		want   int64
	}{
		"shares":                    {shares("a", 50), share, 50},
		"shares on two GPUs":        {onTwo(shares("a", 50)), share, 100},
		"whole GPUs":                {gpus("a", 3), whole, 3},
		"memory, on the largest":    {memory("a", 20480), share, 25},
		"memory on two GPUs":        {onTwo(memory("a", 20480)), share, 50},
		"memory beyond the largest": {memory("a", 100_000), share, 100},
		"very little memory":        {memory("a", 1), share, 1},
	}
	for name, tc := range cases {
		res, n := tc.demand.Limit(contract.DefaultResources(), 81920)
		if res != tc.name || n != tc.want {
			t.Errorf("%s: %s %d, want %s %d", name, res, n, tc.name, tc.want)
		}
	}
	// While no node is known the largest GPU is none.
	if _, n := memory("a", 20480).Limit(contract.DefaultResources(), 0); n != 100 {
		t.Errorf("with no GPU known: %d, want 100", n)
	}
}
