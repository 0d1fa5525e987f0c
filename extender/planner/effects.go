package planner

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/ledger"
)

// Effects are what the planner wants done outside. None of them may block.
type Effects interface {
	// Wake makes the scheduler try the pod again; version is the ledger's.
	Wake(pod ledger.Pod, version uint64)
	// Warn puts a Warning event on the pod.
	Warn(pod ledger.Pod, reason, message string)
	// Verify reads the pod from the API server, however often that takes, and
	// answers with Truth.
	Verify(pod ledger.Pod)

	// Admit lets the scheduler have a pod that has its place. The pods of one
	// call are admitted in parallel.
	Admit(admissions []Admission)
	// Withdraw takes back the nomination of a pod that was admitted in vain.
	Withdraw(pod ledger.Pod)
	// Evict ends a pod through the Eviction API, which heeds its budgets, and
	// puts an event with message on it once that has succeeded. It is asked
	// again while the pod stays.
	Evict(pod ledger.Pod, reason, message string)
	// EvictTogether ends all of some pods or none: if a budget does not allow all of
	// them to go now, EvictionRefused tells who must stay and nobody goes. Afterwards it is like Evict
	// for each.
	EvictTogether(evictions []Eviction)
	// Spare takes an Evict back that has not been obeyed yet.
	Spare(pod ledger.Pod)
	// ReportQueue says what a queue's object shall say. Of several reports of one
	// queue, the last counts.
	ReportQueue(report QueueReport)
	// Report says what a gang's object shall say. Of several reports of one
	// gang, the last counts.
	Report(report GangReport)
}

// Eviction is a pod that is to go, with the event about that.
type Eviction struct {
	Pod             ledger.Pod
	Reason, Message string
}

// Admission is a pod to be handed to the scheduler.
type Admission struct {
	Pod ledger.Pod
	// Node is where its place is: the pod is nominated to it first. Empty: it
	// has none, or nominations are switched off.
	Node string
	// Gated says that the pod has our gate, which is then lifted. A pod without
	// it is made to be tried again, for the scheduler may have given it up.
	Gated bool
	// Version is the ledger's.
	Version uint64
}

// GangKey names a gang.
type GangKey struct{ Namespace, Name string }

// GangReport is what is to be known of a gang outside.
type GangReport struct {
	Key GangKey
	// Keep says that the gang has members, so it must have an object: if there
	// is none, one is made, with MinCount and Owner. Without it, an object that
	// the system made and that has no owner is deleted.
	Keep bool
	// MinCount is written into objects that the system made, if above 0, and so is
	// Queue, if not empty.
	MinCount int32
	Queue    string
	Owner    *metav1.OwnerReference
	Status   v1alpha1.GangStatus
}

// QueueReport is what is to be known of a queue outside.
type QueueReport struct {
	Name string
	// InUse says that the queue must not vanish: nobody has deleted it, or pods are
	// charged to it or wait in it, or it has children.
	InUse  bool
	Status v1alpha1.QueueStatus
}
