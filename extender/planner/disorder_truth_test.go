package planner

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/gang"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/queue"
)

// wrong says what the planner has wrong when nothing is on its way.
func (d *disorder) wrong() string {
	text, err := ask(d.Context(), d.p, func(_ context.Context, s *state, _ time.Time) string { return d.wrongIn(s) })
	if err != nil {
		return err.Error()
	}
	return text
}

func (d *disorder) wrongIn(s *state) string {
	if s.p.opts.Queues {
		// What pods have on GPUs of others, queues know alone.
		if text := s.unsound(); text != "" && !d.excused(s, text) {
			return text
		}
		if text := s.outdated(); text != "" {
			return text
		}
	}
	alive := map[types.UID]*view.Pod{}
	for _, pod := range d.pods {
		if v := view.PodOf(pod, s.p.opts.Resources); v != nil && !v.Ended {
			alive[pod.UID] = v
		}
	}
	for uid, v := range alive {
		r, ok := s.ledger.Get(uid)
		switch {
		case v.Node != "" && len(v.Plan) > 0 && (!ok || r.State != ledger.Allocated || r.Node != v.Node):
			return fmt.Sprintf("pod %s runs on %s and is charged %+v", uid, v.Node, r)
		case v.Node == "" && ok && r.State != ledger.Held:
			return fmt.Sprintf("pod %s waits and is charged %+v", uid, r)
		case v.Node == "" && v.Deleting && ok:
			return fmt.Sprintf("pod %s waits for its end and is charged %+v", uid, r)
		}
		c := s.counted[uid]
		if c == nil && (!s.p.opts.Queues || s.queueFor(v) == "") {
			continue
		}
		if c == nil {
			return fmt.Sprintf("pod %s is in no queue", uid)
		}
		if v.Node == "" && c.queue != s.queueFor(v) {
			return fmt.Sprintf("pod %s is in queue %s, not %s", uid, c.queue, s.queueFor(v))
		}
		if e := s.pending[uid]; v.Node == "" && (e == nil || e.pod.Deleting != v.Deleting || e.pod.Gated != v.Gated || e.pod.Queue != v.Queue) {
			return fmt.Sprintf("pod %s waits and is known as %+v %+v, not %+v %+v", uid, e, *e.pod, v, *v.Unbound)
		}
		charge, charged := s.tree.Charged(uid)
		wants := queue.Pending
		switch {
		case v.Node != "":
			wants = queue.Allocated
		case ok, c.away():
			wants = queue.Held
		}
		if idle := v.Node == "" && !ok && (v.Deleting || s.idle(c)); idle == charged || charged && charge.State != wants {
			return fmt.Sprintf("pod %s is charged %+v, idle %v", uid, charge, idle)
		}
	}
	for _, r := range s.ledger.Records() {
		if alive[r.Pod.UID] == nil && !strings.Contains(string(r.Pod.UID), " ") {
			return fmt.Sprintf("pod %s does not exist and is charged %+v", r.Pod.UID, r)
		}
	}
	for uid := range s.counted {
		if alive[uid] == nil {
			return fmt.Sprintf("pod %s does not exist and is counted", uid)
		}
	}
	for uid := range s.pending {
		if v := alive[uid]; v == nil || v.Node != "" {
			return fmt.Sprintf("pod %s does not wait and is pending", uid)
		}
	}
	members := map[types.UID]string{}
	for _, pod := range d.pods {
		if v := view.PodOf(pod, s.p.opts.Resources); v != nil && v.Member != nil && s.p.opts.Gangs && (!v.Ended || v.Member.Succeeded) {
			members[v.UID] = v.Member.Gang
		}
	}
	for uid, name := range members {
		if m := s.members[uid]; m == nil || m.gang.key.Name != name || s.gangs[m.gang.key] != m.gang || m.gang.members[uid] != m {
			// One that was done before a restart is not told of again: what it did counts for nobody who lives.
			return fmt.Sprintf("member %s of %s is %+v", uid, name, m)
		}
	}
	for uid := range s.members {
		if members[uid] == "" {
			return fmt.Sprintf("%s is no member", uid)
		}
	}
	for key, g := range s.gangs {
		if len(g.members) == 0 && g.object == nil {
			return fmt.Sprintf("gang %v is empty", key)
		}
		if g.object != d.gangs[key.Name] && (g.object == nil || d.gangs[key.Name] == nil || *g.object != *d.gangs[key.Name]) {
			return fmt.Sprintf("gang %v has object %+v", key, g.object)
		}
	}
	for _, m := range []struct {
		what string
		n    int
	}{{"unconfirmed", len(s.unconfirmed)}, {"binding", len(s.binding)}, {"lingering", len(s.lingering)}, {"unwatched", len(s.unwatched)}} {
		if m.n > 0 {
			return fmt.Sprintf("%d are %s", m.n, m.what)
		}
	}
	if text := d.readersWrong(s); text != "" {
		return text
	}
	used := map[string]gang.Resources{}
	for _, pod := range d.pods {
		if u := view.UsageOf(pod); u != nil {
			used[u.Node] = used[u.Node].Add(u.Needs)
		}
	}
	for name, n := range s.nodes {
		if !n.used.Equal(used[name]) {
			return fmt.Sprintf("of node %s %+v is used", name, n.used)
		}
		if n.view == nil && n.used.Equal(gang.Resources{}) && n.kept.Equal(gang.Resources{}) {
			return fmt.Sprintf("node %s is gone and known", name)
		}
	}
	return ""
}

