// Package cdi writes the Container Device Interface file through which a
// container learns its GPUs. What a device plugin answers as environment can
// be overridden by the pod's own; edits of a CDI device cannot.
//
// One file holds devices of the kind tranche.dev/gpu:
//
//   - one per GPU, named by its UUID, and one per set of GPUs that a container
//     uses together: they set NVIDIA_VISIBLE_DEVICES;
//   - one per amount of memory: it sets TRANCHE_GPU_MEMORY_MIB, what the
//     container may use on each of its GPUs, and, where the driver enforces
//     limits, the variables that NVIDIA's container toolkit turns into one.
//
// Devices depend on GPUs and amounts, not on pods, so that the kubelet, which
// stores the names it was given and uses them again after a reboot, finds them
// again.
package cdi

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"sigs.k8s.io/yaml"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/tranche-dev/tranche/nodeplugin/ledger"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

const (
	vendor = "tranche.dev"
	class  = "gpu"
	// Kind qualifies the names of our devices.
	Kind = vendor + "/" + class
	// MemoryEnv tells a program how many MiB it may use on each of its GPUs.
	MemoryEnv = "TRANCHE_GPU_MEMORY_MIB"
	// limitEnv and requestEnv are read, in MiB, by the hook of NVIDIA's
	// container toolkit 1.20.1 and later, nvidia-cdi-hook
	// apply-cuda-memory-limits. Without a request it would take the limit for
	// one, and a request stays behind in the cgroups above when the container
	// is gone.
	limitEnv   = "NVIDIA_GPU_MEMORY_LIMIT"
	requestEnv = "NVIDIA_GPU_MEMORY_REQUEST"
	// limitHook is the name of that hook.
	limitHook = "apply-cuda-memory-limits"
)

// Options say what the devices look like.
type Options struct {
	// Dir is where the container runtime looks for CDI files.
	Dir string
	// NVIDIAKind is the kind of the devices that NVIDIA's toolkit describes,
	// such as nvidia.com/gpu; with it containers also get NVIDIA's device for
	// each GPU. Empty: only ours.
	NVIDIAKind string
}

// Content is what the file has devices for.
type Content struct {
	// GPUs get a device each.
	GPUs []contract.GPUUUID
	// Sets of more than one GPU get a device each.
	Sets [][]contract.GPUUUID
	// Memory amounts get a device each.
	Memory []units.MiB
}

// Add makes c include what a container with these grants needs.
func (c *Content) Add(grants []contract.Grant) {
	gpus := gpusOf(grants)
	c.GPUs = append(c.GPUs, gpus...)
	if len(gpus) > 1 {
		c.Sets = append(c.Sets, gpus)
	}
	c.Memory = append(c.Memory, memoryOf(grants))
}

// gpusOf returns the GPUs of grants, sorted.
func gpusOf(grants []contract.Grant) []contract.GPUUUID {
	gpus := make([]contract.GPUUUID, 0, len(grants))
	for _, g := range grants {
		gpus = append(gpus, g.GPU)
	}
	slices.Sort(gpus)
	return slices.Compact(gpus)
}

// memoryOf returns what a program with these grants may use on each of its
// GPUs: on GPUs of different sizes the least, for programs, and NVIDIA's hook,
// take one number for all.
func memoryOf(grants []contract.Grant) units.MiB {
	if len(grants) == 0 {
		return 0
	}
	least := grants[0].MemoryMiB
	for _, g := range grants[1:] {
		least = min(least, g.MemoryMiB)
	}
	return least
}

// Writer keeps the file. It is safe for concurrent use.
type Writer struct {
	opts Options
	mu   sync.Mutex
	// limit makes the toolkit's hook enforce the memory.
	limit bool
	// written is the file's text, nil before the first Write; names are the
	// devices in it, and file is the file itself, by which a change by somebody
	// else is noticed.
	written []byte
	names   map[string]bool
	file    os.FileInfo
}

// New returns a Writer; nothing is written yet.
func New(opts Options) *Writer { return &Writer{opts: opts} }

// Enforce says whether the toolkit's hook is to enforce the memory, from the
// next Write on.
func (w *Writer) Enforce(limit bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.limit = limit
}

// Path is where the file is.
func (w *Writer) Path() string {
	return filepath.Join(w.opts.Dir, cdi.GenerateSpecName(vendor, class)+".yaml")
}

// Write makes the file hold exactly the devices of c. It does nothing if it
// does so already. Readers see the old or the new file, never a part.
func (w *Writer) Write(c Content) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	spec, err := spec(c, w.limit)
	if err != nil {
		return fmt.Errorf("CDI: %w", err)
	}
	if len(spec.Devices) == 0 {
		return nil // a machine without GPUs; a file without devices is not valid
	}
	text, err := yaml.Marshal(spec)
	if err != nil {
		return fmt.Errorf("CDI: %w", err)
	}
	if string(text) == string(w.written) && w.intact() {
		return nil
	}
	if err := os.MkdirAll(w.opts.Dir, 0o755); err != nil {
		return fmt.Errorf("CDI: %w", err)
	}
	if err := validate(w.opts.Dir, text); err != nil {
		return fmt.Errorf("CDI: %w", err)
	}
	// Anyone may read CDI files by convention; there is no secret in them.
	if err := ledger.WriteFile(w.Path(), text, 0o644); err != nil {
		return fmt.Errorf("CDI: %w", err)
	}
	if w.file, err = os.Stat(w.Path()); err != nil {
		return fmt.Errorf("CDI: %w", err)
	}
	w.written, w.names = text, make(map[string]bool, len(spec.Devices))
	for _, d := range spec.Devices {
		w.names[d.Name] = true
	}
	return nil
}

