package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/gang"
	"github.com/tranche-dev/tranche/pkg/placement"
	"github.com/tranche-dev/tranche/pkg/simulate"
	"github.com/tranche-dev/tranche/pkg/units"
)

// world is what is simulated.
type world struct {
	cluster simulate.Cluster
	// pods are in the order in which they arrive.
	pods []simulate.Pod
	// notes are sentences on what was left out.
	notes []string
}

// read reads the files that the flags name.
func (o *simulateOptions) read(in io.Reader) (*world, error) {
	if o.filename == "" {
		return o.readCSV()
	}
	data, err := readAll(o.filename, in)
	if err != nil {
		return nil, err
	}
	w, err := readObjects(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.filename, err)
	}
	return w, nil
}

func readAll(name string, in io.Reader) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(in)
	}
	return os.ReadFile(name)
}

func (o *simulateOptions) readCSV() (*world, error) {
	w := &world{cluster: simulate.Cluster{PerGPU: units.DefaultSharesPerGPU}}
	nodes, err := os.Open(o.nodes)
	if err != nil {
		return nil, fmt.Errorf("--nodes: %w", err)
	}
	defer nodes.Close()
	if w.cluster.Nodes, err = simulate.ReadNodesCSV(nodes, w.cluster.PerGPU); err != nil {
		return nil, fmt.Errorf("--nodes=%s: %w", o.nodes, err)
	}
	if len(w.cluster.Nodes) == 0 {
		return nil, fmt.Errorf("--nodes=%s: no node has a GPU; write at least one with gpu above 0", o.nodes)
	}
	pods, err := os.Open(o.pods)
	if err != nil {
		return nil, fmt.Errorf("--pods: %w", err)
	}
	defer pods.Close()
	if w.pods, err = simulate.ReadPodsCSV(pods, w.cluster.PerGPU); err != nil {
		return nil, fmt.Errorf("--pods=%s: %w", o.pods, err)
	}
	return w, nil
}

// howToGet ends every complaint about objects.
const howToGet = "write the output of 'kubectl get nodes,pods -A -o yaml'"

// object is any item of a list.
type object struct {
	Kind  string            `json:"kind"`
	Items []json.RawMessage `json:"items"`
}

// readObjects reads a List of nodes and pods, in YAML or JSON.
func readObjects(data []byte) (*world, error) {
	var list object
	if err := yaml.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("neither YAML nor JSON; %s: %w", howToGet, err)
	}
	if !strings.HasSuffix(list.Kind, "List") {
		return nil, fmt.Errorf("kind is %q, not List; %s", list.Kind, howToGet)
	}
	var nodes []corev1.Node
	var pods []corev1.Pod
	for i, raw := range list.Items {
		var item object
		err := json.Unmarshal(raw, &item)
		switch {
		case err != nil:
		case item.Kind == "Node" || list.Kind == "NodeList":
			var n corev1.Node
			err = json.Unmarshal(raw, &n)
			nodes = append(nodes, n)
		case item.Kind == "Pod" || list.Kind == "PodList":
			var p corev1.Pod
			err = json.Unmarshal(raw, &p)
			pods = append(pods, p)
		}
		if err != nil {
			return nil, fmt.Errorf("items[%d] is no %s that can be read; %s: %w", i, cmp.Or(item.Kind, "object"), howToGet, err)
		}
	}
	return worldOf(nodes, pods)
}