// excused says whether it is no wonder that pods and queues differ: some have GPUs
// without a plan, or are with the scheduler without a hold.
func (d *disorder) excused(s *state, text string) bool {
	return strings.HasPrefix(text, "queues are charged") && (d.strange() || slices.ContainsFunc(slices.Collect(maps.Values(s.counted)), (*counted).away))
}

// readersWrong says what Filter and gauges have wrong.
func (d *disorder) readersWrong(s *state) (wrong string) {
	each := func(list *sync.Map, what string, ok func(uid types.UID, v any) bool) {
		list.Range(func(key, v any) bool {
			if uid, _ := key.(types.UID); !ok(uid, v) {
				wrong = fmt.Sprintf("readers see %s %s %+v", what, uid, v)
			}
			return true
		})
	}
	each(&s.p.decided, "decided", func(uid types.UID, v any) bool {
		r, ok := s.ledger.Get(uid)
		return ok && r.State == ledger.Allocated && r.Node == v
	})
	each(&s.p.places, "placed", func(uid types.UID, v any) bool {
		m := s.members[uid]
		return m != nil && m.place != nil && m.place.Node == v
	})
	each(&s.p.admitted, "admitted", func(uid types.UID, v any) bool {
		r, ok := s.ledger.Get(uid)
		c := s.counted[uid]
		if s.members[uid] != nil {
			return true // nobody asks
		}
		at, _ := v.(*admitted)
		return ok && r.State == ledger.Held && r.Node == at.node || at.node == "" && (c != nil && c.admitted || !s.p.opts.Queues)
	})
	each(&s.p.refused, "refused", func(uid types.UID, _ any) bool { return s.pending[uid] != nil })
	for uid, m := range s.members {
		if _, ok := s.p.places.Load(uid); m.place != nil && !ok {
			return fmt.Sprintf("readers do not see the place of %s", uid)
		}
		if r, ok := s.ledger.Get(uid); m.place != nil && (!ok || r.Node != m.place.Node) {
			return fmt.Sprintf("member %s has a place and holds %+v", uid, r)
		}
	}
	for uid := range s.vacant {
		if _, ok := s.ledger.Get(uid); !ok {
			return fmt.Sprintf("%s is vacant and nothing is held", uid)
		}
	}
	for uid := range s.preemptors {
		if s.pending[uid] == nil {
			return fmt.Sprintf("%s is nominated and does not wait", uid)
		}
	}
	for uid, e := range s.woken {
		if s.pending[uid] != e {
			return fmt.Sprintf("%s is woken and does not wait", uid)
		}
	}
	for id, w := range s.wanting {
		if !w.alive(s) {
			return fmt.Sprintf("%s wants nothing any more", id)
		}
	}
	return wrong
}

// strange says whether pods have GPUs without a plan.
func (d *disorder) strange() bool {
	for _, pod := range d.pods {
		if pod.Spec.NodeName != "" && pod.Annotations[contract.PlanAnnotation] == "" {
			return true
		}
	}
	return false
}

