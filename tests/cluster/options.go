package cluster

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/tranche-dev/tranche/nodeplugin/nvml/models"
)

// Options is what a cluster shall look like. The zero value of a field stands
// for its default, except where said.
type Options struct {
	// Dir holds everything of the cluster; .cluster of the checkout if empty.
	Dir string `json:"-"`
	// SimNodes is the number of simulated nodes. 0 means none: use
	// DefaultOptions for the default.
	SimNodes int `json:"simNodes"`
	// SimGPUs is the number of GPUs of each simulated node.
	SimGPUs int `json:"simGPUs"`
	// SimModels are dealt out to the simulated nodes in turn.
	SimModels []string `json:"simModels"`
	// SimList are the simulated nodes one by one, in the place of the three fields
	// above. Their names must be those of nodes and differ.
	SimList []SimNode `json:"simList,omitempty"`
	// RealNode asks for a kubelet with containerd; it takes root on Linux.
	RealNode bool `json:"realNode"`
	// RealGPUs are the models of the real node's simulated GPUs, one each.
	RealGPUs []string `json:"realGPUs"`
	// NativeGangs has the control plane serve and schedule PodGroups of
	// scheduling.k8s.io, which are beta and off by default.
	NativeGangs bool `json:"nativeGangs,omitempty"`
	// StillNodes has simulated nodes send a heartbeat once an hour, and nobody miss
	// it: those of thousands of nodes are most of what an idle cluster does.
	StillNodes bool `json:"stillNodes,omitempty"`
	// ExtenderArgs are more flags for the extender; they win over the others.
	ExtenderArgs []string `json:"extenderArgs,omitempty"`
	// SchedulerQPS is how many calls a second the scheduler may make by itself; 0:
	// what it does if nothing is written, 50.
	SchedulerQPS float32 `json:"schedulerQPS,omitempty"`
	// RateCPUOnlyPods has the scheduler ask the extender which nodes suit pods
	// without GPUs: an option of the shipped configuration and of the webhook.
	RateCPUOnlyPods bool `json:"rateCPUOnlyPods,omitempty"`
	// Out receives progress and the summary; nothing is printed if nil.
	Out io.Writer `json:"-"`
}

// DefaultOptions is four simulated nodes and, where the machine allows, the
// real one.
func DefaultOptions() Options {
	return Options{
		SimNodes:  4,
		SimGPUs:   8,
		SimModels: []string{"A100-80GB", "H100-80GB"},
		RealNode:  realNodeObstacle() == nil,
		RealGPUs:  []string{"A100-80GB", "A100-80GB", "A30-24GB", "A30-24GB"},
	}
}

// OptionsFromEnv reads SIM_NODES, SIM_GPUS, SIM_MODELS, REAL_NODE, REAL_GPUS,
// NATIVE_GANGS and EXTENDER_ARGS over the defaults; lookup is os.LookupEnv, or a test's. An empty variable
// counts as absent, as make passes every one of them.
func OptionsFromEnv(lookup func(string) (string, bool)) (Options, error) {
	o := DefaultOptions()
	var errs []error
	number := func(key string, to *int) {
		if v, ok := lookup(key); ok && v != "" {
			n, err := strconv.Atoi(v)
			if err != nil {
				err = fmt.Errorf("%s=%q is not a number", key, v)
			}
			errs = append(errs, err)
			*to = n
		}
	}
	list := func(key string, to *[]string) {
		if v, ok := lookup(key); ok && v != "" {
			*to = SplitList(v)
		}
	}
	yesno := func(key string, to *bool) {
		if v, ok := lookup(key); ok && v != "" {
			b, err := strconv.ParseBool(v)
			if err != nil {
				err = fmt.Errorf("%s=%q is neither 1 nor 0", key, v)
			}
			errs = append(errs, err)
			*to = b
		}
	}
	number("SIM_NODES", &o.SimNodes)
	number("SIM_GPUS", &o.SimGPUs)
	list("SIM_MODELS", &o.SimModels)
	list("REAL_GPUS", &o.RealGPUs)
	yesno("REAL_NODE", &o.RealNode)
	yesno("NATIVE_GANGS", &o.NativeGangs)
	if v, ok := lookup("EXTENDER_ARGS"); ok {
		o.ExtenderArgs = strings.Fields(v)
	}
	return o, errors.Join(errs...)
}

// SplitList splits a comma-separated list and drops spaces and empty items.
func SplitList(s string) []string {
	var items []string
	for item := range strings.SplitSeq(s, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
}

// validate reports every problem at once.
func (o Options) validate() error {
	if err := platformObstacle(); err != nil {
		return err
	}
	var errs []error
	if o.SimNodes < 0 || o.SimNodes > 20000 {
		errs = append(errs, fmt.Errorf("SIM_NODES is %d; it must be between 0 and 20000", o.SimNodes))
	}
	if o.SimGPUs < 0 || o.SimGPUs > 64 {
		errs = append(errs, fmt.Errorf("SIM_GPUS is %d; it must be between 0 and 64", o.SimGPUs))
	}
	if o.SimNodes > 0 && len(o.SimList) == 0 && len(o.SimModels) == 0 {
		errs = append(errs, errors.New("SIM_MODELS is empty; name at least one model for the simulated nodes"))
	}
	for _, list := range [][]string{o.SimModels, o.RealGPUs} {
		for _, m := range list {
			if _, err := models.Lookup(m); err != nil {
				errs = append(errs, err)
			}
		}
	}
	if o.RealNode {
		if err := realNodeObstacle(); err != nil {
			errs = append(errs, fmt.Errorf("the real node cannot be had here: %w; REAL_NODE=0 brings up the simulated nodes only", err))
		}
	}
	return errors.Join(errs...)
}

func (o Options) out() io.Writer {
	if o.Out == nil {
		return io.Discard
	}
	return o.Out
}

func isRoot() bool { return os.Geteuid() == 0 }
