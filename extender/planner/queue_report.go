package planner

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/queue"
	"github.com/tranche-dev/tranche/pkg/units"
)

// reportEvery is how often queues are looked at for something to report, at most;
// reportPart bounds that to a part of the planner's time, however many pods wait.
const (
	reportEvery = 200 * time.Millisecond
	reportPart  = 25
)

// tell has queues reported, and the gates made anew, soon.
func (s *state) tell() { s.queueTold, s.gatesDirty = true, true }

// reportQueues tells what has changed about queues.
func (s *state) reportQueues(now time.Time) {
	if !s.p.opts.Queues || !s.queueTold && !s.gatesStale || now.Before(s.nextReport) || !s.p.Live() {
		return
	}
	s.queueTold, s.nextReport = false, now.Add(reportEvery)
	backlog, opens := s.backlogs(), s.opens()
	gauges := make([]QueueState, 0, len(s.queues))
	for _, q := range s.queues {
		if q.view == nil {
			continue
		}
		basis := s.reportBasis(q, backlog[q.name], opens[q.name])
		gauges = append(gauges, gaugeOf(q, &basis))
		if basis.equal(&q.basis) {
			continue
		}
		q.basis = basis
		r := QueueReport{Name: q.name, InUse: basis.inUse, Status: s.queueStatus(q, &basis, now)}
		if q.reported != nil && equality.Semantic.DeepEqual(*q.reported, r) {
			continue
		}
		q.reported = &r
		s.p.effects.ReportQueue(r)
	}
	slices.SortFunc(gauges, func(a, b QueueState) int { return strings.Compare(a.Name, b.Name) })
	s.p.queueGauges.Store(&gauges)
	if took := reportPart * s.p.opts.Clock.Since(now); took > reportEvery {
		s.nextReport = now.Add(took)
	}
}

// inUse says whether a queue must not vanish. One that is not being deleted is
// taken to be: a pod may come at the very moment.
func (s *state) inUse(q *queueState) bool {
	return !q.view.Deleting || q.pods > 0 || len(s.tree.Children(q.name)) > 0
}

// reportBasis is what a report is made of: many queues are looked at, few have
// changed.
type reportBasis struct {
	usage              queue.Usage
	backlog            int32
	open, inUse, known bool
	specs              uint64
}

func (s *state) reportBasis(q *queueState, backlog int32, opens bool) reportBasis {
	return reportBasis{
		usage: s.tree.Usage(q.name), backlog: backlog, open: backlog == 0 && opens, inUse: s.inUse(q), specs: s.specs, known: true,
	}
}

func (b *reportBasis) equal(o *reportBasis) bool {
	return b.known == o.known && b.backlog == o.backlog && b.open == o.open && b.inUse == o.inUse && b.specs == o.specs &&
		b.usage.Pending == o.usage.Pending && b.usage.Allocated.Equal(o.usage.Allocated) && b.usage.Held.Equal(o.usage.Held) && b.usage.Demand.Equal(o.usage.Demand) &&
		b.usage.Deserved.Equal(o.usage.Deserved) && b.usage.FairShare.Equal(o.usage.FairShare) && b.usage.EffectiveLimit.Equal(o.usage.EffectiveLimit)
}

// backlogs counts the gangs and single pods that wait, for each queue and all
// below it.
func (s *state) backlogs() map[string]int32 {
	own := map[string]int32{}
	for _, q := range s.queues {
		if q.backlog > 0 {
			own[q.name] = q.backlog
		}
	}
	for _, g := range s.gangs {
		if g.why == nil {
			continue
		}
		var first *member
		for _, m := range g.members {
			if m.pod.Node == "" && (first == nil || older(m.pod, first.pod) < 0) {
				first = m
			}
		}
		if first != nil {
			own[s.queueName(first.pod.UID)]++
		}
	}
	sum := map[string]int32{}
	for name, n := range own {
		for _, at := range s.upward(name) {
			sum[at] += n
		}
	}
	return sum
}

// upward lists a queue and all above it, each once if they are in a ring.
func (s *state) upward(name string) []string {
	var path []string
	for name != "" && !slices.Contains(path, name) {
		path = append(path, name)
		q := s.queues[name]
		if q == nil || q.view == nil {
			break
		}
		name = q.view.Parent
	}
	return path
}

func (s *state) queueStatus(q *queueState, basis *reportBasis, now time.Time) v1alpha1.QueueStatus {
	u := &basis.usage
	status := v1alpha1.QueueStatus{
		Allocated: s.usageText(u.Allocated), Held: s.usageText(u.Held), Demand: s.usageText(u.Demand),
		FairShare: s.usageText(u.FairShare), EffectiveLimit: s.usageText(u.EffectiveLimit), PendingGangs: basis.backlog,
		Open: basis.open,
	}
	before := q.view.Status.Conditions
	if q.reported != nil {
		before = q.reported.Status.Conditions
	}
	status.Conditions = s.queueConditions(q, before, now)
	return status
}

