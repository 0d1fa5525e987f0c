package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"github.com/tranche-dev/tranche/pkg/simulate"
)

// allPolicies is the word for every policy that there is.
const allPolicies = "all"

// maxLoad bounds how often the cluster's GPUs may be asked for: more than any
// question needs, and it ends within minutes.
const maxLoad = 10

// simulateOptions are the flags of simulate.
type simulateOptions struct {
	nodes, pods, filename string
	load                  float64
	seed                  int64
	policies              []string
	output                string
}

func simulateCommand() *cobra.Command {
	o := &simulateOptions{}
	cmd := &cobra.Command{
		Use:   "simulate (--nodes FILE.csv --pods FILE.csv | -f FILE.yaml)",
		Short: "Say how much of the GPUs each placement policy would fill",
		Long: `simulate places pods on a cluster that exists only on paper, with the ledger and
the placement of Tranche's extender. Pods come one at a time and none leaves; one
that finds no room waits.

Nodes and pods come from two CSV files, or from what kubectl prints. With --load,
pods are drawn from those listed until they ask for that many times the GPUs;
without, each of them comes once, in the order in which they were created.`,
		Example: `  kubectl get nodes,pods -A -o yaml | kubectl tranche simulate -f -
  kubectl get nodes,pods -A -o yaml | kubectl tranche simulate -f - --load 1.3
  kubectl tranche simulate --nodes nodes.csv --pods pods.csv --load 1.3 --seed 47 --policy least-waste -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.InOrStdin(), cmd.OutOrStdout()) },
	}
	fs := cmd.Flags()
	fs.StringVar(&o.nodes, "nodes", "", "CSV file of nodes: sn,cpu_milli,memory_mib,gpu,model")
	fs.StringVar(&o.pods, "pods", "", "CSV file of pods: name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec")
	fs.StringVarP(&o.filename, "filename", "f", "", "output of 'kubectl get nodes,pods -A -o yaml' (or json); - reads standard input")
	fs.Float64Var(&o.load, "load", 0, "how many times the GPUs of the cluster are asked for, such as 1.3; 0: each pod comes once")
	fs.Int64Var(&o.seed, "seed", 42, "number that decides which pods --load draws and in which order; the same number draws the same")
	fs.StringSliceVar(&o.policies, "policy", []string{allPolicies}, "placement policy: "+strings.Join(simulate.Policies(), ", ")+" or all; may be given several times")
	fs.StringVarP(&o.output, "output", "o", "table", "table or json")
	return cmd
}

// validate reports every problem at once, and completes the policies.
func (o *simulateOptions) validate() error {
	var problems []error
	refuse := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	switch {
	case o.filename == "" && o.nodes == "" && o.pods == "":
		refuse("nothing to simulate; write --nodes FILE.csv --pods FILE.csv, or -f with the output of 'kubectl get nodes,pods -A -o yaml'")
	case o.filename != "" && (o.nodes != "" || o.pods != ""):
		refuse("-f names nodes and pods already; remove it, or --nodes and --pods")
	case o.filename == "" && o.nodes == "":
		refuse("--pods alone is no cluster; add --nodes FILE.csv")
	case o.filename == "" && o.pods == "":
		refuse("--nodes alone is no work; add --pods FILE.csv")
	}
	if math.IsNaN(o.load) || o.load < 0 || o.load > maxLoad {
		refuse("--load=%g: write a number above 0 and at most %d, such as 1.3, or leave it out to place each pod once", o.load, maxLoad)
	}
	if o.output != "table" && o.output != "json" {
		refuse("--output=%s: write table or json", o.output)
	}
	if slices.Contains(o.policies, allPolicies) {
		o.policies = simulate.Policies()
	}
	for _, p := range o.policies {
		if !slices.Contains(simulate.Policies(), p) {
			refuse("--policy=%s: write %s or %s", p, strings.Join(simulate.Policies(), ", "), allPolicies)
		}
	}
	return errors.Join(problems...)
}

// result is what is printed of one policy.
type result struct {
	Policy string `json:"policy"`
	Seed   int64  `json:"seed"`
	// Load is 0 if each pod came once.
	Load float64 `json:"load"`
	// AllocationAt is the percentage of all GPUs allocated when the pods so far
	// had asked for that percentage of them.
	AllocationAt map[string]percent `json:"allocationAt"`
	// Allocated and Unusable are percentages of all GPUs in the end.
	Allocated    percent `json:"allocated"`
	Unusable     percent `json:"unusable"`
	PlacedPods   int     `json:"placedPods"`
	WaitingPods  int     `json:"waitingPods"`
	WaitingGangs int     `json:"waitingGangs"`
}

// percent is printed with two decimals at most.
type percent float64

func (p percent) MarshalJSON() ([]byte, error) {
	return strconv.AppendFloat(nil, math.Round(float64(p)*100)/100, 'f', -1, 64), nil
}

func (p percent) String() string { return strconv.FormatFloat(float64(p), 'f', 2, 64) }

func (o *simulateOptions) run(in io.Reader, out io.Writer) error {
	if err := o.validate(); err != nil {
		return err
	}
	world, err := o.read(in)
	if err != nil {
		return err
	}
	cluster, arrivals := &world.cluster, world.pods
	if o.load > 0 {
		load := simulate.Draw(world.pods, cluster, o.load, o.seed)
		cluster, arrivals = cluster.Ordered(load.Order), load.Arrivals
	}
	var results []result
	for _, name := range o.policies {
		chooser, err := simulate.ByName(name, cluster)
		if err != nil {
			return err
		}
		outcome := simulate.Replay(cluster, arrivals, chooser)
		results = append(results, o.result(name, simulate.Summarize(cluster, arrivals, outcome), outcome))
	}
	if o.output == "json" {
		return printJSON(out, results)
	}
	o.printTable(out, world, len(arrivals), results)
	return nil
}

// marks are the loads, in percent, at which the allocation is told: where GPUs
// have just all been asked for, and in the end.
func (o *simulateOptions) marks() []int {
	last := int(math.Round(o.load * 100))
	switch {
	case last == 0:
		return nil
	case last <= 100:
		return []int{last}
	default:
		return []int{100, last}
	}
}

func (o *simulateOptions) result(policy string, s simulate.Summary, outcome *simulate.Outcome) result {
	r := result{
		Policy: policy, Seed: o.seed, Load: o.load, AllocationAt: map[string]percent{},
		Allocated: percent(s.Allocated), Unusable: percent(s.Unusable),
		PlacedPods: s.Placed, WaitingPods: s.Waiting, WaitingGangs: s.WaitingGangs,
	}
	for _, m := range o.marks() {
		a, ok := outcome.AllocationAt(m)
		if !ok {
			a = s.Allocated // the next pod would have passed the load
		}
		r.AllocationAt[strconv.Itoa(m)] = percent(a)
	}
	return r
}

// printJSON prints an object for one policy, a list for several.
func printJSON(out io.Writer, results []result) error {
	e := json.NewEncoder(out)
	if len(results) == 1 {
		return e.Encode(results[0])
	}
	return e.Encode(results)
}

func (o *simulateOptions) printTable(out io.Writer, w *world, arrivals int, results []result) {
	what := "each once"
	if o.load > 0 {
		what = fmt.Sprintf("load %g, seed %d", o.load, o.seed)
	}
	fmt.Fprintf(out, "%d nodes, %d GPUs, %d pods arrive (%s)\n", len(w.cluster.Nodes), w.cluster.GPUs(), arrivals, what)
	for _, note := range w.notes {
		fmt.Fprintln(out, note)
	}
	t := table.NewWriter()
	t.SetOutputMirror(out)
	style := table.StyleDefault
	style.Options, style.Box.PaddingLeft, style.Box.PaddingRight = table.OptionsNoBordersAndSeparators, "", "   "
	style.Format.HeaderAlign = text.AlignLeft
	t.SetStyle(style)
	header := table.Row{"policy"}
	for _, m := range o.marks() {
		header = append(header, fmt.Sprintf("at %d%%", m))
	}
	t.AppendHeader(append(header, "allocated", "unusable", "placed", "waiting pods", "waiting gangs"))
	for _, r := range results {
		row := table.Row{r.Policy}
		for _, m := range o.marks() {
			row = append(row, r.AllocationAt[strconv.Itoa(m)].String()+"%")
		}
		t.AppendRow(append(row, r.Allocated.String()+"%", r.Unusable.String()+"%", r.PlacedPods, r.WaitingPods, r.WaitingGangs))
	}
	t.Render()
}
