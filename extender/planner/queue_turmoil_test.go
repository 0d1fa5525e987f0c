package planner

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tranche-dev/tranche/extender/internal/fixture"
	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/contract"
)

// turmoil is a storm in which queues and nodes change as well, GPUs are of three
// models, Bindings fail, and the scheduler refuses nodes.
type turmoil struct {
	*world
	r      func(n int) int
	leaves []string
	made   int
	// refused is the node that the scheduler does not want now, fails how many
	// Bindings are to fail.
	refused string
	fails   int
}

func newTurmoil(w *world, r func(n int) int) *turmoil {
	u := &turmoil{world: w, r: r, leaves: []string{"x-1", "x-2", "y-1", "y-2", "default"}}
	for i := range 6 {
		u.editQueue(i)
	}
	u.otherModels()
	w.nodes, w.tells = append(w.nodes, "d", "e"), true
	w.refuses = func(_ *corev1.Pod, node string) bool { return node == u.refused }
	w.failBind = func(*corev1.Pod) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if u.fails > 0 {
			u.fails--
			return errConflict
		}
		return nil
	}
	return u
}

// otherModels are nodes beside those of runQueues.
func (u *turmoil) otherModels() {
	u.modelNode("d", 2, "B", 81920)
	u.modelNode("e", 2, "C", 40960)
}

// restart lets everything be told anew.
func (u *turmoil) restart() {
	all := u.nodes
	u.nodes = all[:3]
	u.restartQueues(u.otherModels)
	u.nodes = all
}

// oneIn is true once in n times.
func (u *turmoil) oneIn(n int) bool { return u.r(n) == 0 }

// editQueue makes one of the queues anew, with limits and shares of any kind.
func (u *turmoil) editQueue(i int) {
	names := [...][2]string{{"x", ""}, {"y", ""}, {"x-1", "x"}, {"x-2", "x"}, {"y-1", "y"}, {"y-2", "y"}}
	u.queue(aQueue(names[i][0], names[i][1], func(q *view.Queue) {
		if u.oneIn(2) {
			limited(float64(u.r(7)))(q)
		}
		if u.oneIn(3) {
			cpuLimited(int64(1 + u.r(8)))(q)
		}
		if u.oneIn(3) {
			modelLimited(map[string]float64{fixture.Model: float64(u.r(5)), "B": float64(u.r(3)), "C": float64(u.r(3))})(q)
		}
		if u.oneIn(2) {
			deserves(float64(u.r(5)))(q)
		}
		if u.oneIn(8) {
			held(q)
		}
		if u.oneIn(4) {
			q.WhenFull = v1alpha1.WhenFullExpose
		}
	}))
}

func (u *turmoil) newPod() *corev1.Pod {
	limits := []string{"50", "100", "25", "2 GPU", ""}[u.r(5)]
	pod := queued(u.leaves[u.r(len(u.leaves))], fmt.Sprint("p", u.made), limits)
	if u.oneIn(4) && limits != "" && limits != "2 GPU" {
		annotated(pod, contract.MemoryAnnotation, "15Gi")
	}
	if u.oneIn(3) {
		withCPU(pod, fmt.Sprint(1+u.r(8)))
	}
	if u.oneIn(3) {
		open(pod)
	}
	if u.oneIn(6) {
		withPriority(pod, 10)
	}
	return pod
}

func (u *turmoil) step() {
	u.made++
	pod := u.anyPod(u.r)
	bound := pod != nil && pod.Spec.NodeName != ""
	switch n := u.r(15); {
	case n < 3:
		u.create(u.newPod())
	case n == 3:
		u.create(inQueue(u.leaves[u.r(len(u.leaves))], gangPods(fmt.Sprint("g", u.made), 3, 1+u.r(3), "100")...)...)
	case n < 6 && bound:
		u.change(pod.UID, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
		u.remove(pod)
	case n == 6 && pod != nil:
		u.remove(pod)
	case n == 7 && u.oneIn(4):
		u.restart()
	case n == 8:
		u.editQueue(u.r(6))
	case n == 9:
		u.refused = []string{"", "", "a", "d"}[u.r(4)]
	case n == 10:
		u.fails = u.r(3)
	case n == 11 && bound:
		u.change(pod.UID, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} })
	case n == 12:
		u.changeNode(u.nodes[u.r(3)])
	default:
		u.goOn(time.Duration(u.r(3000)) * time.Millisecond)
	}
	u.wantSound()
	if u.oneIn(4) {
		u.wantSettled()
	}
}

func (u *turmoil) changeNode(name string) {
	switch u.r(3) {
	case 0:
		u.p.ForgetNode(u.Context(), name)
	case 1:
		u.bigNode(name, 2)
	default:
		u.bigNode(name, 4)
	}
}

// calmDown ends all trouble and lets everybody have what there is.
func (u *turmoil) calmDown() {
	u.refused, u.fails = "", 0
	for _, name := range u.nodes[:3] {
		u.bigNode(name, 4)
	}
	for _, pod := range u.deleting() {
		u.remove(pod)
	}
	u.goOnBy(20*time.Minute, time.Second)
	u.wantSound()
}

// placed are the pods that have a node, by name.
func (u *turmoil) placed() map[string]bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	list := map[string]bool{}
	for _, pod := range u.pods {
		if pod.Spec.NodeName != "" {
			list[pod.Name] = true
		}
	}
	return list
}

// reasons say why pods wait, by name.
func (u *turmoil) reasons() map[string]string {
	list, err := ask(u.Context(), u.p, func(_ context.Context, s *state, _ time.Time) map[string]string {
		list := map[string]string{}
		for _, e := range s.pending {
			list[e.pod.Name] = fmt.Sprintf("queue %s, reason %q, %v", s.queueName(e.pod.UID), e.reason, e.why)
		}
		for _, m := range s.members {
			list[m.pod.Name] += fmt.Sprintf(" of a gang of queue %s, %v", s.queueName(m.pod.UID), m.gang.why)
		}
		return list
	})
	if err != nil {
		u.Error(err)
	}
	return list
}

// A restart knows no more than the planner did before: whoever it places could
// have been placed before, and was overlooked.
func TestNobodyIsOverlookedInTurmoil(t *testing.T) {
	for _, seed := range []uint64{17, 22, 28, 34, 66, 75, 95, 113} { // each was wrong once
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			runQueues(t, 3, func(w *world) {
				u := newTurmoil(w, rand.New(rand.NewPCG(seed, 7)).IntN)
				for range 100 {
					u.step()
				}
				u.calmDown()
				before, reasons, evicted := u.placed(), u.reasons(), len(u.evicted)
				u.restart()
				u.goOnBy(3*time.Minute, time.Second)
				for name := range u.placed() {
					if !before[name] && len(u.evicted) == evicted {
						t.Errorf("%s was placed only after a restart; it waited as %s", name, reasons[name])
					}
				}
				u.wantSound()
				u.removeAll()
			})
		})
	}
}
