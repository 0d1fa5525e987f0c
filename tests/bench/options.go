package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/tests/cluster"
	"github.com/tranche-dev/tranche/tests/openb"
)

// eventRate is how many events a second the extender may write in the parts queues
// and trace. At its default, twenty thousand pods would be told for minutes.
const eventRate = 500

// eventsTake is the time for so many events at that rate.
func eventsTake(n int) time.Duration { return time.Duration(n) * time.Second / eventRate }

// options say what is measured, at which size.
type options struct {
	cluster cluster.Options
	parts   map[string]bool
	// rounds is how often gangs are measured.
	rounds int
	// queues, pending and admit are queueBench's, reclaimNodes the nodes of one
	// GPU of reclaimBench.
	queues, pending, admit, reclaimNodes int
	// openb is the folder with the public trace, empty if there is none.
	openb string
	// trace is what traceBench replays, nil if that is no part, admission how;
	// rateCPUOnly has the nodes rated for its pods without GPUs, an option of Tranche.
	trace       *trace
	rateCPUOnly bool
	admission   []v1alpha1.AdmissionMode
	// scale are the sizes of scaleBench.
	scale []size
	// profiles is the folder for CPU profiles, empty if none are taken.
	profiles string
}

func optionsFromEnv(lookup func(string) (string, bool)) (*options, error) {
	base, err := cluster.OptionsFromEnv(lookup)
	o := &options{cluster: base, parts: map[string]bool{}}
	errs := []error{err}
	value := func(key, otherwise string) string {
		if v, ok := lookup(key); ok && v != "" {
			return v
		}
		return otherwise
	}
	number := func(key string, otherwise, least int) int {
		v := value(key, strconv.Itoa(otherwise))
		n, err := strconv.Atoi(v)
		if err != nil || n < least {
			errs = append(errs, fmt.Errorf("%s=%q; write a number, at least %d", key, v, least))
		}
		return n
	}
	o.cluster.SimNodes = number("SIM_NODES", 500, 1)
	o.profiles = value("PROFILE", "")
	o.rounds = number("ROUNDS", 3, 1)
	o.queues, o.pending, o.admit = number("QUEUES", 1000, departments), number("PENDING", 20000, departments), number("ADMIT", 2000, departments)
	o.reclaimNodes = number("RECLAIM_NODES", 5000, 2*reclaims)
	if o.admit+2*departments > min(o.pending, o.cluster.SimNodes*o.cluster.SimGPUs) {
		errs = append(errs, fmt.Errorf("ADMIT=%d; that and %d more must be at most PENDING and the GPUs of all nodes", o.admit, 2*departments))
	}
	if o.queues%departments != 0 {
		errs = append(errs, fmt.Errorf("QUEUES=%d; write a multiple of %d, the number of departments", o.queues, departments))
	}
	var bad error
	if o.scale, bad = parseSizes(value("SCALE", "500x0,500x10,2000x10,5000x10,5000x28")); bad != nil {
		errs = append(errs, fmt.Errorf("SCALE: %w", bad))
	}
	for _, s := range o.scale {
		// The pod that is asked about must still fit on each node.
		if most := perGPU*o.cluster.SimGPUs - 1; s.pods() > (s.nodes-spares)*most {
			errs = append(errs, fmt.Errorf("SCALE: %d pods on each of %d nodes; at most %d fit on each, %d nodes aside", s.each, s.nodes, most, spares))
		}
	}
	o.openb = value(openb.Variable, "")
	usual := "gangs,throughput,queues,reclaim,scale"
	if o.openb != "" {
		usual += ",packing"
	}
	for _, name := range cluster.SplitList(value("BENCH", usual)) {
		if !slices.ContainsFunc(parts, func(p part) bool { return p.name == name }) {
			errs = append(errs, fmt.Errorf("BENCH names %q; write some of gangs, throughput, queues, reclaim, packing, scale and trace", name))
		}
		if o.openb == "" && (name == "packing" || name == "trace") {
			errs = append(errs, fmt.Errorf("BENCH names %s, which needs the public trace: %w", name, openb.ErrNoFolder))
		}
		o.parts[name] = true
	}
	if o.parts["trace"] && o.openb != "" {
		o.rateCPUOnly = value("TRACE_RATE_CPU_ONLY", "true") == "true"
		load, err := strconv.ParseFloat(value("TRACE_LOAD", "1.3"), 64)
		if err != nil || load <= 0 {
			errs = append(errs, fmt.Errorf("TRACE_LOAD=%q; write a number above 0, such as 1.3", value("TRACE_LOAD", "")))
		}
		o.trace, err = readTrace(o.openb, value("TRACE_WORKLOAD", "default"), int64(number("TRACE_SEED", 47, 0)), load)
		errs = append(errs, err)
		for _, mode := range cluster.SplitList(value("TRACE_ADMISSION", "Direct,Gated")) {
			if mode := v1alpha1.AdmissionMode(mode); mode != v1alpha1.AdmissionDirect && mode != v1alpha1.AdmissionGated {
				errs = append(errs, fmt.Errorf("TRACE_ADMISSION has %q; write Direct, Gated or both", mode))
			}
			o.admission = append(o.admission, v1alpha1.AdmissionMode(mode))
		}
	}
	_, file, _, _ := runtime.Caller(0)
	o.cluster.Dir = filepath.Join(filepath.Dir(file), "..", "..", ".cluster-bench")
	o.cluster.RealNode = false
	// The stock scheduler binds by itself: it is not to be the yardstick for how
	// few calls it may make.
	o.cluster.SchedulerQPS = float32(number("SCHEDULER_QPS", 1000, 0))
	o.cluster.Out = os.Stderr
	return o, errors.Join(errs...)
}

// clustersFor are what a part is measured on, one after the other.
func (o *options) clustersFor(part string) []cluster.Options {
	c := o.cluster
	c.ExtenderArgs = slices.Clone(c.ExtenderArgs)
	if o.profiles != "" || part == "scale" {
		c.ExtenderArgs = append(c.ExtenderArgs, "--profiling")
	}
	if part == "queues" || part == "trace" {
		// Before the user's, which win.
		c.ExtenderArgs = append([]string{fmt.Sprintf("--event-qps=%d", eventRate)}, c.ExtenderArgs...)
	}
	switch part {
	case "throughput":
		c.StillNodes = true
	case "reclaim":
		c.SimNodes, c.SimGPUs, c.StillNodes = o.reclaimNodes, 1, true
	case "trace":
		c.SimList, c.RateCPUOnlyPods = o.trace.nodes(), o.rateCPUOnly
	case "scale":
		c.StillNodes = true
		var all []cluster.Options
		for i, s := range o.scale {
			if c.SimNodes = s.nodes; i == 0 || o.scale[i-1].nodes != s.nodes {
				all = append(all, c)
			}
		}
		return all
	}
	return []cluster.Options{c}
}

// sizesOf are those of scaleBench with so many nodes.
func (o *options) sizesOf(nodes int) []size {
	return slices.DeleteFunc(slices.Clone(o.scale), func(s size) bool { return s.nodes != nodes })
}
