package assign

import (
	"fmt"

	"github.com/tranche-dev/tranche/nodeplugin/slice"
	"github.com/tranche-dev/tranche/pkg/contract"
)

// Reason classifies refusals, for metrics.
type Reason string

// Why devices are refused.
const (
	// ReasonUnknownDevice: the kubelet gave devices that are not ours.
	ReasonUnknownDevice Reason = "unknown_device"
	// ReasonUnhealthyGPU: the GPU fell ill after the kubelet chose it.
	ReasonUnhealthyGPU Reason = "unhealthy_gpu"
	// ReasonNoPods: there was no list of pods to find out whose devices they are.
	ReasonNoPods Reason = "no_pods"
	// ReasonUnknownPod: no pod waits for that many devices.
	ReasonUnknownPod Reason = "unknown_pod"
	// ReasonUnplanned: the pod has no plan, or none for this node or container.
	ReasonUnplanned Reason = "unplanned"
	// ReasonShort: the planned GPU has too few free devices.
	ReasonShort Reason = "short"
	// ReasonWrongGPU: the devices lie on other GPUs than planned.
	ReasonWrongGPU Reason = "wrong_gpu"
	// ReasonDuplicateDevice: somebody alive holds one of the devices.
	ReasonDuplicateDevice Reason = "duplicate_device"
	// ReasonOverCapacity: the GPU would be charged beyond its shares.
	ReasonOverCapacity Reason = "over_capacity"
	// ReasonInternal: the ledger or the CDI file could not be written.
	ReasonInternal Reason = "internal"
)

// Reasons lists them all.
var Reasons = []Reason{
	ReasonUnknownDevice, ReasonUnhealthyGPU, ReasonNoPods, ReasonUnknownPod, ReasonUnplanned,
	ReasonShort, ReasonWrongGPU, ReasonDuplicateDevice, ReasonOverCapacity, ReasonInternal,
}

// Refusal says why devices were not given. The kubelet puts the message into
// the status of the pod, which it fails.
type Refusal struct {
	Reason Reason
	// Message is a sentence for the pod's owner: which pod, what, what to do.
	Message string
}

func refuse(reason Reason, format string, args ...any) *Refusal {
	return &Refusal{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

func noPods(err error) *Refusal {
	return refuse(ReasonNoPods, "the node plugin could not find out for which pod these devices are: %v. Create the pod again", err)
}

func nobody(q question) *Refusal {
	return refuse(ReasonUnknownPod, "no pod on this node waits for %d of %s: the kubelet's list of pods shows none. Create the pod again", q.size, q.resource)
}

func tooFew(c candidate, resource string, s slice.Shortage) *Refusal {
	return refuse(ReasonShort, "%s needs %d devices of %s on GPU %s, but the kubelet has %d of them free. Create the pod again; it will be placed where there is room",
		c.pod.label(c.container), s.Need, resource, s.GPU, s.Free)
}

func wrongGPU(c candidate, ids []contract.DeviceID) *Refusal {
	return refuse(ReasonWrongGPU, "%s is planned on %v, but the kubelet gave %s. Create the pod again",
		c.pod.label(c.container), gpusOf(c.pod.Plan[c.container]), summary(ids))
}

func cannotSave(c candidate, err error) *Refusal {
	return refuse(ReasonInternal, "%s: the node plugin could not record its devices: %v. Free or repair its disk on this node, then create the pod again",
		c.pod.label(c.container), err)
}

// Outcome classifies answers to GetPreferredAllocation, for metrics.
type Outcome string

// How GetPreferredAllocation was answered.
const (
	// OutcomePlanned: with devices of the planned GPUs.
	OutcomePlanned Outcome = "planned"
	// The others: with nothing, and Allocate refuses.
	OutcomeForeignDevices Outcome = "foreign_devices"
	OutcomeNoPods         Outcome = "no_pods"
	OutcomeUnknownPod     Outcome = "unknown_pod"
	OutcomeNoPlan         Outcome = "no_plan"
	OutcomeShort          Outcome = "short"
)

// Outcomes lists them all.
var Outcomes = []Outcome{OutcomePlanned, OutcomeForeignDevices, OutcomeNoPods, OutcomeUnknownPod, OutcomeNoPlan, OutcomeShort}
