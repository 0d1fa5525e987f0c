package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/transport"

	"github.com/tranche-dev/tranche/nodeplugin/nvml/models"
	"github.com/tranche-dev/tranche/nodeplugin/nvml/simulation"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

// SimNodePrefix is followed by a number from 0 in the simulated nodes' names.
const SimNodePrefix = "tranche-sim-"

// simulatedLabel tells them from others.
const simulatedLabel = contract.Prefix + "simulated"

// SimNode describes one simulated node.
type SimNode struct {
	Name string `json:"name"`
	// MilliCPU and Memory, in bytes, are what pods may request.
	MilliCPU  int64              `json:"milliCPU"`
	Memory    int64              `json:"memory"`
	Inventory contract.Inventory `json:"inventory"`
}

// simNode is one simulated node as it shall be.
type simNode struct {
	name      string
	inventory string
	capacity  corev1.ResourceList
}

// simNodes are all of them.
func simNodes(o Options) ([]simNode, error) {
	list := o.SimList
	if len(list) == 0 {
		var err error
		if list, err = simList(o); err != nil {
			return nil, err
		}
	}
	nodes := make([]simNode, 0, len(list))
	resources := contract.DefaultResources()
	for _, n := range list {
		inventory, err := n.Inventory.Format()
		if err != nil {
			return nil, fmt.Errorf("simulated node %s: %w", n.Name, err)
		}
		capacity := corev1.ResourceList{
			corev1.ResourceCPU:              *resource.NewMilliQuantity(n.MilliCPU, resource.DecimalSI),
			corev1.ResourceMemory:           *resource.NewQuantity(n.Memory, resource.BinarySI),
			corev1.ResourceEphemeralStorage: resource.MustParse("2Ti"),
			// More than a kubelet's 110, so that shares run out first.
			corev1.ResourcePods: resource.MustParse("1024"),
		}
		if gpus := int64(len(n.Inventory.GPUs)); gpus > 0 {
			capacity[resources.Share] = *resource.NewQuantity(int64(resources.PerGPU)*gpus, resource.DecimalSI)
			capacity[resources.GPU] = *resource.NewQuantity(gpus, resource.DecimalSI)
		}
		nodes = append(nodes, simNode{name: n.Name, inventory: inventory, capacity: capacity})
	}
	return nodes, nil
}

// simList deals the models out to the nodes in turn. Each is a server with eight
// GPUs, but for their number.
func simList(o Options) ([]SimNode, error) {
	list := make([]SimNode, 0, o.SimNodes)
	for i := range o.SimNodes {
		name := SimNodePrefix + strconv.Itoa(i)
		m, err := models.Lookup(o.SimModels[i%len(o.SimModels)])
		if err != nil {
			return nil, err
		}
		list = append(list, SimNode{Name: name, MilliCPU: 96_000, Memory: 1 << 40, Inventory: simInventory(name, m, o.SimGPUs)})
	}
	return list, nil
}

// simInventory is what a node plugin would write of the node. The UUIDs are
// always the same for a node's name, so that an idle Up changes nothing.
func simInventory(node string, m models.Model, count int) contract.Inventory {
	inv := contract.Inventory{SharesPerGPU: units.DefaultSharesPerGPU, GPUs: []contract.GPU{}}
	for i := range count {
		inv.GPUs = append(inv.GPUs, contract.GPU{
			UUID: models.UUID(node, i), Index: i, Model: m.Name(), MemoryMiB: m.Memory, Driver: simulation.DefaultDriver,
			// Half of the GPUs at each of two sockets, as in servers with eight.
			NUMA: i * 2 / max(count, 2), Healthy: true, Isolation: contract.IsolationNone,
		})
	}
	return inv
}

func (n simNode) labels() map[string]string {
	return map[string]string{
		contract.NodeLabel:     "true",
		corev1.LabelHostname:   n.name,
		corev1.LabelOSStable:   "linux",
		corev1.LabelArchStable: "amd64",
		simulatedLabel:         "true",
	}
}

