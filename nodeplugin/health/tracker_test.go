package health_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tranche-dev/tranche/nodeplugin/health"
	"github.com/tranche-dev/tranche/nodeplugin/nvml"
	"github.com/tranche-dev/tranche/pkg/contract"
)

var start = time.Unix(0, 0)

func at(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }

func tracker(gpus ...contract.GPUUUID) *health.Tracker {
	t := health.NewTracker(health.Options{ApplicationXIDs: health.ApplicationXIDs, RecoveryPeriod: 30 * time.Second})
	t.Listed(machine(gpus...), at(0))
	return t
}

func machine(gpus ...contract.GPUUUID) nvml.Machine {
	m := nvml.Machine{Driver: "1"}
	for i, g := range gpus {
		m.GPUs = append(m.GPUs, nvml.GPU{UUID: g, Index: i})
	}
	return m
}

// unfit returns the reasons of the GPUs that are not healthy.
func unfit(t *health.Tracker) map[contract.GPUUUID]string {
	m := map[contract.GPUUUID]string{}
	for _, g := range t.State().GPUs {
		if !g.Healthy {
			m[g.UUID] = g.Reason
		}
	}
	return m
}

func TestRecoveryTakesTheWholePeriodAfterTheLastFault(t *testing.T) {
	tr := tracker("a", "b")
	if !tr.Reported(nvml.Event{GPU: "a", XID: 48}, at(10)) {
		t.Error("XID 48 is fatal")
	}
	tr.Probed("a", nil, at(39))
	if len(unfit(tr)) != 1 {
		t.Errorf("after 29 s: %v", unfit(tr))
	}
	tr.Probed("a", errors.New("no answer"), at(39))
	tr.Probed("a", nil, at(68))
	if got := unfit(tr); got["a"] != "no answer" || len(got) != 1 {
		t.Errorf("29 s after the second fault: %v", got)
	}
	tr.Probed("a", nil, at(69))
	if len(unfit(tr)) != 0 {
		t.Errorf("after 30 s: %v", unfit(tr))
	}
}

func TestApplicationErrorsSayNothingAboutTheGPU(t *testing.T) {
	tr := tracker("a")
	for _, xid := range health.ApplicationXIDs {
		if tr.Reported(nvml.Event{GPU: "a", XID: xid}, at(1)) {
			t.Errorf("XID %d is fatal", xid)
		}
	}
	if len(unfit(tr)) != 0 {
		t.Errorf("%v", unfit(tr))
	}
}

func TestAnErrorOfNoGPUInParticularMayBeOfAny(t *testing.T) {
	tr := tracker("a", "b")
	tr.Reported(nvml.Event{XID: 119}, at(1))
	if got := unfit(tr); len(got) != 2 || got["b"] != "XID 119: GSP timeout" {
		t.Errorf("%v", got)
	}
	if got := health.XIDText(999); got != "XID 999" {
		t.Errorf("text %q", got)
	}
}

func TestAGPUThatVanishesStaysKnownAndComesBackAfterThePeriod(t *testing.T) {
	tr := tracker("a", "b")
	tr.Listed(machine("b"), at(5))
	s := tr.State()
	if len(s.GPUs) != 2 || s.GPUs[0].UUID != "b" || s.GPUs[1].UUID != "a" || !strings.Contains(s.GPUs[1].Reason, "vanished") {
		t.Errorf("%+v", s.GPUs)
	}
	if got := tr.Present(); len(got) != 1 || got[0].UUID != "b" {
		t.Errorf("present: %v", got)
	}
	tr.Listed(nvml.Machine{GPUs: machine("b").GPUs, Unreadable: []error{nvml.ErrLost}}, at(6))
	if got := unfit(tr); !strings.Contains(got["a"], "does not answer") {
		t.Errorf("%v", got)
	}
	tr.Listed(machine("a", "b"), at(10))
	tr.Probed("a", nil, at(35))
	if len(unfit(tr)) != 1 {
		t.Error("fit too early")
	}
	tr.Probed("a", nil, at(36))
	if len(unfit(tr)) != 0 {
		t.Errorf("%v", unfit(tr))
	}
}

func TestWhenNVMLFailsNoGPUIsFit(t *testing.T) {
	tr := tracker("a", "b")
	tr.Failed(errors.New("driver gone"), at(5))
	if got := unfit(tr); len(got) != 2 || got["a"] != "driver gone" || tr.State().Failure == nil {
		t.Errorf("%v", got)
	}
	tr.Listed(machine("a", "b"), at(10))
	if s := tr.State(); s.Failure != nil || len(unfit(tr)) != 2 {
		t.Errorf("%+v", s)
	}
	tr.Probed("a", nil, at(40))
	tr.Probed("nobody", nil, at(40))
	if got := unfit(tr); len(got) != 1 {
		t.Errorf("%v", got)
	}
}

func TestFailingBeforeAnythingIsKnown(t *testing.T) {
	tr := health.NewTracker(health.Options{})
	tr.Failed(errors.New("no driver"), at(0))
	if s := tr.State(); s.Known || s.Failure == nil || len(s.GPUs) != 0 {
		t.Errorf("%+v", s)
	}
}
