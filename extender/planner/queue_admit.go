package planner

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/queue"
	"github.com/tranche-dev/tranche/pkg/units"
)

// admits says why a queue does not take what who ("the pod", "the gang") of a
// namespace asks for, nil if it does. Every hold goes by it. What is charged to
// replaced does not count.
func (s *state) admits(name, namespace, who string, ask queue.Amounts, replaced ...types.UID) *reason {
	if name == "" || !s.p.opts.Queues {
		return nil
	}
	s.settleBooks()
	q := s.queues[name]
	if s.forbidden(q, namespace) {
		return &reason{v1alpha1.ReasonQueueForbidden, fmt.Sprintf("queue %s does not take pods of namespace %s, by its spec.namespaceSelector; use another queue, or ask its owner to select the namespace", name, namespace), 0}
	}
	if q != nil && q.view != nil && q.view.Problem != "" {
		return &reason{v1alpha1.ReasonQueueStopped, fmt.Sprintf("queue %s admits nobody, since it cannot be understood: %s", name, q.view.Problem), 0}
	}
	refusal := s.tree.Check(name, ask, replaced...)
	if refusal == nil {
		return nil
	}
	return s.refusalOf(refusal, name, who)
}

// yields says why a queue leaves quota that has become free to another below the
// same limit, nil if it does not: that one is entitled to it, waits for more than
// is free at one time, and would never get it if all of it were used at once.
func (s *state) yields(id, name, who string, priority int32, ask queue.Amounts, now time.Time) *reason {
	if len(s.short) == 0 {
		return nil
	}
	for _, above := range s.upward(name) {
		w := s.short[above]
		if w == nil || w.id == id || now.Sub(w.since) >= s.p.opts.ReservationTimeout {
			continue
		}
		if w.queue == name {
			// In its own queue a large one waits its time like anywhere else.
			if delay := s.p.opts.ReservationDelay; delay <= 0 || now.Sub(w.since) < delay || priority > w.priority {
				continue
			}
		} else if s.tree.EntitledBelow(name, ask, above) {
			continue
		}
		return &reason{v1alpha1.ReasonQueueLimit, fmt.Sprintf("what queue %s has left of its limit is kept for %s of queue %s, which is entitled to it and waits longer; %s goes on when that has started", above, w.text(), w.queue, who), 0}
	}
	return nil
}

// mayHold says why a pod's queue does not let it hold a plan, nil if it does. What
// the pod holds already does not count twice.
func (s *state) mayHold(pod *view.Pod, plan contract.Plan, node string) *reason {
	if !s.p.opts.Queues {
		return nil
	}
	s.settleBooks()
	ask := s.planCost(pod, plan, node)
	if c, ok := s.tree.Charged(pod.UID); ok && c.State != queue.Pending {
		if ask = beyond(ask, c.Amounts); ask.IsZero() {
			return nil
		}
	}
	return s.admits(s.queueName(pod.UID), pod.Namespace, "the pod", ask)
}

// refusalOf puts a refusal in words.
func (s *state) refusalOf(r *queue.Refusal, name, who string) *reason {
	at := "queue " + r.Queue
	if r.Queue != name {
		at = fmt.Sprintf("queue %s, above %s,", r.Queue, name)
	}
	switch r.Kind {
	case queue.UnknownQueue:
		text := fmt.Sprintf("there is no queue %s", name)
		if leaves := s.leaves(); len(leaves) > 0 {
			text += "; use one of " + strings.Join(leaves, ", ")
		}
		return &reason{v1alpha1.ReasonQueueUnknown, text + ", or create a Queue of that name", 0}
	case queue.NotLeaf:
		children := s.tree.Children(name)
		return &reason{v1alpha1.ReasonQueueNotLeaf, fmt.Sprintf("queue %s divides what it has among the queues below it and takes no pods itself; use one of %s", name, strings.Join(some(children), ", ")), 0}
	case queue.Stopped:
		why := "its spec.stopPolicy holds it; set that to None to go on"
		if q := s.queues[r.Queue]; q != nil && q.view != nil {
			switch {
			case q.view.Deleting:
				why = "it is being deleted; use another queue"
			case q.view.Problem != "":
				why = "it cannot be understood: " + q.view.Problem
			}
		}
		return &reason{v1alpha1.ReasonQueueStopped, fmt.Sprintf("%s admits nobody: %s", at, why), 0}
	case queue.UnknownParent:
		return &reason{v1alpha1.ReasonQueueStopped, fmt.Sprintf("%s admits nobody, since the parent that it names does not exist; create that queue, or correct spec.parent", at), 0}
	case queue.ParentCycle:
		return &reason{v1alpha1.ReasonQueueStopped, fmt.Sprintf("%s admits nobody, since it is above itself; correct spec.parent", at), 0}
	case queue.LimitTooLow:
		return &reason{v1alpha1.ReasonQueueTooSmall, fmt.Sprintf("%s asks for %s, and %s has a limit of %s; waiting will not help: ask for less, or raise spec.limit of queue %s",
			who, s.amountText(r.Resource, r.Asked), at, s.amountText(r.Resource, r.Limit), r.Queue), 0}
	default:
		return &reason{v1alpha1.ReasonQueueLimit, fmt.Sprintf("%s uses %s of its limit of %s, and %s asks for %s; it goes on when pods of the queue end or spec.limit of queue %s is raised",
			at, s.amountText(r.Resource, r.Used), s.amountText(r.Resource, r.Limit), who, s.amountText(r.Resource, r.Asked), r.Queue), 0}
	}
}

