package simulated

import (
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/tranche-dev/tranche/pkg/contract"
)

// eventSet delivers the XIDs that the script adds to the GPUs registered with
// it. Each XID goes to one set, once.
type eventSet struct {
	mock.EventSet
	s *Simulation
	// gpus and the set's place in s.sets are guarded by s.mu.
	gpus map[contract.GPUUUID]bool
}

var _ gonvml.EventSet = (*eventSet)(nil)

func (e *eventSet) Wait(timeoutMS uint32) (gonvml.EventData, gonvml.Return) {
	timeout := time.NewTimer(time.Duration(timeoutMS) * time.Millisecond)
	defer timeout.Stop()
	for {
		data, ret, changed := e.next()
		if changed == nil {
			return data, ret
		}
		select {
		case <-changed:
		case <-timeout.C:
			return gonvml.EventData{}, gonvml.ERROR_TIMEOUT
		}
	}
}

// next returns an event or a failure, or what to wait for.
func (e *eventSet) next() (gonvml.EventData, gonvml.Return, <-chan struct{}) {
	e.s.mu.Lock()
	defer e.s.mu.Unlock()
	if _, open := e.s.sets[e]; !open {
		return gonvml.EventData{}, gonvml.ERROR_INVALID_ARGUMENT, nil
	}
	if ret := e.s.ready(); ret != gonvml.SUCCESS {
		return gonvml.EventData{}, ret, nil
	}
	for i, g := range e.s.file.GPUs {
		if !e.gpus[g.UUID] {
			continue
		}
		if pending := e.s.undelivered[g.UUID]; len(pending) > 0 {
			e.s.undelivered[g.UUID] = pending[1:]
			return gonvml.EventData{
				Device:    &device{Device: e.s.devices[i], s: e.s, uuid: g.UUID},
				EventType: gonvml.EventTypeXidCriticalError, EventData: pending[0],
			}, gonvml.SUCCESS, nil
		}
		if g.Lost || g.Gone {
			return gonvml.EventData{}, gonvml.ERROR_GPU_IS_LOST, nil
		}
	}
	return gonvml.EventData{}, gonvml.SUCCESS, e.s.changed
}

func (e *eventSet) Free() gonvml.Return {
	e.s.mu.Lock()
	defer e.s.mu.Unlock()
	delete(e.s.sets, e)
	return gonvml.SUCCESS
}
