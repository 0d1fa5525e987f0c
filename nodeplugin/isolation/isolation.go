// Package isolation finds out whether this node can keep a container within its
// GPU memory, by trying it. What is not proven is not claimed: a pod that
// demands isolation goes only where the inventory says so.
//
// The one mechanism so far is the driver's: a limit on a cgroup (release 615,
// cgroup v2). NVIDIA's container toolkit sets it when a container starts, from
// variables that our CDI device carries (package cdi).
package isolation

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/tranche-dev/tranche/nodeplugin/cdi"
	"github.com/tranche-dev/tranche/nodeplugin/nvml"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

// Mode is what the operator wants.
type Mode string

const (
	// ModeAuto enforces limits where that is proven to work.
	ModeAuto Mode = "auto"
	// ModeCgroup enforces limits, or nothing is offered. Without the kind of
	// NVIDIA's CDI devices the operator vouches for the container toolkit.
	ModeCgroup Mode = "cgroup"
	// ModeNone enforces nothing.
	ModeNone Mode = "none"
)

// Modes lists them all.
var Modes = []Mode{ModeAuto, ModeCgroup, ModeNone}

// Node is what a trial needs.
type Node struct {
	Driver string
	// GPUs that answer.
	GPUs []contract.GPUUUID
	// CgroupRoot is where cgroups are mounted.
	CgroupRoot string
	// NVIDIAKind is the kind of NVIDIA's CDI devices, empty if not used, and
	// CDIDirs where they are described.
	NVIDIAKind string
	CDIDirs    []string
	// Limits of GPUs.
	Limits Limits
}

// Limits is the part of nvml.Library that trials use.
type Limits interface {
	SetMemoryLimit(gpu contract.GPUUUID, cgroup string, limit units.MiB) error
	MemoryLimit(gpu contract.GPUUUID, cgroup string) (units.MiB, error)
}

var _ Limits = nvml.Library(nil)

// firstDriver is the first release that can limit a cgroup.
const firstDriver = 615

// errKind is why auto does not trust an unknown toolkit.
var errKind = errors.New("--nvidia-cdi-kind is not set, so nothing says that the container toolkit applies memory limits")

// Decide returns how limits are enforced on the node. With ModeAuto the error
// says why they are not; with ModeCgroup it means that the node must not offer
// anything.
func Decide(mode Mode, n Node) (contract.Isolation, error) {
	switch mode {
	case ModeNone:
		return contract.IsolationNone, nil
	case ModeCgroup, ModeAuto:
		if mode == ModeAuto && n.NVIDIAKind == "" {
			return contract.IsolationNone, errKind
		}
		if err := n.try(); err != nil {
			return contract.IsolationNone, fmt.Errorf("GPU memory limits cannot be enforced: %w", err)
		}
		return contract.IsolationCgroup, nil
	}
	return contract.IsolationNone, fmt.Errorf("isolation mode %q is not known", mode)
}

// try does all that a limit needs, on a cgroup of its own.
func (n Node) try() (err error) {
	release, _ := strconv.Atoi(strings.SplitN(n.Driver, ".", 2)[0])
	if release < firstDriver {
		return fmt.Errorf("driver %s is older than release %d", n.Driver, firstDriver)
	}
	if len(n.GPUs) == 0 {
		return errors.New("no GPU answers")
	}
	if _, err := os.Stat(filepath.Join(n.CgroupRoot, "cgroup.controllers")); err != nil {
		return fmt.Errorf("the node does not use cgroup v2: %w", err)
	}
	if n.NVIDIAKind != "" {
		if err := cdi.EnforcesLimits(n.NVIDIAKind, n.GPUs, n.CDIDirs...); err != nil {
			return err
		}
	}
	cgroup, err := os.MkdirTemp(n.CgroupRoot, "tranche-trial-")
	if err != nil {
		return fmt.Errorf("trial cgroup: %w", err)
	}
	defer func() { err = errors.Join(err, os.Remove(cgroup)) }()
	const some units.MiB = 1024
	for _, gpu := range n.GPUs {
		if err := n.Limits.SetMemoryLimit(gpu, cgroup, some); err != nil {
			return fmt.Errorf("GPU %s: %w", gpu, err)
		}
		got, err := n.Limits.MemoryLimit(gpu, cgroup)
		if err != nil {
			return fmt.Errorf("GPU %s: %w", gpu, err)
		}
		if got != some {
			return fmt.Errorf("GPU %s: set a limit of %d MiB and found %d", gpu, some, got)
		}
		if err := n.Limits.SetMemoryLimit(gpu, cgroup, nvml.NoLimit); err != nil {
			return fmt.Errorf("GPU %s: %w", gpu, err)
		}
	}
	return nil
}
