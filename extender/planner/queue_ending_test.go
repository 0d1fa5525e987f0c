package planner

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tranche-dev/tranche/extender/view"
)

// However its pods end, a queue that is being deleted is let go when the last has
// gone, though nothing happens afterwards.
func TestAQueueBeingDeletedIsLetGo(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 3)).IntN
			runQueues(t, 1, func(w *world) {
				w.queue(aQueue("q", "", limited(float64(1+r(4)))))
				w.submit("q", 2, "100")
				w.create(queued("q", "impossible", "9 GPU"))
				w.goOn(time.Second)
				w.queue(aQueue("q", "", func(q *view.Queue) { q.Deleting = true }))
				w.submit("q", 1+r(2), []string{"100", "9 GPU"}[r(2)])
				w.create(open(queued("q", "open", "100")))
				w.goOn(time.Duration(r(2000)) * time.Millisecond)
				for pod := w.anyPod(r); pod != nil; pod = w.anyPod(r) {
					switch r(4) {
					case 0:
						w.change(pod.UID, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} })
					case 1:
						w.change(pod.UID, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
					case 2:
						w.goOn(time.Duration(r(500)) * time.Millisecond)
						continue
					}
					w.after(time.Duration(r(500)) * time.Millisecond)
					w.remove(pod)
				}
				w.after(2 * time.Minute) // which may be the grace of one that was deleted by force
				w.effects.mu.Lock()
				defer w.effects.mu.Unlock()
				if got := w.effects.queues["q"]; got.InUse {
					t.Errorf("the queue is kept, with status %+v", got.Status)
				}
			})
		})
	}
}