// leaves names some queues that take pods.
func (s *state) leaves() []string {
	var list []string
	for _, name := range s.tree.Names() {
		if s.tree.Leaf(name) {
			list = append(list, name)
		}
	}
	return some(list)
}

// some are the first few of many.
func some(names []string) []string {
	const few = 5
	if len(names) <= few {
		return names
	}
	return append(slices.Clone(names[:few]), fmt.Sprintf("%d more", len(names)-few))
}

// amountText writes an amount with its unit.
func (s *state) amountText(r queue.Resource, n int64) string {
	switch r {
	case queue.CPU:
		return resource.NewMilliQuantity(n, resource.DecimalSI).String() + " cpu"
	case queue.Memory:
		return resource.NewQuantity(n, resource.BinarySI).String() + " memory"
	default:
		text := string(view.GPUsOf(units.Shares(n), s.perGPU()))
		if text == "1" {
			text += " GPU"
		} else {
			text += " GPUs"
		}
		if r >= queue.FirstModel {
			text += " of model " + s.tree.ModelName(r)
		}
		return text
	}
}

// narrowed is a request without the models of which its queue may have no more:
// ask is what one pod wants. Whether all of a gang may have what was found is
// asked afterwards. False: no model is left.
func (s *state) narrowed(req contract.Request, name string, ask queue.Amounts) (contract.Request, bool) {
	if name == "" || !s.p.opts.Queues {
		return req, true
	}
	room := s.tree.Room(name)
	full := map[string]bool{}
	for r := queue.FirstModel; int(r) < len(room); r++ {
		if room[r] < ask.Get(queue.GPU) {
			full[s.tree.ModelName(r)] = true
		}
	}
	if len(full) == 0 {
		return req, true
	}
	models := req.Models
	if len(models) == 0 {
		models = s.tree.ModelNames()
	}
	left := slices.DeleteFunc(slices.Clone(models), func(m string) bool { return full[m] })
	req.Models = left
	return req, len(left) > 0
}

// beyond is what a is more than b, in each resource.
func beyond(a, b queue.Amounts) queue.Amounts {
	more := a.Sub(b)
	for r := range more {
		more[r] = max(more[r], 0)
	}
	return more
}

// modelRoom is how much more a queue may have of each GPU model that is limited.
type modelRoom map[string]int64

func (s *state) modelRoom(name string) modelRoom {
	list := modelRoom{}
	if name == "" || !s.p.opts.Queues {
		return list
	}
	room := s.tree.Room(name)
	for r := queue.FirstModel; int(r) < len(room); r++ {
		if room[r] != queue.Unlimited {
			list[s.tree.ModelName(r)] = room[r]
		}
	}
	return list
}

// take narrows a request to the first model that has room left for it, and takes
// that.
func (l modelRoom) take(s *state, req contract.Request, shares int64) contract.Request {
	models := req.Models
	if len(models) == 0 {
		models = s.tree.ModelNames()
	}
	for _, model := range slices.Sorted(slices.Values(models)) {
		left, limited := l[model]
		if !limited || left >= shares {
			if limited {
				l[model] = left - shares
			}
			req.Models = []string{model}
			return req
		}
	}
	return req
}