// serveAll lets a scheduler work in peace until everybody who can has run.
func (d *disorder) serveAll() string {
	for _, name := range []string{"a", "b", "c", "default", "top"} {
		if q := d.queues[name]; q != nil {
			delete(d.queues, name)
			d.feed("queues", func() { d.p.ForgetQueue(d.Context(), name) })
		}
		if name != "top" {
			d.setQueue(aQueue(name, ""))
		}
	}
	for _, name := range []string{"g0", "g1", "g2"} {
		if d.gangs[name] != nil {
			delete(d.gangs, name)
			d.feed("gangs", func() { d.p.ForgetGang(d.Context(), "demo", name) })
		}
	}
	for _, name := range []string{"a", "b"} {
		d.setNode(name, 4)
	}
	d.setNamespace(true)
	for _, pod := range d.pods {
		if pod.DeletionTimestamp != nil || d.viewOf(pod) == nil {
			d.write(pod.Name, nil)
		} else if pod.Annotations[contract.GangMinCountAnnotation] != "" {
			d.edit(pod, func(p *corev1.Pod) {
				p.Annotations[contract.GangMinCountAnnotation] = "1"
				p.Labels[contract.QueueLabel] = "a"
				p.Spec.Priority = nil
			})
		}
	}
	for range 400 {
		for range 5 {
			d.arrive()
		}
		for _, name := range slices.Sorted(maps.Keys(d.pods)) {
			pod := d.pods[name]
			d.mu.Lock()
			busy := slices.ContainsFunc(d.posts, func(b post) bool { return b.UID == pod.UID })
			d.mu.Unlock()
			switch {
			case busy:
			case pod.Spec.NodeName != "" && pod.Status.Phase == corev1.PodRunning:
				d.edit(pod, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
			case pod.Spec.NodeName != "":
				d.write(name, nil)
			case len(pod.Spec.SchedulingGates) == 0:
				d.schedule(pod, false)
			}
		}
		if len(d.pods) == 0 {
			return ""
		}
		d.after(3 * time.Second)
	}
	text := ""
	for _, pod := range d.pods {
		text += "; " + describe(pod)
		if w, ok := d.effects.reports[GangKey{"demo", pod.Labels[contract.GangLabel]}]; ok {
			text += fmt.Sprint(w.Status.Reasons)
		}
	}
	return "never served: " + text
}

// clear removes all that there is, and says what the planner still knows.
func (d *disorder) clear() string {
	for _, pod := range d.pods {
		d.write(pod.Name, nil)
	}
	for name := range d.nodes {
		delete(d.nodes, name)
		d.feed("nodes", func() { d.p.ForgetNode(d.Context(), name) })
	}
	for name := range d.queues {
		delete(d.queues, name)
		d.feed("queues", func() { d.p.ForgetQueue(d.Context(), name) })
	}
	for name := range d.gangs {
		delete(d.gangs, name)
		d.feed("gangs", func() { d.p.ForgetGang(d.Context(), "demo", name) })
	}
	d.settleDown()
	d.after(15 * time.Minute)
	text, err := ask(d.Context(), d.p, func(_ context.Context, s *state, _ time.Time) string {
		count := map[string]int{
			"nodes": len(s.nodes), "gangs": len(s.gangs), "usage": len(s.usage), "binding": len(s.binding), "unconfirmed": len(s.unconfirmed),
			"lingering": len(s.lingering), "unplanned": len(s.unplanned) + len(s.unplannedOn), "swaps": len(s.swaps), "departed": len(s.departed),
			"efforts": len(s.efforts), "stubborn": len(s.stubborn), "expelled": len(s.expelled), "short": len(s.short), "recent": len(s.recent),
			"learned": len(s.learned), "foreign": len(s.foreign), "broken": len(s.broken), "partial": len(s.partial),
		}
		for _, list := range []*sync.Map{&s.p.decided, &s.p.places} {
			list.Range(func(_, _ any) bool { count["decided or placed"]++; return true })
		}
		for name, q := range s.queues {
			if name != "default" && name != "" {
				count["queue "+name+fmt.Sprint(q.pods, q.view != nil)]++
			}
		}
		maps.DeleteFunc(count, func(_ string, n int) bool { return n == 0 })
		if len(count) > 0 {
			return fmt.Sprint(count) + s.leftover()
		}
		return s.leftover()
	})
	if err != nil {
		return err.Error()
	}
	if text != "" {
		return "left: " + text
	}
	return ""
}
