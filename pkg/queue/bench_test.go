package queue_test

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/queue"
)

const (
	benchmarkQueues  = 1000
	benchmarkCharges = 20_000
)

// organization is a tree of three levels, 10 × 9 × 10 leaves, with 20,000 pods
// that want twice what there is.
func organization() (tree *queue.Tree, leaves []string) {
	tree = queue.New()
	h100, a100 := tree.Model("H100"), tree.Model("A100")
	tree.SetCapacity(queue.Amounts{400_000, 50_000_000, 1 << 50, 200_000, 200_000})
	limit := make(queue.Amounts, a100+1)
	for r := range limit {
		limit[r] = queue.Unlimited
	}
	limit[h100] = 100_000
	for i := range 10 {
		top := fmt.Sprintf("org-%d", i)
		tree.Set(queue.Spec{Name: top, Deserved: queue.Amounts{30_000, 4_000_000}, Weight: int64(i), Limit: limit})
		for j := range 9 {
			middle := fmt.Sprintf("%s-%d", top, j)
			tree.Set(queue.Spec{Name: middle, Parent: top, Deserved: queue.Amounts{3000}, Priority: int32(j % 3)})
			for k := range 10 {
				leaf := fmt.Sprintf("%s-%d", middle, k)
				tree.Set(queue.Spec{Name: leaf, Parent: middle, Deserved: queue.Amounts{300}, Weight: int64(k)})
				leaves = append(leaves, leaf)
			}
		}
	}
	for i := range benchmarkCharges {
		state := queue.Pending
		if i%2 == 0 {
			state = queue.Allocated
		}
		model := h100
		if i%3 == 0 {
			model = a100
		}
		tree.Charge(types.UID(fmt.Sprintf("pod-%d", i)), leaves[i*7%len(leaves)], state, benchmarkAsk(int64(i%80), model))
	}
	return tree, leaves
}

func benchmarkAsk(n int64, model queue.Resource) queue.Amounts {
	ask := make(queue.Amounts, model+1)
	ask[queue.GPU], ask[queue.CPU], ask[queue.Memory], ask[model] = n, 4000, 1<<34, n
	return ask
}

func BenchmarkSolve1000Queues(b *testing.B) {
	tree, leaves := organization()
	b.Run("demand", func(b *testing.B) {
		b.ReportAllocs()
		n := int64(0)
		for b.Loop() {
			n++
			tree.Charge("pod-1", leaves[0], queue.Pending, gpus(n))
			tree.Entitled(leaves[0], nil)
		}
	})
	b.Run("specs", func(b *testing.B) {
		b.ReportAllocs()
		n := int64(0)
		for b.Loop() {
			n++
			tree.Set(queue.Spec{Name: leaves[0], Parent: "org-0-0", Weight: n})
			tree.Entitled(leaves[0], nil)
		}
	})
}

// BenchmarkCharge admits a pod and evicts it.
func BenchmarkCharge(b *testing.B) {
	tree, leaves := organization()
	ask := benchmarkAsk(50, queue.FirstModel)
	tree.Charge("new", leaves[5], queue.Pending, ask)
	tree.Entitled(leaves[5], ask)
	b.Run("move", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			tree.Charge("new", leaves[5], queue.Held, ask)
			tree.Charge("new", leaves[5], queue.Pending, ask)
		}
	})
	b.Run("check", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if tree.Check(leaves[5], ask) != nil {
				b.Fatal("refused")
			}
		}
	})
	b.Run("entitled", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			tree.Entitled(leaves[5], ask)
		}
	})
}

func BenchmarkContest(b *testing.B) {
	tree, leaves := organization()
	ask := benchmarkAsk(50, queue.FirstModel)
	head := queue.Head{Ask: ask, Created: time.Unix(0, 0)}
	enter := func() *queue.Contest {
		contest := tree.Contest()
		for _, leaf := range leaves {
			contest.Set(leaf, head)
		}
		return contest
	}
	b.Run("enter", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			enter()
		}
	})
	b.Run("next", func(b *testing.B) {
		contest := enter()
		b.ReportAllocs()
		for b.Loop() {
			name, ok := contest.Next()
			if !ok {
				b.Fatal("nobody")
			}
			head.Created = head.Created.Add(time.Second)
			contest.Set(name, head)
		}
	})
}

func BenchmarkTrial(b *testing.B) {
	tree, leaves := organization()
	ask := benchmarkAsk(1, queue.FirstModel)
	b.ReportAllocs()
	for b.Loop() {
		x := tree.Trial(leaves[0], ask)
		for _, leaf := range leaves[100:110] {
			x.MayTake(leaf, ask)
			x.Take(leaf, ask)
		}
		x.Entitled()
	}
}
