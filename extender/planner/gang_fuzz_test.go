package planner

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tranche-dev/tranche/extender/internal/fixture"
	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
)

// size is what every gang of the storm needs.
const stormSize = 3

// storm lets anything happen to three gangs on two nodes of four GPUs, in the
// order that r says, and then lets everybody work in peace. world.checkWhole
// watches every Binding.
func storm(t *testing.T, r func(n int) int, steps int) {
	runWorld(t, 2, func(w *world) {
		w.size = stormSize
		made := 0
		failing, refusing := 0, ""
		w.failBind = func(*corev1.Pod) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			if failing > 0 {
				failing--
				return errConflict
			}
			return nil
		}
		w.refuses = func(_ *corev1.Pod, node string) bool { return node == refusing }
		some := func() *corev1.Pod {
			w.mu.Lock()
			defer w.mu.Unlock()
			var pick *corev1.Pod
			n := r(16)
			for i := range made {
				for g := range 3 {
					if pod := w.pods[fixture.Identify(memberPod("", fmt.Sprintf("g%d-%d", g, i), 0)).UID]; pod != nil {
						pick = pod
						if n--; n < 0 {
							return pick
						}
					}
				}
			}
			return pick
		}
		for range steps {
			switch r(12) {
			case 0, 1, 2:
				g := r(3)
				w.create(memberPod(fmt.Sprint("g", g), fmt.Sprintf("g%d-%d", g, made), stormSize, "100"))
				made++
			case 3:
				if pod := some(); pod != nil {
					w.remove(pod)
				}
			case 4:
				if pod := some(); pod != nil && pod.Spec.NodeName != "" {
					w.change(pod.UID, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
				}
			case 5:
				if pod := some(); pod != nil {
					w.change(pod.UID, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} })
				}
			case 6:
				failing = r(3)
			case 7:
				refusing = []string{"", "a", "b"}[r(3)]
			case 8:
				w.restart()
			case 9:
				w.after(time.Duration(r(20)) * time.Second)
			case 10:
				w.admit()
			default:
				w.schedule()
			}
			w.after(time.Millisecond)
		}
		w.calm()
	})
}

// restart kills the planner and starts one that reads everything anew.
func (w *world) restart() {
	w.stop()
	w.finish()
	reports := w.effects.reports
	w.start()
	nodes := w.nodes
	for _, name := range nodes {
		w.bigNode(name, 4)
	}
	w.mu.Lock()
	pods := make([]*corev1.Pod, 0, len(w.pods))
	for _, pod := range w.pods {
		pods = append(pods, pod)
	}
	clear(w.busy)
	w.mu.Unlock()
	for key, r := range reports {
		if r.Keep {
			w.p.ObserveGang(w.Context(), &view.Gang{
				Namespace: key.Namespace, Name: key.Name, Managed: true, MinCount: r.MinCount,
				Started: meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.GangStarted),
			})
		}
	}
	if w.before != nil {
		w.before()
	}
	for _, pod := range pods {
		w.tell(pod)
	}
	if err := w.p.Rebuilt(w.Context()); err != nil {
		w.Error(err)
	}
}

// calm lets everybody work without trouble, and looks whether each gang is
// whole, or not begun for a reason.
func (w *world) calm() {
	w.failBind, w.refuses = nil, nil
	for _, uid := range w.deleting() {
		w.remove(w.pod(uid.UID))
	}
	w.goOnBy(12*time.Minute, time.Second)
	if n := w.overcommitted(); n > 0 {
		w.Errorf("%d GPUs are overcommitted", n)
	}
	held := w.held()
	for g := range 3 {
		gang := fmt.Sprint("g", g)
		live, bound := 0, 0
		w.mu.Lock()
		done := w.ended[gang]
		for _, pod := range w.pods {
			switch {
			case pod.Labels["tranche.dev/gang"] != gang:
			case pod.Status.Phase == corev1.PodSucceeded:
				done++
			case pod.Spec.NodeName != "":
				live++
				bound++
			default:
				live++
			}
		}
		w.mu.Unlock()
		word, message := w.why(gang)
		if live > bound && word == "" {
			w.Errorf("gang %s: %d of %d members wait without a reason", gang, live-bound, live)
		}
		if bound > 0 && bound+done < stormSize && !w.started[gang] {
			w.Errorf("gang %s is torn: %d bound, %d done: %s: %s", gang, bound, done, word, message)
		}
	}
	if held != 0 {
		w.Errorf("%d shares are held though nothing happens", held)
	}
}

func (w *world) deleting() []*corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []*corev1.Pod
	for _, pod := range w.pods {
		if pod.DeletionTimestamp != nil {
			list = append(list, pod)
		}
	}
	return list
}

// evict does what the planner asked for.
func (w *world) evict() {
	for _, name := range w.effects.take(&w.effects.evicted) {
		w.evicted = append(w.evicted, name)
		if pod := w.pod(fixture.Identify(memberPod("", name, 0)).UID); pod != nil {
			w.remove(pod)
		}
	}
}

func TestGangsUnderRandomEvents(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			storm(t, r.IntN, 120)
		})
	}
}

func FuzzGangEvents(f *testing.F) {
	f.Add([]byte{0, 0, 0, 1, 0, 2, 10, 11, 3, 0, 8, 11, 11})
	f.Fuzz(func(t *testing.T, data []byte) {
		at := 0
		storm(t, func(n int) int {
			if at >= len(data) {
				return 0
			}
			at++
			return int(data[at-1]) % n
		}, min(len(data), 200))
	})
}
