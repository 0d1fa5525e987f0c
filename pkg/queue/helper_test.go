package queue_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/queue"
)

// gpus is an amount of GPU shares alone.
func gpus(n int64) queue.Amounts { return queue.Amounts{n} }

// describe returns a tree of specs that divide capacity shares.
func describe(capacity int64, specs ...queue.Spec) *queue.Tree {
	t := queue.New()
	t.SetCapacity(gpus(capacity))
	for _, s := range specs {
		t.Set(s)
	}
	return t
}

// charge charges n shares to the queue, as a pod of its own.
func charge(t *queue.Tree, name string, state queue.State, n int64) {
	t.Charge(types.UID(fmt.Sprintf("%s-%s", name, state)), name, state, gpus(n))
}

// fairShares are the GPU shares that every queue is entitled to.
func fairShares(t *queue.Tree) map[string]int64 {
	shares := map[string]int64{}
	for _, name := range t.Names() {
		shares[name] = t.Usage(name).FairShare.Get(queue.GPU)
	}
	return shares
}

func wantEqual(t *testing.T, what string, want, got any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}
