package inventory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/tranche-dev/tranche/pkg/contract"
)

const (
	firstPause = 200 * time.Millisecond
	maxPause   = 30 * time.Second
	// atMostEvery is the least time between two writes. It doubles, up to
	// maxPause, with every write that undoes somebody else's: during an update
	// of the node plugin two processes may disagree. peaceAfter ends that.
	atMostEvery = 200 * time.Millisecond
	peaceAfter  = time.Minute
	writeFor    = 10 * time.Second
)

// Publisher keeps contract.InventoryAnnotation on a Node as wanted, and writes
// again if somebody changes or removes it. It writes that key and no other. It
// is safe for concurrent use.
type Publisher struct {
	client  kubernetes.Interface
	node    string
	clock   clock.Clock
	factory informers.SharedInformerFactory
	cache   cache.SharedIndexInformer
	kick    chan struct{}
	// earlier is closed once the annotation that was there is known.
	earlier chan struct{}

	mu sync.Mutex
	// wanted is the text to write, empty if nothing is wanted yet; written the
	// text that was last written or seen.
	wanted, written string
	// version is the Node's after our last write; foreign is set while somebody
	// else's stands.
	version string
	foreign bool
	err     error
	// found is the annotation that an earlier process left.
	found string
	// changed is closed, and replaced, whenever what Err says may have changed.
	changed chan struct{}
}

// NewPublisher returns a Publisher for the Node of that name. Call Run.
func NewPublisher(client kubernetes.Interface, node string, c clock.Clock) *Publisher {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("metadata.name", node).String()
		}))
	return &Publisher{
		client: client, node: node, clock: c, factory: factory, cache: factory.Core().V1().Nodes().Informer(),
		kick: make(chan struct{}, 1), earlier: make(chan struct{}), changed: make(chan struct{}),
		err: errors.New("the node's inventory is not known yet"),
	}
}

// Set changes what is wanted.
func (p *Publisher) Set(inv contract.Inventory) error {
	text, err := inv.Format()
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.wanted = text
	p.mu.Unlock()
	p.wake()
	return nil
}

// Err says why the Node does not carry the wanted inventory; nil if it does.
func (p *Publisher) Err() error {
	_, err := p.Status()
	return err
}

// Status is Err, with a channel that is closed when it may have changed.
func (p *Publisher) Status() (<-chan struct{}, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil && p.written != p.wanted {
		return p.changed, errors.New("the node's inventory is about to be written")
	}
	return p.changed, p.err
}

// Earlier waits for the inventory that the Node had before this process wrote
// one. The second result is false if it had none that can be read.
func (p *Publisher) Earlier(ctx context.Context) (contract.Inventory, bool) {
	select {
	case <-p.earlier:
	case <-ctx.Done():
		return contract.Inventory{}, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	inv, err := contract.ParseInventory(p.found)
	return inv, err == nil
}

func (p *Publisher) wake() {
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

// Run writes until ctx ends.
func (p *Publisher) Run(ctx context.Context) error {
	log := klog.FromContext(ctx)
	var once sync.Once
	see := func(o any) {
		node, ok := o.(*corev1.Node)
		if !ok {
			return
		}
		once.Do(func() {
			p.mu.Lock()
			p.found = node.Annotations[contract.InventoryAnnotation]
			p.mu.Unlock()
			close(p.earlier)
		})
		p.saw(ctx, node)
	}
	if _, err := p.cache.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: see, UpdateFunc: func(_, o any) { see(o) },
	}); err != nil {
		return fmt.Errorf("watch node: %w", err)
	}
	p.factory.StartWithContext(ctx)
	defer p.factory.Shutdown()
	pause, quarrel := firstPause, atMostEvery
	var last time.Time
	complained := ""
	for {
		foreign := p.contested()
		wrote, err := p.write(ctx)
		if ctx.Err() != nil {
			return nil // asked to stop
		}
		wait := time.Duration(0)
		switch {
		case err != nil:
			wait = pause
			pause = min(2*pause, maxPause)
			if err.Error() != complained {
				complained = err.Error()
				log.Error(err, "Inventory not written; trying again")
			}
		case wrote:
			now := p.clock.Now()
			if foreign && now.Sub(last) < peaceAfter {
				quarrel = min(2*quarrel, maxPause)
			} else {
				quarrel = atMostEvery
			}
			wait, last = quarrel, now
			pause, complained = firstPause, ""
		}
		if wait > 0 {
			select {
			case <-ctx.Done():
				return nil
			case <-p.clock.After(wait):
			}
		}
		if err != nil {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-p.kick:
		}
	}
}

// saw takes in what the Node carries, unless that is older than our last write.
func (p *Publisher) saw(ctx context.Context, node *corev1.Node) {
	text := node.Annotations[contract.InventoryAnnotation]
	p.mu.Lock()
	if order, err := resourceversion.CompareResourceVersion(node.ResourceVersion, p.version); err == nil && order < 0 {
		p.mu.Unlock()
		return
	}
	news := text != p.written
	p.foreign = p.wanted != "" && text != p.wanted && (news || p.foreign)
	foreign := p.foreign && news
	p.written = text
	p.moved()
	p.mu.Unlock()
	if foreign {
		klog.FromContext(ctx).Info("Somebody changed the node's inventory; writing it again")
	}
	p.wake()
}

// contested says whether somebody else wrote the annotation last.
func (p *Publisher) contested() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.foreign
}

// moved tells those who wait on Status; the caller holds p.mu.
func (p *Publisher) moved() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// write makes the Node carry what is wanted, if it does not.
func (p *Publisher) write(ctx context.Context) (wrote bool, err error) {
	p.mu.Lock()
	wanted, written := p.wanted, p.written
	p.mu.Unlock()
	if wanted == "" {
		return false, nil
	}
	var version string
	if wanted != written {
		version, err = p.patch(ctx, wanted)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil && wanted != written {
		p.written, p.version, p.foreign = wanted, version, false
	}
	if (err == nil) != (p.err == nil) || wanted != written {
		p.err = err
		p.moved()
	}
	p.err = err
	return err == nil && wanted != written, err
}

// patch writes the annotation and returns the version that the Node has then.
func (p *Publisher) patch(ctx context.Context, text string) (string, error) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{contract.InventoryAnnotation: text}}})
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, writeFor)
	defer cancel()
	node, err := p.client.CoreV1().Nodes().Patch(ctx, p.node, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "tranche-nodeplugin"})
	if err != nil {
		return "", fmt.Errorf("write the inventory of node %s: %w", p.node, err)
	}
	klog.FromContext(ctx).V(2).Info("Wrote the node's inventory", "bytes", len(text))
	return node.ResourceVersion, nil
}
