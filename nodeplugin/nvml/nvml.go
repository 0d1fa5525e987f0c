// Package nvml says what the node plugin needs of NVIDIA's management library:
// which GPUs there are, what happens to them, who uses them, and limits on
// what a cgroup may use. It has no code that does it; the backends are
//
//   - nvidia: the real library through go-nvml, which needs cgo at build time
//     and libnvidia-ml.so.1 at run time;
//   - simulated: go-nvml's mock servers with what they lack added, scripted by
//     a file (package simulation), behind the very same wrapper as the real
//     library.
//
// Only these two import go-nvml.
//
// # What was never run on a GPU
//
// No GPU was at hand. Everything here ran against the simulation only, so that
// the following rests on NVIDIA's documentation and on go-nvml's source:
// loading and shutting down the real library; the return codes of a lost GPU
// and of a broken driver; delivery of XIDs by EventSetWait; memory nodes from
// nvmlDeviceGetMemoryAffinity; NVLink and PCIe topology; the recovery action
// field; memory limits for cgroups (driver r615); what
// nvmlDeviceGetMemoryInfo counts as used.
package nvml

import (
	"errors"
	"fmt"
	"time"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

// Library is NVML. Its methods may be called from several goroutines, but
// Shutdown only when no other call is in progress and all Events are closed.
// After Shutdown, Init starts it anew.
type Library interface {
	// Init loads and starts the library.
	Init() error
	// Shutdown undoes one Init.
	Shutdown() error
	// Machine lists the driver and the GPUs. An error means that NVML as a
	// whole does not work.
	Machine() (Machine, error)
	// Links returns how each GPU is connected to the others of gpus. What
	// cannot be found out is left out.
	Links(gpus []GPU) map[contract.GPUUUID][]contract.Link
	// Probe says whether a GPU answers and is fit for work; the error is the
	// reason why not.
	Probe(gpu contract.GPUUUID) error
	// Usage returns what is in use on a GPU, and by whom.
	Usage(gpu contract.GPUUUID) (Usage, error)
	// SetMemoryLimit bounds what the processes of a cgroup, named by its full
	// directory, may use of a GPU. It needs a driver of release 615 or later,
	// cgroup v2 and root. ErrNotSupported if the driver cannot.
	SetMemoryLimit(gpu contract.GPUUUID, cgroup string, limit units.MiB) error
	// MemoryLimit reads the limit back. NoLimit if there is none.
	MemoryLimit(gpu contract.GPUUUID, cgroup string) (units.MiB, error)
	// Watch collects events of these GPUs. The caller closes the Events.
	// Unwatched lists those GPUs that report no events, which old ones do not.
	Watch(gpus []contract.GPUUUID) (events Events, unwatched []contract.GPUUUID, err error)
}

// Events delivers what happens to GPUs. Wait and Close are called from one
// goroutine.
type Events interface {
	// Wait returns the next event, or ErrTimeout when none came in time.
	Wait(timeout time.Duration) (Event, error)
	Close() error
}

// NoLimit is a memory limit that does not limit.
const NoLimit units.MiB = units.MaxMemory

// Machine is what NVML sees of a node.
type Machine struct {
	// Driver is the version of the kernel driver, such as "575.51.03".
	Driver string
	// GPUs are sorted by Index.
	GPUs []GPU
	// Unreadable holds an error for every GPU that NVML counts but cannot
	// describe, not even by its UUID.
	Unreadable []error
}

// GPU is what does not change about a GPU while it is there.
type GPU struct {
	UUID  contract.GPUUUID
	Index int
	// Product is NVML's name of the model.
	Product string
	Memory  units.MiB
	// NUMA is the memory node next to the GPU, -1 if unknown.
	NUMA int
	// MIG is set if the GPU is in multi-instance mode, which cuts it up in a
	// way that Tranche does not handle.
	MIG bool
}

// Usage is what is in use on one GPU.
type Usage struct {
	// Used counts all memory that is not free, the driver's own included.
	Used      units.MiB
	Processes []Process
}

// Process uses a GPU. Its PID is that of the host's namespace.
type Process struct {
	PID    uint32
	Memory units.MiB
}

// Event is a critical error report (XID) of a GPU.
type Event struct {
	// GPU is empty if NVML does not say which one it is: then it may be any.
	GPU contract.GPUUUID
	XID uint64
}

var (
	// ErrLibraryNotFound is returned by Init on machines without a driver.
	ErrLibraryNotFound = errors.New("NVML's library libnvidia-ml.so.1 was not found: install the NVIDIA driver, " +
		"or make its libraries visible to this process, or use --nvml=simulated")
	// ErrNotSupported means that this driver or GPU cannot do it.
	ErrNotSupported = errors.New("not supported by this driver or GPU")
	// ErrNotFound means that NVML does not know the GPU.
	ErrNotFound = errors.New("NVML knows no such GPU")
	// ErrLost means that the GPU fell off the bus or cannot be reached.
	ErrLost = errors.New("GPU is lost")
	// ErrTimeout is returned by Events.Wait when nothing happened.
	ErrTimeout = errors.New("no event")
)

// CallError is a call of NVML that failed in a way that has no sentinel.
type CallError struct {
	// Call is what was asked for, Code what NVML answered.
	Call, Code string
}

func (e *CallError) Error() string { return fmt.Sprintf("NVML: %s: %s", e.Call, e.Code) }