// applySimNodes makes the cluster's simulated nodes exactly these: creates,
// changes what differs, removes the surplus with its pods.
func (c *Cluster) applySimNodes(ctx context.Context) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	want, err := simNodes(c.options)
	if err != nil {
		return err
	}
	// From the API server's cache: cheap with thousands of nodes.
	list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: simulatedLabel + "=true", ResourceVersion: "0"})
	if err != nil {
		return fmt.Errorf("list simulated nodes: %w", err)
	}
	have := make(map[string]*corev1.Node, len(list.Items))
	for i := range list.Items {
		have[list.Items[i].Name] = &list.Items[i]
	}
	plugin, err := c.clientAs(nodePluginOf(""))
	if err != nil {
		return err
	}
	err = inParallel(ctx, want, func(ctx context.Context, n simNode) error {
		node, err := n.ensure(ctx, client, have[n.name])
		if err != nil || node.Annotations[contract.InventoryAnnotation] == n.inventory {
			return err
		}
		return n.writeInventory(ctx, plugin)
	})
	if err != nil {
		return err
	}
	for _, n := range want {
		delete(have, n.name)
	}
	return c.removeNodes(ctx, slices.Collect(maps.Keys(have)))
}

// status is what a kubelet registers with. The node is ready at once, which
// saves a write for each of thousands; kwok keeps it so.
func (n simNode) status(now metav1.Time) corev1.NodeStatus {
	return corev1.NodeStatus{
		Capacity:    n.capacity,
		Allocatable: n.capacity,
		NodeInfo: corev1.NodeSystemInfo{
			OperatingSystem: "linux", Architecture: "amd64", OSImage: "simulated", KubeletVersion: "kwok", ContainerRuntimeVersion: "kwok",
		},
		Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "kubelet is posting ready status",
			LastHeartbeatTime: now, LastTransitionTime: now,
		}},
	}
}

// ensure makes the node, or makes it offer what it shall.
func (n simNode) ensure(ctx context.Context, client kubernetes.Interface, have *corev1.Node) (*corev1.Node, error) {
	if have == nil {
		node, err := client.CoreV1().Nodes().Create(ctx, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: n.name, Labels: n.labels(), Annotations: map[string]string{kwokAnnotation: kwokFake}},
			Status:     n.status(metav1.Now()),
		}, metav1.CreateOptions{FieldManager: fieldManager})
		if err != nil {
			return nil, fmt.Errorf("create node %s: %w", n.name, err)
		}
		return node, nil
	}
	if equality.Semantic.DeepEqual(have.Status.Allocatable, n.capacity) {
		return have, nil
	}
	// A JSON patch replaces the lists whole; other patches would leave a
	// resource that is no longer wanted.
	patch, err := json.Marshal([]map[string]any{
		{"op": "add", "path": "/status/capacity", "value": n.capacity},
		{"op": "add", "path": "/status/allocatable", "value": n.capacity},
	})
	if err == nil {
		have, err = client.CoreV1().Nodes().Patch(ctx, n.name, types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: fieldManager}, "status")
	}
	if err != nil {
		return nil, fmt.Errorf("status of node %s: %w", n.name, err)
	}
	return have, nil
}

// writeInventory is what a node plugin of that very node does: nobody else may.
// One client serves all nodes, as making one costs more than the request: who
// it is for is in a header.
func (n simNode) writeInventory(ctx context.Context, plugin kubernetes.Interface) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{contract.InventoryAnnotation: n.inventory}}})
	if err == nil {
		err = plugin.CoreV1().RESTClient().Patch(types.MergePatchType).Resource("nodes").Name(n.name).
			SetHeader(transport.ImpersonateUserExtraHeaderPrefix+url.PathEscape(nodeNameExtra), n.name).
			Param("fieldManager", NodePlugin).Body(patch).Do(ctx).Error()
	}
	if err != nil {
		return fmt.Errorf("inventory of node %s: %w", n.name, err)
	}
	return nil
}
