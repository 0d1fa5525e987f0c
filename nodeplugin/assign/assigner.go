package assign

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/tranche-dev/tranche/nodeplugin/cdi"
	"github.com/tranche-dev/tranche/nodeplugin/ledger"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

// Pods tells which pods the kubelet has at this moment, the one that it is
// admitting included. It answers in milliseconds or not at all.
type Pods interface {
	Pods(ctx context.Context) (PodList, error)
}

// PodList is a list of the node's pods.
type PodList struct {
	Pods []*corev1.Pod
	// FromKubelet lists have all pods that the kubelet has, and no other. Those
	// from the API server may be behind, and ahead, of the kubelet.
	FromKubelet bool
}

// Devices tells which devices the kubelet has recorded for a pod, by container
// and resource. Ordinary init containers are left out.
type Devices interface {
	// Devices returns ErrPodUnknown if the kubelet has not met the pod yet.
	Devices(ctx context.Context, namespace, name string) (map[string]map[string][]string, error)
}

// ErrPodUnknown says that the kubelet does not have the pod: it has not begun
// to admit it, or has finished with it.
var ErrPodUnknown = errors.New("the kubelet does not have the pod")

// Liveness knows about pods that the kubelet lists no longer.
type Liveness interface {
	// Lingers says whether containers of such a pod may still run: a pod that
	// is deleted by force leaves the list at once and its GPU later.
	// fromKubelet is that of the list in which it is missing.
	Lingers(p *ledger.Pod, fromKubelet bool) bool
}

// GPU is the state of a GPU at this moment.
type GPU struct {
	Healthy bool
	// Reason says why not.
	Reason string
	Memory units.MiB
}

// Options say for whom the Assigner works.
type Options struct {
	Node      string
	Resources contract.Resources
	// GPUs returns the GPUs that the kubelet was told of.
	GPUs  func() map[contract.GPUUUID]GPU
	Clock clock.PassiveClock
}

// Assigner answers the kubelet. Its methods are safe for concurrent use; they
// run one after the other, as the kubelet asks.
type Assigner struct {
	opts     Options
	pods     Pods
	devices  Devices
	liveness Liveness
	store    *ledger.Store
	cdi      *cdi.Writer
	metrics  *Metrics

	// turn holds a token while a call is in progress.
	turn chan struct{}
	// pending are preferences not yet followed by an Allocate, oldest first.
	// Guarded by turn.
	pending []pending
	// rejected are pods that the kubelet failed because we refused them, and
	// when: it asks for them no more. Guarded by turn.
	rejected map[types.UID]time.Time
}

// New returns an Assigner over a ledger.
func New(opts Options, pods Pods, devices Devices, liveness Liveness, store *ledger.Store, w *cdi.Writer, m *Metrics) *Assigner {
	return &Assigner{
		opts: opts, pods: pods, devices: devices, liveness: liveness, store: store, cdi: w, metrics: m,
		turn: make(chan struct{}, 1), rejected: map[types.UID]time.Time{},
	}
}

func (a *Assigner) resources() []string {
	return []string{string(a.opts.Resources.Share), string(a.opts.Resources.GPU)}
}

func (a *Assigner) take(ctx context.Context) error {
	select {
	case a.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (a *Assigner) release() { <-a.turn }
