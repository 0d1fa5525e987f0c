// Package simulation is the file that scripts a simulated NVML while it runs:
// which GPUs a machine has and what befalls them. The node plugin reads it
// (--nvml=simulated --simulation-file) and follows every change; tests and the
// local cluster write it. It imports neither cgo nor go-nvml.
//
//	driver: "575.51.03"
//	gpus:
//	- model: A100-80GB
//	- model: A30-24GB
//	  numa: 1
//	  xids: [79]                              # fell off the bus
//	  processes: [{pid: 4711, memoryMiB: 2048}]
//
// Replace the file by renaming a new one over it; a file that is half written
// does not parse and leaves everything as it was.
package simulation

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/tranche-dev/tranche/nodeplugin/nvml/models"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

// DefaultDriver is the driver's version if the file names none: an older one
// without memory limits.
const DefaultDriver = "575.51.03"

// File is a machine with simulated GPUs.
type File struct {
	// Driver is the driver's version; DefaultDriver if empty. From 615 on it
	// offers memory limits for cgroups.
	Driver string `json:"driver,omitempty"`
	// Failure, an NVML return code such as "ERROR_DRIVER_NOT_LOADED" or
	// "ERROR_LIBRARY_NOT_FOUND", makes every call fail with it.
	Failure string `json:"failure,omitempty"`
	// GPUs in NVML's order. Empty is a machine without GPUs, but the key must
	// be there: an empty file is a file that is being written.
	GPUs []GPU `json:"gpus"`
}

// GPU is one simulated GPU.
type GPU struct {
	// Model is any name that models.Lookup knows.
	Model string `json:"model"`
	// UUID; derived from the node's name and the position in the list if empty.
	UUID contract.GPUUUID `json:"uuid,omitempty"`
	// NUMA is the memory node next to the GPU; unknown if absent.
	NUMA *int `json:"numa,omitempty"`
	// NVLinks is the number of links to a switch that all GPUs with NVLinks
	// are connected to.
	NVLinks int `json:"nvlinks,omitempty"`
	// XIDs have been reported so far. Those that a change of the file adds are
	// delivered as events, once. What is there at start is history, as with the
	// real library.
	XIDs []uint64 `json:"xids,omitempty"`
	// Lost makes every call on this GPU fail with ERROR_GPU_IS_LOST.
	Lost bool `json:"lost,omitempty"`
	// Gone hides the GPU, as if it had been taken out, without moving the
	// others.
	Gone bool `json:"gone,omitempty"`
	// MIG turns its multi-instance mode on.
	MIG bool `json:"mig,omitempty"`
	// RecoveryAction is what NVML recommends, such as 1 for a reset; 0 none.
	RecoveryAction int `json:"recoveryAction,omitempty"`
	// Processes use the GPU.
	Processes []Process `json:"processes,omitempty"`
	// UsedMiB is memory in use beside that of the processes.
	UsedMiB units.MiB `json:"usedMiB,omitempty"`
}

// Process is a process that uses a simulated GPU.
type Process struct {
	PID       uint32    `json:"pid"`
	MemoryMiB units.MiB `json:"memoryMiB"`
}

// ErrFile is wrapped by every error of Parse.
var ErrFile = errors.New("simulation file")

var (
	uuidForm    = regexp.MustCompile(`^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	failureForm = regexp.MustCompile(`^ERROR_[A-Z_]+$`)
)

// Parse reads a simulation file. UUIDs that it leaves out are filled in for
// the node of that name, an absent driver by DefaultDriver.
func Parse(text []byte, node string) (File, error) {
	var raw map[string]any
	if err := yaml.Unmarshal(text, &raw); err != nil {
		return File{}, fmt.Errorf("%w: %w", ErrFile, err)
	}
	if _, ok := raw["gpus"]; !ok {
		return File{}, fmt.Errorf("%w: no key \"gpus\"; write \"gpus: []\" for a machine without GPUs", ErrFile)
	}
	var f File
	if err := yaml.UnmarshalStrict(text, &f); err != nil {
		return File{}, fmt.Errorf("%w: %w", ErrFile, err)
	}
	if f.Driver == "" {
		f.Driver = DefaultDriver
	}
	for i := range f.GPUs {
		if f.GPUs[i].UUID == "" {
			f.GPUs[i].UUID = models.UUID(node, i)
		}
	}
	return f, f.validate()
}

func (f File) validate() error {
	var problems []error
	refuse := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf("%w: "+format, append([]any{ErrFile}, args...)...))
	}
	if f.Failure != "" && !failureForm.MatchString(f.Failure) {
		refuse("failure: %q; write an NVML return code, such as ERROR_DRIVER_NOT_LOADED", f.Failure)
	}
	seen := map[contract.GPUUUID]int{}
	for i, g := range f.GPUs {
		m, err := models.Lookup(g.Model)
		if err != nil {
			refuse("gpus[%d]: %w", i, err)
			continue
		}
		if !uuidForm.MatchString(string(g.UUID)) {
			refuse("gpus[%d]: uuid %q; write it as NVML does, such as %s", i, g.UUID, models.UUID("example", i))
		}
		if j, twice := seen[g.UUID]; twice {
			refuse("gpus[%d] has the uuid of gpus[%d]", i, j)
		}
		seen[g.UUID] = i
		used := g.UsedMiB
		for _, p := range g.Processes {
			used += p.MemoryMiB
			if p.MemoryMiB < 0 {
				refuse("gpus[%d]: process %d uses %d MiB", i, p.PID, p.MemoryMiB)
			}
		}
		if g.UsedMiB < 0 || used > m.Memory {
			refuse("gpus[%d]: %d MiB in use of %d", i, used, m.Memory)
		}
		if g.NVLinks < 0 || g.NVLinks > 36 {
			refuse("gpus[%d]: %d nvlinks; write 0 to 36", i, g.NVLinks)
		}
	}
	return errors.Join(problems...)
}

// Format is the inverse of Parse.
func (f File) Format() ([]byte, error) {
	if f.GPUs == nil {
		f.GPUs = []GPU{}
	}
	text, err := yaml.Marshal(f)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFile, err)
	}
	return text, nil
}

// Machine is a File with one healthy GPU of each model, in that order.
func Machine(modelNames ...string) File {
	f := File{Driver: DefaultDriver, GPUs: make([]GPU, 0, len(modelNames))}
	for _, m := range modelNames {
		f.GPUs = append(f.GPUs, GPU{Model: strings.TrimSpace(m)})
	}
	return f
}
