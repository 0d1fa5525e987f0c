// Package health decides which GPUs are fit for work. Tracker is the pure part:
// what happened and when in, verdicts out. Monitor feeds it from NVML.
//
// A GPU falls ill at once: by a critical error report (XID), by not answering,
// by vanishing, or because NVML as a whole does not work. It recovers only
// after it has answered every probe for a while, so that one which comes and
// goes does not get pods that then die. Errors that applications cause say
// nothing about the GPU and are counted only.
package health

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tranche-dev/tranche/nodeplugin/nvml"
	"github.com/tranche-dev/tranche/pkg/contract"
)

// ApplicationXIDs are reported when a program does something wrong; the GPU
// goes on working for others. They are those that NVIDIA's own device plugin
// leaves out of account.
var ApplicationXIDs = []uint64{13, 31, 43, 45, 68, 109}

// meaning names the XIDs that operators meet most, after NVIDIA's catalogue.
var meaning = map[uint64]string{
	48:  "double-bit ECC error",
	61:  "internal micro-controller error",
	62:  "internal micro-controller halt",
	63:  "ECC page retirement or row remapping",
	64:  "ECC page retirement or row remapping failed",
	74:  "NVLink error",
	79:  "GPU has fallen off the bus",
	92:  "high single-bit ECC error rate",
	94:  "contained memory error",
	95:  "uncontained memory error",
	119: "GSP timeout",
	120: "GSP error",
}

// XIDText describes an XID in a few words.
func XIDText(xid uint64) string {
	if m, ok := meaning[xid]; ok {
		return fmt.Sprintf("XID %d: %s", xid, m)
	}
	return fmt.Sprintf("XID %d", xid)
}

// Options say how strict to be.
type Options struct {
	// ApplicationXIDs do not make a GPU unfit.
	ApplicationXIDs []uint64
	// RecoveryPeriod is how long a GPU must have answered all probes, after
	// the last thing that was wrong, to be fit again.
	RecoveryPeriod time.Duration
}

// GPU is a GPU and the verdict on it.
type GPU struct {
	nvml.GPU
	Healthy bool
	// Reason says why not, in a few words.
	Reason string
	Links  []contract.Link
}

// State is what is known of the node's GPUs.
type State struct {
	// Known is set once NVML has listed the GPUs.
	Known  bool
	Driver string
	// GPUs are sorted by index; those that are there no longer come last.
	GPUs []GPU
	// Failure is why NVML as a whole does not work at present, nil if it does.
	Failure error
}

// condition is what the Tracker remembers of a GPU.
type condition struct {
	gpu   nvml.GPU
	links []contract.Link
	// present: listed by NVML at the last look.
	present bool
	// ill since the last thing that was wrong; reason says what it was.
	ill    bool
	reason string
	since  time.Time
}

// Tracker holds the conditions of all GPUs that were ever there.
type Tracker struct {
	opts    Options
	known   bool
	driver  string
	failure error
	gpus    map[contract.GPUUUID]*condition
}

// NewTracker returns a Tracker that knows no GPU.
func NewTracker(opts Options) *Tracker {
	return &Tracker{opts: opts, gpus: map[contract.GPUUUID]*condition{}}
}

// sicken notes that something is wrong with a GPU now.
func (c *condition) sicken(reason string, now time.Time) {
	c.ill, c.reason, c.since = true, reason, now
}

// Listed takes in what NVML sees. GPUs that are new are fit; those that are
// missing are not.
func (t *Tracker) Listed(m nvml.Machine, now time.Time) {
	t.known, t.driver, t.failure = true, m.Driver, nil
	for _, c := range t.gpus {
		c.present = false
	}
	for _, g := range m.GPUs {
		c := t.gpus[g.UUID]
		if c == nil {
			c = &condition{}
			t.gpus[g.UUID] = c
		}
		c.gpu, c.present = g, true
	}
	lost := "the GPU has vanished: NVML does not list it any more"
	if len(m.Unreadable) > 0 {
		lost = "the GPU does not answer: NVML cannot read it"
	}
	for _, c := range t.gpus {
		if !c.present {
			c.sicken(lost, now)
		}
	}
}

// Linked takes in how the GPUs are connected.
func (t *Tracker) Linked(links map[contract.GPUUUID][]contract.Link) {
	for uuid, c := range t.gpus {
		c.links = links[uuid]
	}
}

// Failed notes that NVML as a whole does not work: nothing can be said of any
// GPU, and no new pod could be watched.
func (t *Tracker) Failed(err error, now time.Time) {
	t.failure = err
	for _, c := range t.gpus {
		c.sicken(err.Error(), now)
	}
}

// Probed takes in the answer of a GPU that was asked whether it is fit.
func (t *Tracker) Probed(uuid contract.GPUUUID, err error, now time.Time) {
	c := t.gpus[uuid]
	switch {
	case c == nil:
	case err != nil:
		c.sicken(err.Error(), now)
	case c.ill && now.Sub(c.since) >= t.opts.RecoveryPeriod:
		c.ill, c.reason = false, ""
	}
}

// Reported takes in an event and says whether it makes GPUs unfit.
func (t *Tracker) Reported(e nvml.Event, now time.Time) bool {
	if slices.Contains(t.opts.ApplicationXIDs, e.XID) {
		return false
	}
	for uuid, c := range t.gpus {
		if e.GPU == "" || e.GPU == uuid {
			c.sicken(XIDText(e.XID), now)
		}
	}
	return true
}

const migReason = "the GPU is in MIG mode, which Tranche does not share; turn it off with nvidia-smi -mig 0"

// State returns the verdicts. The slices in it are the caller's, except Links.
func (t *Tracker) State() State {
	s := State{Known: t.known, Driver: t.driver, Failure: t.failure, GPUs: make([]GPU, 0, len(t.gpus))}
	for _, c := range t.gpus {
		g := GPU{GPU: c.gpu, Healthy: !c.ill, Reason: c.reason, Links: c.links}
		if g.Healthy && c.gpu.MIG {
			g.Healthy, g.Reason = false, migReason
		}
		s.GPUs = append(s.GPUs, g)
	}
	slices.SortFunc(s.GPUs, func(a, b GPU) int {
		return cmp.Or(absent(t.gpus[a.UUID])-absent(t.gpus[b.UUID]), cmp.Compare(a.Index, b.Index), cmp.Compare(a.UUID, b.UUID))
	})
	return s
}

func absent(c *condition) int {
	if c.present {
		return 0
	}
	return 1
}

// Present returns the GPUs that NVML lists, sorted by UUID.
func (t *Tracker) Present() []nvml.GPU {
	var gpus []nvml.GPU
	for _, uuid := range slices.Sorted(maps.Keys(t.gpus)) {
		if c := t.gpus[uuid]; c.present {
			gpus = append(gpus, c.gpu)
		}
	}
	return gpus
}
