package simulated

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"github.com/fsnotify/fsnotify"
	"k8s.io/klog/v2"

	"github.com/tranche-dev/tranche/nodeplugin/nvml"
	"github.com/tranche-dev/tranche/nodeplugin/nvml/nvidia"
	"github.com/tranche-dev/tranche/nodeplugin/nvml/simulation"
	"github.com/tranche-dev/tranche/pkg/contract"
)

// Simulation is a simulated machine. Its methods are safe for concurrent use.
type Simulation struct {
	path, node string

	mu sync.Mutex
	// text is what was last read from the file, changes how often it differed.
	text    []byte
	changes int
	file    simulation.File
	// devices[i] belongs to file.GPUs[i]; the mocks behind the handles.
	devices []*server.Device
	// inits counts Init minus Shutdown.
	inits int
	// delivered counts, per GPU, how many of its XIDs became events.
	delivered map[contract.GPUUUID]int
	// undelivered XIDs wait for an event set that asks for their GPU.
	undelivered map[contract.GPUUUID][]uint64
	sets        map[*eventSet]struct{}
	// limits are the memory limits in bytes, by GPU and cgroup.
	limits map[contract.GPUUUID]map[string]uint64
	// changed is closed, and replaced, at every change.
	changed chan struct{}
}

// Load reads the file at path. Call Follow to follow its changes.
func Load(path, node string) (*Simulation, error) {
	s := &Simulation{
		path: path, node: node,
		delivered:   map[contract.GPUUUID]int{},
		undelivered: map[contract.GPUUUID][]uint64{},
		sets:        map[*eventSet]struct{}{},
		limits:      map[contract.GPUUUID]map[string]uint64{},
		changed:     make(chan struct{}),
	}
	if err := s.reload(); err != nil {
		return nil, err
	}
	return s, nil
}

// Library returns the simulated NVML. All Libraries of one Simulation are one.
func (s *Simulation) Library() nvml.Library {
	return nvidia.Wrap(&api{Server: &server.Server{}, s: s})
}

// Set replaces the machine as if the file had changed.
func (s *Simulation) Set(f simulation.File) error {
	text, err := f.Format()
	if err != nil {
		return err
	}
	return s.apply(text)
}

// reload reads the file if it differs from what was last read.
func (s *Simulation) reload() error {
	text, err := os.ReadFile(s.path)
	if err != nil {
		return fmt.Errorf("simulation file: %w", err)
	}
	s.mu.Lock()
	same := bytes.Equal(text, s.text)
	s.mu.Unlock()
	if same {
		return nil
	}
	if err := s.apply(text); err != nil {
		return fmt.Errorf("%s: %w", s.path, err)
	}
	return nil
}

func (s *Simulation) apply(text []byte) error {
	f, err := simulation.Parse(text, s.node)
	if err != nil {
		return err
	}
	devices := make([]*server.Device, len(f.GPUs))
	for i, g := range f.GPUs {
		if devices[i], err = newDevice(g, i); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text, s.file, s.devices = text, f, devices
	if s.changes == 0 { // history
		for _, g := range f.GPUs {
			s.delivered[g.UUID] = len(g.XIDs)
		}
	}
	s.changes++
	for _, g := range f.GPUs {
		// A list that got shorter was cleared by hand: what it then gains is new.
		seen := min(s.delivered[g.UUID], len(g.XIDs))
		s.undelivered[g.UUID] = append(s.undelivered[g.UUID], g.XIDs[seen:]...)
		s.delivered[g.UUID] = len(g.XIDs)
	}
	close(s.changed)
	s.changed = make(chan struct{})
	return nil
}

// rereadEvery bounds how long a change is missed of which the kernel said
// nothing, as on some network file systems.
const rereadEvery = 5 * time.Second

// Follow applies changes of the file until ctx ends. A version of the file
// that is missing or wrong is logged and changes nothing.
func (s *Simulation) Follow(ctx context.Context) error {
	log := klog.FromContext(ctx).WithName("simulation")
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch simulation file: %w", err)
	}
	defer func() { _ = w.Close() }()
	// The folder, not the file: a file that is replaced takes its watch along.
	if err := w.Add(filepath.Dir(s.path)); err != nil {
		return fmt.Errorf("watch simulation file: %w", err)
	}
	tick := time.NewTicker(rereadEvery)
	defer tick.Stop()
	complained := ""
	for {
		// Also before the first wait: the file may have changed since Load.
		switch err := s.reload(); {
		case err == nil:
			complained = ""
		case err.Error() != complained:
			complained = err.Error()
			log.Error(err, "Simulation file ignored; the machine stays as it was")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case _, ok := <-w.Events:
			if !ok {
				return fmt.Errorf("watch simulation file: closed")
			}
		case err, ok := <-w.Errors:
			if !ok {
				return fmt.Errorf("watch simulation file: closed")
			}
			log.Error(err, "Watching the simulation file")
		}
	}
}

// ready returns the code with which every call fails at present, or SUCCESS.
// The caller holds s.mu.
func (s *Simulation) ready() gonvml.Return {
	if s.file.Failure != "" {
		return returnCode(s.file.Failure)
	}
	if s.inits == 0 {
		return gonvml.ERROR_UNINITIALIZED
	}
	return gonvml.SUCCESS
}

// gpu returns the script of one GPU, or the code with which calls on it fail.
func (s *Simulation) gpu(uuid contract.GPUUUID) (simulation.GPU, gonvml.Return) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gpuLocked(uuid)
}

func (s *Simulation) gpuLocked(uuid contract.GPUUUID) (simulation.GPU, gonvml.Return) {
	if ret := s.ready(); ret != gonvml.SUCCESS {
		return simulation.GPU{}, ret
	}
	for _, g := range s.file.GPUs {
		if g.UUID == uuid && !g.Gone {
			if g.Lost {
				return simulation.GPU{}, gonvml.ERROR_GPU_IS_LOST
			}
			return g, gonvml.SUCCESS
		}
	}
	return simulation.GPU{}, gonvml.ERROR_NOT_FOUND
}

// returnCode is the inverse of Return.Error for codes that have a name.
func returnCode(name string) gonvml.Return {
	for code := gonvml.Return(1); code < 100; code++ {
		if code.Error() == name {
			return code
		}
	}
	return gonvml.ERROR_UNKNOWN
}