// opens lists the queues of which the next single pod needs no gate: those that
// admit, are below their limits, and are within their share if others wait for
// theirs.
func (s *state) opens() map[string]bool {
	waiting := 0
	for _, q := range s.queues {
		if q.stuck {
			waiting++
		}
	}
	list := map[string]bool{}
	for _, d := range s.tree.Doors(queue.GPU) {
		others := waiting
		if q := s.queues[d.Queue]; q != nil && q.stuck {
			others--
		}
		if d.Limit > 0 && (others == 0 || d.Share > 0) {
			list[d.Queue] = true
		}
	}
	return list
}

// usageText writes amounts as the API does. What is unlimited is left out, and
// so are models of which there is nothing.
func (s *state) usageText(a queue.Amounts) v1alpha1.QueueUsage {
	var out v1alpha1.QueueUsage
	if n := a.Get(queue.GPU); n != queue.Unlimited {
		out.GPU = view.GPUsOf(units.Shares(n), s.perGPU())
	}
	if n := a.Get(queue.CPU); n != queue.Unlimited {
		out.CPU = resource.NewMilliQuantity(n, resource.DecimalSI)
	}
	if n := a.Get(queue.Memory); n != queue.Unlimited {
		out.Memory = resource.NewQuantity(n, resource.BinarySI)
	}
	for r := queue.FirstModel; int(r) < len(a); r++ {
		if a[r] == 0 || a[r] == queue.Unlimited {
			continue
		}
		if out.GPUModels == nil {
			out.GPUModels = map[string]v1alpha1.GPUs{}
		}
		out.GPUModels[s.tree.ModelName(r)] = view.GPUsOf(units.Shares(a[r]), s.perGPU())
	}
	return out
}

// queueConditions brings the conditions of a queue up to date.
func (s *state) queueConditions(q *queueState, before []metav1.Condition, now time.Time) []metav1.Condition {
	list := slices.Clone(before)
	set := func(kind string, ok bool, reason, message string) {
		c := metav1.Condition{
			Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message,
			ObservedGeneration: q.view.Generation, LastTransitionTime: metav1.NewTime(now.Truncate(time.Second)),
		}
		if ok {
			c.Status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&list, c)
	}
	reason, message := s.notReady(q)
	set(v1alpha1.QueueReady, reason == "", cmp.Or(reason, v1alpha1.ReasonReady), message)
	var scaled, over []string
	for _, p := range s.tree.Problems(q.name) {
		switch p.Kind { //nolint:exhaustive // the others are notReady's business
		case queue.DeservedScaled:
			scaled = append(scaled, fmt.Sprintf("the queues below deserve %s, and this one %s; what they deserve is cut in proportion until spec.deserved of one or the other is changed", s.amountText(p.Resource, p.Have), s.amountText(p.Resource, p.Allowed)))
		case queue.OverLimit:
			over = append(over, fmt.Sprintf("pods have %s, and the limit is %s; nobody else is admitted until enough of them have ended", s.amountText(p.Resource, p.Have), s.amountText(p.Resource, p.Allowed)))
		}
	}
	pick := func(yes bool, a, b string) string {
		if yes {
			return a
		}
		return b
	}
	set(v1alpha1.QueueDeservedScaled, len(scaled) > 0, pick(len(scaled) > 0, v1alpha1.ReasonDeservedTooMuch, v1alpha1.ReasonDeservedFits), strings.Join(scaled, "; "))
	set(v1alpha1.QueueOverLimit, len(over) > 0, pick(len(over) > 0, v1alpha1.ReasonLimitExceeded, v1alpha1.ReasonWithinLimit), strings.Join(over, "; "))
	return list
}

// notReady says why a queue admits nobody; empty if it does, or if those below
// it do.
func (s *state) notReady(q *queueState) (reason, message string) {
	switch {
	case q.view.Deleting:
		return v1alpha1.ReasonDeleting, "the queue is being deleted; it goes when its pods and the queues below it have gone"
	case q.view.Problem != "":
		return v1alpha1.ReasonInvalidQueue, q.view.Problem
	}
	refusal := s.tree.Check(q.name, nil)
	if refusal == nil {
		return "", ""
	}
	if refusal.Kind == queue.NotLeaf {
		for _, p := range s.tree.Problems(q.name) {
			if p.Kind == queue.HasPods {
				return v1alpha1.ReasonHasChildren, fmt.Sprintf("pods (%d) name this queue, which divides what it has among the queues below it and admits nobody itself; let them name one of %s", p.Have, strings.Join(some(s.tree.Children(q.name)), ", "))
			}
		}
		return "", ""
	}
	why := s.refusalOf(refusal, q.name, "")
	switch refusal.Kind {
	case queue.UnknownParent:
		return v1alpha1.ReasonParentUnknown, why.message
	case queue.ParentCycle:
		return v1alpha1.ReasonParentCycle, why.message
	default:
		return v1alpha1.ReasonStopped, why.message
	}
}
