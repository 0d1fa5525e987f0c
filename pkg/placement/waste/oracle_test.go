package waste_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/placement/waste"
	"github.com/tranche-dev/tranche/pkg/units"
)

// The oracle computes the terms of a node of one kind of GPUs straight from their
// definitions: a loop over all shapes for every question.
type oracle struct {
	shapes  []waste.Counted
	cluster waste.Cluster
}

func allows(s waste.Shape, model string) bool {
	return s.Models == "" || slices.Contains(strings.Split(s.Models, ","), model)
}

func partOn(s waste.Shape, memory units.MiB) int {
	if s.Memory == 0 {
		return s.Part
	}
	return int((s.Memory*100 + memory - 1) / memory)
}

// gpu is the thousandths of GPUs that a shape asks for, over those it may use.
func (o oracle) gpu(s waste.Shape) float64 {
	sum, n := 0, 0
	for _, k := range o.cluster.Kinds {
		if p := partOn(s, k.Class.MemoryMiB); allows(s, k.Class.Model) && p <= 100 {
			sum += p * k.GPUs
			n += k.GPUs
		}
	}
	if n == 0 {
		return 0
	}
	return float64(s.GPUs) * 10 * float64(sum) / float64(n)
}

// usual are the shapes of 95 % of the pods.
func (o oracle) usual() (shapes []waste.Counted, pods float64) {
	all := 0
	for _, s := range o.shapes {
		all += s.Count
	}
	sum := 0
	for _, s := range o.shapes {
		if float64(sum) >= 0.95*float64(all) {
			break
		}
		shapes = append(shapes, s)
		sum += s.Count
	}
	return shapes, float64(sum)
}

func (o oracle) terms(class *ledger.Class, free []int, cpu int64) (t waste.Terms) {
	var cpuGPU, cpuAll, gpu float64
	for _, s := range o.shapes {
		cpuAll += float64(s.Count) * float64(s.Shape.MilliCPU)
		if s.Shape.GPUs > 0 {
			cpuGPU += float64(s.Count) * float64(s.Shape.MilliCPU)
			gpu += float64(s.Count) * o.gpu(s.Shape)
		}
	}
	for _, f := range free {
		t.Free += 10 * float64(f)
	}
	t.Fragmentation = t.Free
	unfit := 0.0
	usual, pods := o.usual()
	for _, s := range usual {
		p, use, n := float64(s.Count)/pods, 0.0, 0
		for _, f := range free {
			if f >= partOn(s.Shape, class.MemoryMiB) {
				use += 10 * float64(f)
				n++
			}
		}
		fits := s.Shape.MilliCPU <= cpu && (s.Shape.GPUs == 0 || allows(s.Shape, class.Model) && n >= s.Shape.GPUs)
		switch {
		case !fits:
			unfit += p
		case s.Shape.GPUs > 0:
			t.Fragmentation -= p * use
		}
	}
	if gpu > 0 {
		t.Stranded = max(0, t.Free-float64(cpu)*gpu/cpuGPU)
		t.Idle = float64(cpu) * unfit * gpu / cpuAll
	}
	return t
}

func kinds() (all []waste.Kind) {
	for i, n := range []int{40, 25, 10} {
		all = append(all, waste.Kind{Class: &ledger.Class{Model: fmt.Sprint("M", i), MemoryMiB: units.MiB(16384 << i), SharesPerGPU: 100}, GPUs: n})
	}
	return all
}

func randomShapes(r *rand.Rand) []waste.Counted {
	l := waste.NewLearner()
	for range 200 {
		s := waste.Shape{MilliCPU: 1000 * (1 + r.Int64N(20))}
		switch r.IntN(6) {
		case 0:
		case 1:
			s.GPUs, s.Part = 1<<r.IntN(4), 100
		case 2:
			s.GPUs, s.Part = 1+r.IntN(3), 1+r.IntN(100)
		case 3:
			s.GPUs, s.Memory = 1, units.MiB(1+r.IntN(65536))
		default:
			s.GPUs, s.Part = 1, 1+r.IntN(100)
		}
		if s.GPUs > 0 && s.Memory == 0 && r.IntN(4) == 0 {
			s.Models = []string{"M0", "M1", "M0,M2"}[r.IntN(3)]
		}
		for range 1 + r.IntN(5) {
			l.Observe(s)
		}
	}
	return l.Shapes()
}

func TestTermsAreWhatTheirDefinitionsSay(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 30 {
		c := waste.Cluster{Kinds: kinds(), MilliCPU: 600_000, MaxMilliCPU: 64_000, MaxGPUs: 8}
		o := oracle{randomShapes(r), c}
		tables := waste.NewTables(o.shapes, c)
		for range 100 {
			class := c.Kinds[r.IntN(len(c.Kinds))].Class
			s := waste.State{PerGPU: 100, MilliCPU: r.Int64N(30_000)}
			var free []int
			for range 1 + r.IntN(8) {
				f := []int{0, 100, r.IntN(101)}[r.IntN(3)]
				free = append(free, f)
				s.Free = append(s.Free, units.Shares(f))
				s.GPUs = append(s.GPUs, ledger.GPUView{Class: class, Healthy: true})
			}
			take := waste.Take{GPU: r.IntN(len(free))}
			take.Shares = units.Shares(r.IntN(free[take.GPU] + 1))
			free[take.GPU] -= int(take.Shares)
			want, got := o.terms(class, free, s.MilliCPU), tables.Terms(&s, take)
			got.Holes = 0
			for name, d := range map[string]float64{
				"free": got.Free - want.Free, "fragmentation": got.Fragmentation - want.Fragmentation,
				"stranded": got.Stranded - want.Stranded, "idle": got.Idle - want.Idle,
			} {
				if math.Abs(d) > 1e-6 {
					t.Fatalf("%s of %v with %d free on %s is off by %g: got %+v, want %+v", name, free, s.MilliCPU, class.Model, d, got, want)
				}
			}
		}
	}
}
