package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
	"github.com/tranche-dev/tranche/webhook/mutate"
)

// cluster is what the informers have shown of namespaces, nodes and queues. All
// methods may be called at any time from anywhere.
type cluster struct {
	log logr.Logger
	// queues are apart, since pods can be decided about without them: of those
	// cluster's own Ready says nothing.
	queues *queues

	mu sync.RWMutex
	// synced tell whether an informer has delivered its first list.
	synced []func() bool
	// namespaces holds every namespace, opted in or not.
	namespaces map[string]namespace
	// nodes holds what each node with an inventory has, gpus how many nodes
	// have each; fleet is made of gpus whenever its keys change.
	nodes map[string]nodeGPUs
	gpus  map[mutate.Model]int
	fleet mutate.Fleet
}

type namespace struct {
	facts   mutate.Namespace
	enabled bool
}

type nodeGPUs struct {
	// annotation is the text that models were read from.
	annotation string
	models     map[mutate.Model]bool
}

func newCluster(log logr.Logger) *cluster {
	return &cluster{
		log:        log,
		queues:     newQueues(),
		namespaces: map[string]namespace{},
		nodes:      map[string]nodeGPUs{},
		gpus:       map[mutate.Model]int{},
	}
}

var (
	// errNotReady: the first lists of namespaces and nodes are not in yet.
	errNotReady = errors.New("tranche-webhook is starting and does not know the cluster yet; try again in a few seconds")
	// errNoNamespace: a namespace so new that no informer has shown it.
	errNoNamespace = errors.New("tranche-webhook has not heard of the namespace yet; try again")
)

// patience is how long a request waits for the informer to show its namespace
// as opted in. The API server calls only for such namespaces, so if we see it
// otherwise, the label is probably newer than our view: letting the pod through
// would let it run without the GPU that it asks for. The wait is felt only where
// somebody removed the namespaceSelector from the webhook configuration.
const (
	patience     = 500 * time.Millisecond
	patienceStep = 10 * time.Millisecond
)

// Namespace returns what is known of a namespace, and whether its pods are
// Tranche's business.
func (c *cluster) Namespace(ctx context.Context, name string) (mutate.Namespace, bool, error) {
	ns, known, err := c.lookUp(name)
	if err != nil || ns.enabled {
		return ns.facts, ns.enabled, err
	}
	// A timeout, or a client that gave up, leaves the last answer standing.
	_ = wait.PollUntilContextTimeout(ctx, patienceStep, patience, false, func(context.Context) (bool, error) {
		ns, known, err = c.lookUp(name)
		return ns.enabled, err
	})
	if err == nil && !known {
		err = fmt.Errorf("namespace %s: %w", name, errNoNamespace)
	}
	return ns.facts, ns.enabled, err
}

func (c *cluster) lookUp(name string) (ns namespace, known bool, err error) {
	if err := c.Ready(); err != nil {
		return namespace{}, false, err
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	ns, known = c.namespaces[name]
	return ns, known, nil
}

// Fleet returns the GPUs that nodes report. The caller must not change it.
func (c *cluster) Fleet() mutate.Fleet {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.fleet
}

// Queues returns the queues, nil if nothing is known of them. The caller must not
// change it.
func (c *cluster) Queues(ctx context.Context) mutate.Queues { return c.queues.Queues(ctx) }

// Ready says why no decision can be made yet.
func (c *cluster) Ready() error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, synced := range c.synced {
		if !synced() {
			return errNotReady
		}
	}
	return nil
}

// follow takes in what an informer shows of namespaces or nodes.
func (c *cluster) follow(informer interface {
	AddEventHandler(toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error)
}, set func(*metav1.PartialObjectMetadata), remove func(name string),
) error {
	update := func(obj any) {
		if m, ok := obj.(*metav1.PartialObjectMetadata); ok {
			set(m)
		}
	}
	registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    update,
		UpdateFunc: func(_, obj any) { update(obj) },
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			if m, ok := obj.(*metav1.PartialObjectMetadata); ok {
				remove(m.Name)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("follow informer: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.synced = append(c.synced, registration.HasSynced)
	return nil
}

func (c *cluster) setNamespace(m *metav1.PartialObjectMetadata) {
	ns := namespace{
		facts: mutate.Namespace{
			Name:            m.Name,
			Queue:           m.Labels[contract.QueueLabel],
			DefaultFraction: m.Annotations[contract.DefaultFractionAnnotation],
		},
		enabled: m.Labels[contract.InjectLabel] == contract.InjectEnabled,
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.namespaces[m.Name] = ns
}

func (c *cluster) removeNamespace(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.namespaces, name)
}

func (c *cluster) setNode(m *metav1.PartialObjectMetadata) {
	text := m.Annotations[contract.InventoryAnnotation]
	c.mu.RLock()
	unchanged := c.nodes[m.Name].annotation == text // also a node without any
	c.mu.RUnlock()
	if unchanged {
		return
	}
	models := map[mutate.Model]bool{}
	if text != "" {
		inventory, err := contract.ParseInventory(text)
		if err != nil {
			c.log.Error(err, "Ignored the GPUs of a node", "node", m.Name)
		}
		largest := map[string]units.MiB{}
		for _, g := range inventory.GPUs {
			largest[g.Model] = max(largest[g.Model], g.MemoryMiB)
		}
		for name, memory := range largest {
			models[mutate.Model{Name: name, Memory: memory}] = true
		}
	}
	c.replaceNode(m.Name, nodeGPUs{annotation: text, models: models})
}

func (c *cluster) removeNode(name string) { c.replaceNode(name, nodeGPUs{}) }

// replaceNode puts node in place of what was known under that name; the zero
// nodeGPUs removes it.
func (c *cluster) replaceNode(name string, node nodeGPUs) {
	c.mu.Lock()
	defer c.mu.Unlock()
	changed := false
	for m := range c.nodes[name].models {
		if c.gpus[m]--; c.gpus[m] == 0 {
			delete(c.gpus, m)
			changed = true
		}
	}
	for m := range node.models {
		if c.gpus[m]++; c.gpus[m] == 1 {
			changed = true
		}
	}
	if node.annotation == "" {
		delete(c.nodes, name)
	} else {
		c.nodes[name] = node
	}
	if changed {
		c.fleet = fleetOf(c.gpus)
	}
}

func fleetOf(gpus map[mutate.Model]int) mutate.Fleet {
	largest := map[string]units.MiB{}
	for m := range gpus {
		largest[m.Name] = max(largest[m.Name], m.Memory)
	}
	fleet := mutate.Fleet{Models: make([]mutate.Model, 0, len(largest))}
	for name, memory := range largest {
		fleet.Models = append(fleet.Models, mutate.Model{Name: name, Memory: memory})
	}
	slices.SortFunc(fleet.Models, func(a, b mutate.Model) int { return strings.Compare(a.Name, b.Name) })
	return fleet
}

// strip cuts namespaces and nodes down to what cluster reads before they are
// kept in memory: their names, Tranche's labels and Tranche's annotations.
func strip(obj any) (any, error) {
	m, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return obj, nil
	}
	ours := func(all map[string]string) map[string]string {
		all = maps.Clone(all)
		maps.DeleteFunc(all, func(key, _ string) bool { return !strings.HasPrefix(key, contract.Prefix) })
		return all
	}
	return &metav1.PartialObjectMetadata{
		TypeMeta: m.TypeMeta,
		ObjectMeta: metav1.ObjectMeta{
			Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion,
			Labels: ours(m.Labels), Annotations: ours(m.Annotations),
		},
	}, nil
}
