package watch

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/tranche-dev/tranche/extender/internal/fixture"
	"github.com/tranche-dev/tranche/pkg/contract"
)

// A pod without GPUs that loses its queue label is never forgotten, not even when it is gone.
func TestAPodThatLosesItsQueueIsForgotten(t *testing.T) {
	h := &heard{}
	w := New(fake.NewClientset(), nil, resources, all(h))
	handler := &podHandler{t.Context(), w}
	entry := func(pod *corev1.Pod) any {
		e, err := w.cutPod(pod)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	with := fixture.Pod("o", "")
	with.Labels = map[string]string{contract.QueueLabel: "a"}
	without := with.DeepCopy()
	without.Labels = nil
	handler.OnAdd(entry(with), true)
	handler.OnUpdate(entry(with), entry(without))
	handler.OnDelete(entry(without))
	if diff := cmp.Diff([]string{`pod uid-o on "" ended=false`, "pod uid-o gone"}, h.take()); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
}