// intact says whether the file is still the one that was written.
func (w *Writer) intact() bool {
	now, err := os.Stat(w.Path())
	return err == nil && w.file != nil && os.SameFile(now, w.file) && now.ModTime().Equal(w.file.ModTime()) && now.Size() == w.file.Size()
}

// Has says whether the file has all devices that a container with these grants
// needs. It is much faster than Write.
func (w *Writer) Has(grants []contract.Grant) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.names[setName(gpusOf(grants))] && w.names[memoryName(memoryOf(grants))] && w.intact()
}

// validate has the CDI library, which container runtimes use too, read the
// text before it takes the place of a file that works.
func validate(dir string, text []byte) (err error) {
	// Runtimes look at *.yaml and *.json only.
	tmp, err := os.CreateTemp(dir, ".tranche-check-*.tmp")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(tmp.Name())) }()
	_, err = tmp.Write(text)
	if err = errors.Join(err, tmp.Close()); err != nil {
		return err
	}
	_, err = cdi.ReadSpec(tmp.Name(), 0)
	return err
}

func spec(c Content, limit bool) (*specs.Spec, error) {
	spec := &specs.Spec{Kind: Kind}
	add := func(name string, env ...string) {
		spec.Devices = append(spec.Devices, specs.Device{Name: name, ContainerEdits: specs.ContainerEdits{Env: env}})
	}
	sets := slices.Clone(c.Sets)
	for _, g := range c.GPUs {
		sets = append(sets, []contract.GPUUUID{g})
	}
	names := map[string]bool{}
	for _, s := range sets {
		gpus := slices.Compact(slices.Sorted(slices.Values(s)))
		if name := setName(gpus); !names[name] {
			names[name] = true
			add(name, contract.VisibleDevicesEnv+"="+join(gpus))
		}
	}
	for _, m := range slices.Compact(slices.Sorted(slices.Values(c.Memory))) {
		env := []string{MemoryEnv + "=" + strconv.FormatInt(int64(m), 10)}
		if limit {
			env = append(env, limitEnv+"="+strconv.FormatInt(int64(m), 10), requestEnv+"=0")
		}
		add(memoryName(m), env...)
	}
	slices.SortFunc(spec.Devices, func(a, b specs.Device) int { return strings.Compare(a.Name, b.Name) })
	// The oldest version that can say this is readable by the most runtimes.
	version, err := specs.MinimumRequiredVersion(spec)
	spec.Version = version
	return spec, err
}

func join(gpus []contract.GPUUUID) string {
	s := make([]string, 0, len(gpus))
	for _, g := range gpus {
		s = append(s, string(g))
	}
	return strings.Join(s, ",")
}

// setName names the device of a sorted set of GPUs. The names of all GPUs in a
// row would grow past what some runtimes log and store.
func setName(gpus []contract.GPUUUID) string {
	if len(gpus) == 1 {
		return string(gpus[0])
	}
	h := sha256.Sum256([]byte(join(gpus)))
	return fmt.Sprintf("set-%x", h[:8])
}

func memoryName(m units.MiB) string { return fmt.Sprintf("memory-%dMiB", m) }

// Names returns the qualified devices of a container with these grants, in the
// order in which they are to be applied: ours last, for NVIDIA's set
// NVIDIA_VISIBLE_DEVICES=void.
func (w *Writer) Names(grants []contract.Grant) []string {
	gpus := gpusOf(grants)
	var names []string
	if w.opts.NVIDIAKind != "" {
		for _, g := range gpus {
			names = append(names, w.opts.NVIDIAKind+"="+string(g))
		}
	}
	return append(names, Kind+"="+setName(gpus), Kind+"="+memoryName(memoryOf(grants)))
}

// EnforcesLimits says whether NVIDIA's devices of that kind for these GPUs,
// found in dirs, run the hook that applies memory limits. The error says which
// does not.
func EnforcesLimits(kind string, gpus []contract.GPUUUID, dirs ...string) error {
	cache, err := cdi.NewCache(cdi.WithSpecDirs(dirs...), cdi.WithAutoRefresh(false))
	if err != nil {
		return fmt.Errorf("CDI: %w", err)
	}
	for _, g := range gpus {
		name := kind + "=" + string(g)
		dev := cache.GetDevice(name)
		if dev == nil {
			return fmt.Errorf("CDI device %s %w in %s; run nvidia-ctk cdi generate with toolkit 1.20.1 or later", name, fs.ErrNotExist, strings.Join(dirs, ", "))
		}
		runsHook := func(h *specs.Hook) bool { return slices.Contains(h.Args, limitHook) }
		if !slices.ContainsFunc(dev.ContainerEdits.Hooks, runsHook) && !slices.ContainsFunc(dev.GetSpec().ContainerEdits.Hooks, runsHook) {
			return fmt.Errorf("CDI device %s has no hook %s; run nvidia-ctk cdi generate with toolkit 1.20.1 or later", name, limitHook)
		}
	}
	return nil
}
