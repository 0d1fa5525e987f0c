package assign

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/tranche-dev/tranche/nodeplugin/ledger"
	"github.com/tranche-dev/tranche/nodeplugin/slice"
	"github.com/tranche-dev/tranche/pkg/contract"
)

// view is what is known of the pods when a question is answered.
type view struct {
	pods []Pod
	st   ledger.State
	// gone pods are in the ledger still, but use nothing any more.
	gone []types.UID
	// fromKubelet is the list's.
	fromKubelet bool
}

// look asks for the pods and leaves out of the ledger those that are gone.
func (a *Assigner) look(ctx context.Context) (view, error) {
	// The book first: whoever is in it was admitted before the list was made,
	// so that a pod which is not in the list is one that has left.
	v := view{st: a.store.State()}
	list, err := a.pods.Pods(ctx)
	if err != nil {
		return view{}, err
	}
	v.fromKubelet = list.FromKubelet
	v.pods = views(list.Pods, a.opts.Node, a.opts.Resources)
	for i := range v.pods {
		at, rejected := a.rejected[v.pods[i].UID]
		v.pods[i].Rejected = rejected && a.opts.Clock.Since(at) < rejectedFor
	}
	v.gone = departed(v.pods, v.st, a.liveness, list.FromKubelet)
	for _, uid := range v.gone {
		v.st.Release(uid)
	}
	return v, nil
}

func views(list []*corev1.Pod, node string, res contract.Resources) []Pod {
	pods := make([]Pod, 0, len(list))
	for _, p := range list {
		if v, ok := PodOf(p, node, res); ok {
			pods = append(pods, v)
		}
	}
	return pods
}

// departed returns the pods of the ledger that use nothing any more.
func departed(pods []Pod, st ledger.State, alive Liveness, fromKubelet bool) []types.UID {
	listed := make(map[types.UID]bool, len(pods)) // to whether it has ended
	for i := range pods {
		listed[pods[i].UID] = pods[i].Ended
	}
	var gone []types.UID
	for _, p := range st.Pods() {
		over, ok := listed[p.UID]
		if over || (!ok && !alive.Lingers(p, fromKubelet)) {
			gone = append(gone, p.UID)
		}
	}
	return gone
}

// identify finds out for which container q is asked.
func (a *Assigner) identify(ctx context.Context, v view, q question) (candidate, *Refusal) {
	cs := candidates(v.pods, v.st, q, a.resources())
	return a.decide(ctx, cs, q, v.fromKubelet)
}

// decide picks one of the candidates. If it is not plain which, the kubelet's
// records exclude those that have their devices, and those that it has not met
// yet: it admits one pod after the other, and a list from the API server, which
// is all there is while the kubelet takes up its first pods after a restart,
// has the later ones as well.
func (a *Assigner) decide(ctx context.Context, cs []candidate, q question, fromKubelet bool) (candidate, *Refusal) {
	log := klog.FromContext(ctx)
	for len(cs) > 0 {
		best := likeliest(cs)
		cs = cs[len(best):]
		// A pod that has just come, alone, is the one; any other may have had
		// its devices before the ledger began.
		if len(best) == 1 && best[0].rank() == 0 && fromKubelet {
			return best[0], nil
		}
		var open []candidate
		for _, c := range best {
			has, err := a.hasDevices(ctx, c, q.resource)
			if errors.Is(err, ErrPodUnknown) && !fromKubelet {
				continue
			}
			if err != nil {
				log.V(2).Info("Kubelet's record of a pod is missing", "pod", klog.KRef(c.pod.Namespace, c.pod.Name), "err", err)
			}
			if !has {
				open = append(open, c)
			}
		}
		if !fromKubelet {
			// Those that the kubelet has met and that have nothing have failed,
			// which the API server does not know yet, except the last it met.
			slices.Reverse(open)
		}
		if len(open) > 1 {
			a.metrics.ambiguous(q.resource)
			log.Info("Several containers may be the one that the kubelet asks for; taking the likeliest whose GPUs are free",
				"resource", q.resource, "size", q.size, "candidates", len(open))
		}
		for _, c := range open {
			if a.fitsAvailable(c, q) {
				return c, nil
			}
		}
		if len(open) > 0 {
			return open[0], nil
		}
	}
	return candidate{}, nobody(q)
}

// hasDevices says whether the kubelet has recorded devices for the container.
func (a *Assigner) hasDevices(ctx context.Context, c candidate, resource string) (bool, error) {
	recorded, err := a.devices.Devices(ctx, c.pod.Namespace, c.pod.Name)
	if err != nil {
		return false, err
	}
	// Of ordinary init containers the kubelet's answers say nothing.
	return len(recorded[c.container][resource]) > 0, nil
}

// fitsAvailable says whether the candidate's plan can be served from q. Without
// a list of free devices, in Allocate, everything can.
func (a *Assigner) fitsAvailable(c candidate, q question) bool {
	if a.planFits(c, q.size, q.resource) != nil {
		return false
	}
	if len(q.available) == 0 {
		return true
	}
	_, shortage := slice.Choose(gpusOf(c.pod.Plan[c.container]), q.available, q.must, q.size)
	return shortage == nil
}

// reject remembers that the kubelet will fail c's pod. It may have been another
// one that it asked for, so c only comes last from now on.
func (a *Assigner) reject(c candidate) {
	now := a.opts.Clock.Now()
	maps.DeleteFunc(a.rejected, func(_ types.UID, at time.Time) bool { return now.Sub(at) >= rejectedFor })
	if c.pod != nil {
		a.rejected[c.pod.UID] = now
	}
}