// worldOf makes the world of a cluster's objects: its nodes with an inventory, and
// its GPU pods, none of which has a place yet. Pods without GPUs that run on these
// nodes stay there.
func worldOf(nodes []corev1.Node, pods []corev1.Pod) (*world, error) {
	w := &world{}
	res := contract.DefaultResources()
	at := map[string]int{}
	for i := range nodes {
		n := view.NodeOf(&nodes[i], res)
		switch {
		case n.Problem != "":
			return nil, fmt.Errorf("node %s: %s", n.Name, n.Problem)
		case n.Inventory == nil || len(n.Inventory.GPUs) == 0:
			continue
		case w.cluster.PerGPU != 0 && w.cluster.PerGPU != n.Inventory.SharesPerGPU:
			return nil, fmt.Errorf("node %s cuts its GPUs into %d shares and others into %d; leave one kind of nodes out", n.Name, n.Inventory.SharesPerGPU, w.cluster.PerGPU)
		}
		w.cluster.PerGPU = n.Inventory.SharesPerGPU
		w.cluster.Nodes = append(w.cluster.Nodes, simulate.Node{Name: n.Name, MilliCPU: n.Allocatable.MilliCPU, Memory: n.Allocatable.Memory, Inventory: *n.Inventory})
	}
	if len(w.cluster.Nodes) == 0 {
		return nil, fmt.Errorf("none of its %d nodes has the annotation %s with GPUs in it; %s of a cluster whose GPU nodes run Tranche's node plugin", len(nodes), contract.InventoryAnnotation, howToGet)
	}
	// The extender's order of equally good nodes.
	slices.SortFunc(w.cluster.Nodes, func(a, b simulate.Node) int {
		if placement.Before(a.Name, b.Name) {
			return -1
		}
		return 1
	})
	for i := range w.cluster.Nodes {
		at[w.cluster.Nodes[i].Name] = i
	}
	res.PerGPU = w.cluster.PerGPU
	slices.SortStableFunc(pods, func(a, b corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	unread := 0
	for i := range pods {
		if !w.addPod(&pods[i], res, at) {
			unread++
		}
	}
	if unread > 0 {
		w.notes = append(w.notes, fmt.Sprintf("%d pods were left out: their GPU requests are refused", unread))
	}
	return w, nil
}

// addPod lets a GPU pod arrive, and takes what another uses from its node. False:
// its request is refused.
func (w *world) addPod(pod *corev1.Pod, res contract.Resources, at map[string]int) bool {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return true
	}
	needs := gang.RequestsOf(pod)
	request, err := contract.ParsePod(pod, res)
	if err != nil {
		return false
	}
	if len(request.Demands) == 0 {
		if i, ok := at[pod.Spec.NodeName]; ok {
			w.cluster.Nodes[i].MilliCPU -= needs.MilliCPU
			w.cluster.Nodes[i].Memory -= needs.Memory
		}
		return true
	}
	p := simulate.Pod{Name: pod.Namespace + "/" + pod.Name, Request: request, MilliCPU: needs.MilliCPU, Memory: needs.Memory}
	p.Asked = asked(request, res.PerGPU, w.largest())
	if v := view.PodOf(pod, res); v != nil && v.Member != nil {
		p.Gang = pod.Namespace + "/" + v.Member.Gang
	}
	w.pods = append(w.pods, p)
	return true
}

// largest is the memory of the cluster's largest GPU.
func (w *world) largest() units.MiB {
	largest := units.MiB(1)
	for i := range w.cluster.Nodes {
		for _, g := range w.cluster.Nodes[i].Inventory.GPUs {
			largest = max(largest, g.MemoryMiB)
		}
	}
	return largest
}

// asked is what a request counts as, in thousandths of a GPU. What memory comes to
// depends on the GPU that it will be on, so it counts as on the largest.
func asked(request contract.Request, perGPU units.Shares, largest units.MiB) int64 {
	plan := contract.Plan{Containers: map[string][]contract.Grant{}}
	roles := make([]contract.ContainerRole, 0, len(request.Demands))
	for i, d := range request.Demands {
		roles = append(roles, d.ContainerRole)
		for n := range d.Count {
			gpu := contract.GPUUUID(fmt.Sprint(n))
			if !request.SameGPUs {
				gpu = contract.GPUUUID(fmt.Sprint(i, "-", n))
			}
			plan.Containers[d.Name] = append(plan.Containers[d.Name], contract.Grant{GPU: gpu, Shares: min(d.SharesOn(largest, perGPU), perGPU)})
		}
	}
	sum := units.Shares(0)
	for _, s := range plan.Charges(roles) {
		sum += s
	}
	return int64(sum) * 1000 / int64(perGPU)
}
