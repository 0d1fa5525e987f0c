package simulate_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tranche-dev/tranche/pkg/placement"
	"github.com/tranche-dev/tranche/pkg/simulate"
	"github.com/tranche-dev/tranche/pkg/units"
)

// small is a cluster of so many nodes of 4 GPUs and 32 processors.
func small(t *testing.T, nodes int) *simulate.Cluster {
	t.Helper()
	var b strings.Builder
	b.WriteString("sn,cpu_milli,memory_mib,gpu,model\n")
	for i := range nodes {
		fmt.Fprintf(&b, "n%d,32000,65536,4,%s\n", i, []string{"T4", "A10"}[i%2])
	}
	list, err := simulate.ReadNodesCSV(strings.NewReader(b.String()), units.DefaultSharesPerGPU)
	if err != nil {
		t.Fatal(err)
	}
	return &simulate.Cluster{Nodes: list, PerGPU: units.DefaultSharesPerGPU}
}

// list is pods of the form "cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec".
func list(t *testing.T, pods ...string) []simulate.Pod {
	t.Helper()
	text := "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"
	for i, p := range pods {
		text += fmt.Sprintf("p%03d,%s\n", i, p)
	}
	all, err := simulate.ReadPodsCSV(strings.NewReader(text), units.DefaultSharesPerGPU)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func asked(pods []simulate.Pod) (sum int64) {
	for _, p := range pods {
		sum += p.Asked
	}
	return sum
}

func TestPodsGoOnlyWhereAllTheyNeedIsFree(t *testing.T) {
	c := small(t, 2) // n0 has T4, n1 A10
	cases := map[string]struct {
		pods []string
		want []int
	}{
		"a model":                            {[]string{"1000,1,1,500,A10", "1000,1,1,500,T4", "1000,1,1,500,V100"}, []int{1, 0, -1}},
		"one of several models":              {[]string{"1000,1,4,1000,A10|V100", "1000,1,1,500,A10|V100"}, []int{1, -1}},
		"processors":                         {[]string{"30000,1,0,0,", "30000,1,0,0,", "3000,1,1,100,"}, []int{0, 1, -1}},
		"memory":                             {[]string{"1,65536,0,0,", "1,65536,0,0,", "1,1,1,100,"}, []int{0, 1, -1}},
		"several GPUs only where all unused": {[]string{"1,1,1,10,T4", "1,1,1,10,A10", "1,1,4,1000,", "1,1,3,1000,"}, []int{0, 1, -1, 0}},
		"shares are rounded up":              {[]string{"1,1,1,995,T4", "1,1,1,995,T4", "1,1,1,995,T4", "1,1,1,995,T4", "1,1,1,5,T4"}, []int{0, 0, 0, 0, -1}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			out := simulate.Replay(c, list(t, tc.pods...), simulate.Always(placement.Binpack))
			if diff := cmp.Diff(tc.want, out.Places); diff != "" {
				t.Errorf("nodes of the arrivals (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAllocationIsTheMeanWhereTheLoadRoundsToThat(t *testing.T) {
	c := small(t, 1) // 4 GPUs
	// Asked, in percent: 50, 100, 100 (nothing), 125. The last finds no room.
	out := simulate.Replay(c, list(t, "1,1,2,1000,", "1,1,2,1000,V100", "1,1,0,0,", "1,1,1,1000,"), simulate.Always(placement.Binpack))
	for percent, want := range map[int]float64{50: 50, 75: 50, 100: 50, 110: 50, 125: 75} {
		if got, ok := out.AllocationAt(percent); !ok || got != want {
			t.Errorf("allocated at %d %%: %g, %t; want %g", percent, got, ok, want)
		}
	}
	if got, ok := out.AllocationAt(130); ok {
		t.Errorf("allocated at 130 %%: %g, though the load never came to that", got)
	}
}

func TestLoadIsDrawnUpToWhatWasAskedFor(t *testing.T) {
	c := small(t, 10) // 40 GPUs
	pods := list(t, "1,1,1,500,", "1,1,2,1000,", "1,1,0,0,", "1,1,1,70,", "1,1,1,1000,")
	for seed := range int64(20) {
		load := simulate.Draw(pods, c, 1.3, seed)
		if got := asked(load.Arrivals); got > 52_000 || got <= 50_000 {
			t.Errorf("seed %d: %d thousandths are asked for, want up to 52000, and no pod's worth below", seed, got)
		}
		// All that is listed comes first, once.
		first := []string{}
		for _, p := range load.Arrivals[:len(pods)] {
			first = append(first, p.Name)
		}
		slices.Sort(first)
		if diff := cmp.Diff([]string{"p000", "p001", "p002", "p003", "p004"}, first); diff != "" {
			t.Errorf("seed %d: first come (-want +got):\n%s", seed, diff)
		}
		if diff := cmp.Diff(load, simulate.Draw(pods, c, 1.3, seed)); diff != "" {
			t.Errorf("seed %d does not repeat:\n%s", seed, diff)
		}
		order := slices.Clone(load.Order)
		slices.Sort(order)
		if diff := cmp.Diff([]int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, order); diff != "" {
			t.Errorf("seed %d: order of nodes (-want +got):\n%s", seed, diff)
		}
		if got := asked(simulate.Draw(pods, c, 0.05, seed).Arrivals); got > 2000 {
			t.Errorf("seed %d: %d thousandths are asked for, want at most 2000", seed, got)
		}
	}
	if got := simulate.Draw(list(t, "1,1,0,0,"), c, 1.3, 1).Arrivals; len(got) != 1 {
		t.Errorf("of pods without GPUs %d came, want each once", len(got))
	}
}

func TestNothingIsGivenTwice(t *testing.T) {
	c := small(t, 12)
	pods := list(t, "4000,4096,1,330,", "7000,9000,1,500,T4", "9000,9000,1,1000,", "2000,512,2,1000,", "3000,1000,1,120,A10|T4", "6000,1,0,0,", "500,1,1,210,")
	for name, chooser := range map[string]func(*simulate.Cluster) simulate.Chooser{
		"least-waste": simulate.LeastWaste,
		"binpack":     func(*simulate.Cluster) simulate.Chooser { return simulate.Always(placement.Binpack) },
		"spread":      func(*simulate.Cluster) simulate.Chooser { return simulate.Always(placement.Spread) },
	} {
		t.Run(name, func(t *testing.T) {
			load := simulate.Draw(pods, c, 2, 3)
			ordered := c.Ordered(load.Order)
			out := simulate.Replay(ordered, load.Arrivals, chooser(ordered))
			if n := out.Ledger.Totals().Overcommitted; n > 0 {
				t.Errorf("%d GPUs are overcommitted", n)
			}
			cpu, placed := make([]int64, len(c.Nodes)), int64(0)
			for i, at := range out.Places {
				if at >= 0 {
					cpu[at] += load.Arrivals[i].MilliCPU
					placed += load.Arrivals[i].Asked
				}
			}
			for i, used := range cpu {
				if used > 32000 || 32000-used != out.MilliCPU[i] {
					t.Errorf("node %d: %d milliCPU used, %d left", i, used, out.MilliCPU[i])
				}
			}
			if got := int64(out.Ledger.Totals().Allocated) * 10; got != placed {
				t.Errorf("%d thousandths in the ledger, %d placed", got, placed)
			}
			again := simulate.Replay(ordered, load.Arrivals, chooser(ordered))
			if diff := cmp.Diff(out.Places, again.Places); diff != "" {
				t.Errorf("the same replay ends otherwise:\n%s", diff)
			}
		})
	}
}

// Pods of 0.3 and 0.7 and few of 0.5 fit together well, if one looks ahead. The
// policy has seen none of them before.
func TestLeastWasteFillsMoreThanBinpackOfOddSizes(t *testing.T) {
	c := small(t, 60)
	pods := list(t,
		"4000,1,1,300,", "4000,1,1,300,", "4000,1,1,300,", "8000,1,1,700,", "8000,1,1,700,", "8000,1,1,700,",
		"6000,1,1,500,", "9000,1,1,1000,", "1000,1,1,1000,T4", "16000,1,2,1000,", "4000,1,0,0,")
	var waste, binpack float64
	for seed := range int64(5) {
		load := simulate.Draw(pods, c, 1.3, seed)
		ordered := c.Ordered(load.Order)
		w, _ := simulate.Replay(ordered, load.Arrivals, simulate.LeastWaste(ordered)).AllocationAt(130)
		b, _ := simulate.Replay(ordered, load.Arrivals, simulate.Always(placement.Binpack)).AllocationAt(130)
		waste, binpack = waste+w/5, binpack+b/5
	}
	if waste < binpack+1 {
		t.Errorf("least-waste fills %.2f %%, binpack %.2f %%; want one more at least", waste, binpack)
	}
}

func TestCSVThatCannotBeReadSaysWhatToWrite(t *testing.T) {
	nodes := func(text string) error {
		_, err := simulate.ReadNodesCSV(strings.NewReader(text), units.DefaultSharesPerGPU)
		return err
	}
	pods := func(text string) error {
		_, err := simulate.ReadPodsCSV(strings.NewReader(text), units.DefaultSharesPerGPU)
		return err
	}
	const nodeHeader, podHeader = "sn,cpu_milli,memory_mib,gpu,model\n", "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n"
	cases := map[string]struct {
		err  error
		want string
	}{
		"empty":            {nodes(""), "no first line with the columns sn,cpu_milli,memory_mib,gpu,model"},
		"pods for nodes":   {nodes(podHeader), "the first line has no column sn; write sn,cpu_milli,memory_mib,gpu,model"},
		"nodes for pods":   {pods(nodeHeader), "the first line has no column name"},
		"a short line":     {nodes(nodeHeader + "a,1\n"), "record on line 2: wrong number of fields"},
		"no number":        {nodes(nodeHeader + "a,1,1,1,T4\nb,many,1,1,T4\n"), `line 3: cpu_milli is "many"; write a whole number from 0 to`},
		"a negative one":   {pods(podHeader + "a,-1,1,1,500\n"), `line 2: cpu_milli is "-1"; write a whole number`},
		"not a number":     {pods(podHeader + "a,NaN,1,1,500\n"), `line 2: cpu_milli is "NaN"; write a whole number`},
		"too much":         {pods(podHeader + "a,1,1,1,1001\n"), `line 2: gpu_milli is "1001"; write a whole number from 0 to 1000`},
		"nothing of a GPU": {pods(podHeader + "a,1,1,1,0\n"), `line 2: gpu_milli is "0"; write 1 to 1000`},
		"a name twice":     {nodes(nodeHeader + "a,1,1,1,T4\na,1,1,1,T4\n"), `line 3: sn is "a"; write a name that no other node has`},
		"no model":         {nodes(nodeHeader + "a,1,1,1,\n"), `line 2: model is ""; write the model of the GPUs`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if tc.err == nil || !strings.Contains(tc.err.Error(), tc.want) {
				t.Errorf("error %v, want %q", tc.err, tc.want)
			}
		})
	}
}
