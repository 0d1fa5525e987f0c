package server

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/webhook/mutate"
)

// queues is what an informer has shown of Queue objects. All methods may be
// called at any time from anywhere.
type queues struct {
	mu sync.RWMutex
	// synced tells whether the first list is in; nil until it is known whether
	// there is anything to list.
	synced func() bool
	// served is false while the API server has no such kind: then nothing is
	// known of queues, which is not the same as that there are none.
	served bool
	known  mutate.Queues
	// shown is a copy of known that has been handed out, nil if known has changed
	// since. What the extender writes into a status every second changes nothing
	// of this, so that copies are rare.
	shown mutate.Queues
}

func newQueues() *queues { return &queues{known: mutate.Queues{}} }

// Ready says why nothing can be said yet.
func (q *queues) Ready() error {
	q.mu.RLock()
	defer q.mu.RUnlock()
	if q.synced == nil || !q.synced() {
		return errNotReady
	}
	return nil
}

// Queues returns the queues, nil if there is no such kind or, after a moment's
// patience, nothing has been heard: pods that are let through then are still
// judged by the extender if they use GPUs. The caller must not change it.
func (q *queues) Queues(ctx context.Context) mutate.Queues {
	if q.Ready() != nil {
		// A timeout, or a client that gave up, leaves the last answer standing.
		_ = wait.PollUntilContextTimeout(ctx, patienceStep, patience, false, func(context.Context) (bool, error) {
			return q.Ready() == nil, nil
		})
		if q.Ready() != nil {
			return nil
		}
	}
	q.mu.RLock()
	shown, served := q.shown, q.served
	q.mu.RUnlock()
	if shown != nil || !served {
		return shown
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.shown == nil && q.served {
		q.shown = maps.Clone(q.known)
	}
	return q.shown
}

func (q *queues) set(o *v1alpha1.Queue) {
	queue := queueOf(o)
	q.mu.Lock()
	defer q.mu.Unlock()
	if old, exists := q.known[o.Name]; exists && old == queue {
		return
	}
	q.known[o.Name], q.shown = queue, nil
}

func (q *queues) remove(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.known, name)
	q.shown = nil
}

// without notes that the API server has no such kind.
func (q *queues) without() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.synced, q.served, q.shown = func() bool { return true }, false, nil
}

// follow takes in what informer shows.
func (q *queues) follow(informer cache.Informer) error {
	update := func(obj any) {
		if o, ok := obj.(*v1alpha1.Queue); ok {
			q.set(o)
		}
	}
	registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    update,
		UpdateFunc: func(_, obj any) { update(obj) },
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			if o, ok := obj.(*v1alpha1.Queue); ok {
				q.remove(o.Name)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("follow informer: %w", err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.synced, q.served = registration.HasSynced, true
	return nil
}

func queueOf(o *v1alpha1.Queue) mutate.Queue {
	counts := func(r v1alpha1.QueueResources) bool { return r.CPU != nil || r.Memory != nil }
	return mutate.Queue{
		Parent:    o.Spec.Parent,
		Admission: o.Spec.Admission,
		Open:      o.Status.Open,
		Stopped:   o.Spec.StopPolicy == v1alpha1.StopHold || o.Spec.StopPolicy == v1alpha1.StopHoldAndDrain || o.DeletionTimestamp != nil,
		Compute:   counts(o.Spec.Deserved) || counts(o.Spec.Limit),
	}
}

// stripQueue cuts Queues down to what queueOf reads before they are kept in
// memory.
func stripQueue(obj any) (any, error) {
	o, ok := obj.(*v1alpha1.Queue)
	if !ok {
		return obj, nil
	}
	return &v1alpha1.Queue{
		TypeMeta:   o.TypeMeta,
		ObjectMeta: metav1.ObjectMeta{Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion, DeletionTimestamp: o.DeletionTimestamp},
		Spec: v1alpha1.QueueSpec{
			Parent: o.Spec.Parent, Admission: o.Spec.Admission, StopPolicy: o.Spec.StopPolicy,
			Deserved: v1alpha1.QueueResources{CPU: o.Spec.Deserved.CPU, Memory: o.Spec.Deserved.Memory},
			Limit:    v1alpha1.QueueResources{CPU: o.Spec.Limit.CPU, Memory: o.Spec.Limit.Memory},
		},
		Status: v1alpha1.QueueStatus{Open: o.Status.Open},
	}, nil
}

// queueFollower makes queues follow the informer of Queues as soon as there is
// that kind. It is the manager's to run, beside the other informers and not
// before them: pods must not wait for a kind that an administrator has removed.
type queueFollower struct {
	informers interface {
		GetInformer(context.Context, client.Object, ...cache.InformerGetOption) (cache.Informer, error)
	}
	to *queues
}

var (
	_ manager.Runnable               = queueFollower{}
	_ manager.LeaderElectionRunnable = queueFollower{}
)

// NeedLeaderElection is false: every replica answers.
func (queueFollower) NeedLeaderElection() bool { return false }

// queuesAgain is how soon it is noticed that Queues are served after all.
const queuesAgain = 30 * time.Second

// Start tries until the informer runs, or ctx ends.
func (f queueFollower) Start(ctx context.Context) error {
	log := klog.FromContext(ctx).WithValues("kind", "Queue")
	said := false
	for pause := time.Duration(0); ; {
		informer, err := f.informers.GetInformer(ctx, &v1alpha1.Queue{}, cache.BlockUntilSynced(false))
		switch {
		case err == nil:
			log.V(2).Info("Served")
			return f.to.follow(informer)
		case meta.IsNoMatchError(err):
			if f.to.without(); !said {
				log.Info("Not served, so no single pod is held for its queue; apply Tranche's CustomResourceDefinitions")
				said = true
			}
			pause = queuesAgain
		default:
			// Soon again at first: readiness waits for the answer.
			log.V(2).Info("Not known whether it is served", "reason", err.Error())
			pause = min(max(2*pause, time.Second), queuesAgain)
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
}
