package planner

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/tranche-dev/tranche/extender/view"
	"github.com/tranche-dev/tranche/pkg/contract"
)

// disorder has an API server, of which the planner hears late. News of one kind
// of objects come in order, those of different kinds in any, and what happens
// while the watch of pods is interrupted is only seen in the list that follows.
// Calls of the scheduler speak of pods as they once were, and answers of the API
// server come when they like.
type disorder struct {
	*kit
	r      *rand.Rand
	doubts *doubts
	// pods are by name, like nodes, queues and gangs: another object of the same
	// name has another UID.
	pods   map[string]*corev1.Pod
	nodes  map[string]*corev1.Node
	queues map[string]*view.Queue
	gangs  map[string]*view.Gang
	// namespace is that of all pods.
	namespace *view.Namespace
	// news are what informers have not told yet, by kind; seen are the pods in the
	// informer's store, cut says that the watch of pods is interrupted.
	news map[string][]func()
	seen map[string]*corev1.Pod
	cut  bool
	// past are pods as they were, for calls that are late.
	past []*corev1.Pod

	mu sync.Mutex
	// posts are Bindings on their way, answers what is known of outcomes and not
	// told.
	posts   []post
	answers []func()
	calls   sync.WaitGroup
	made    int
	log     []string
	// calm says that Bindings succeed.
	calm bool
}

type post struct {
	Target
	plan *contract.Plan
	p    *Planner
}

func (d *disorder) note(format string, args ...any) {
	d.log = append(d.log, fmt.Sprintf("%8s ", time.Since(epochOfBubble).Round(100*time.Millisecond))+fmt.Sprintf(format, args...))
}

var epochOfBubble = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func (d *disorder) oneIn(n int) bool { return d.r.IntN(n) == 0 }

func pick[V any](d *disorder, m map[string]V) (V, bool) {
	var none V
	if len(m) == 0 {
		return none, false
	}
	names := slices.Sorted(maps.Keys(m))
	return m[names[d.r.IntN(len(names))]], true
}

func (d *disorder) feed(kind string, tell func()) { d.news[kind] = append(d.news[kind], tell) }

// write has the API server have a pod as it is now, nil for none, and the watch
// tell of it.
func (d *disorder) write(name string, pod *corev1.Pod) {
	if old := d.pods[name]; old != nil {
		d.past = append(d.past, old)
		if len(d.past) > 12 {
			d.past = d.past[1:]
		}
	}
	if pod == nil {
		delete(d.pods, name)
	} else {
		d.made++
		pod.ResourceVersion = strconv.Itoa(d.made)
		d.pods[name] = pod
	}
	if !d.cut {
		d.feed("pods", func() { d.show(name, pod) })
	}
}

func (d *disorder) edit(pod *corev1.Pod, f func(p *corev1.Pod)) {
	after := pod.DeepCopy()
	f(after)
	d.write(pod.Name, after)
}

// show is what watch's handler does.
func (d *disorder) show(name string, pod *corev1.Pod) {
	old := d.seen[name]
	if old != nil && (pod == nil || pod.UID != old.UID) {
		d.note("  shown: %s is gone", old.UID)
		if view.UsageOf(old) != nil {
			d.p.ForgetUsage(d.Context(), old.UID)
		}
		if v := d.viewOf(old); v != nil {
			d.p.Forget(d.Context(), v)
		}
		old = nil
	}
	if pod == nil {
		delete(d.seen, name)
		return
	}
	d.seen[name] = pod
	if u := view.UsageOf(pod); u != nil {
		d.p.ObserveUsage(d.Context(), u)
	} else if old != nil && view.UsageOf(old) != nil {
		d.p.ForgetUsage(d.Context(), pod.UID)
	}
	v := d.viewOf(pod)
	if v == nil {
		if old != nil && d.viewOf(old) != nil {
			d.p.Forget(d.Context(), d.viewOf(old))
		}
		return
	}
	if old != nil && d.viewOf(old) != nil && v.SameDecision(d.viewOf(old)) {
		return
	}
	d.note("  shown: %s", describe(pod))
	d.p.Observe(d.Context(), v)
}

func (d *disorder) viewOf(pod *corev1.Pod) *view.Pod { return view.PodOf(pod, d.p.opts.Resources) }

// relist shows all pods as they are.
func (d *disorder) relist() {
	list := maps.Clone(d.pods)
	d.feed("pods", func() {
		names := maps.Clone(list)
		maps.Copy(names, d.seen)
		for _, name := range slices.Sorted(maps.Keys(names)) {
			d.show(name, list[name])
		}
	})
}

func describe(p *corev1.Pod) string {
	return fmt.Sprintf("%s node=%q phase=%s gates=%d deleting=%v labels=%v", p.UID, p.Spec.NodeName, p.Status.Phase, len(p.Spec.SchedulingGates), p.DeletionTimestamp != nil, p.Labels)
}

// others are the kinds of news that are not of pods.
var others = []string{"namespaces", "nodes", "queues", "gangs"}

// deliver has an informer tell some of its news.
func (d *disorder) deliver(kind string, n int) {
	for range n {
		if list := d.news[kind]; len(list) > 0 {
			d.news[kind] = list[1:]
			list[0]()
		}
	}
	synctest.Wait()
}

func (d *disorder) step() {
	synctest.Wait()
	switch n := d.r.IntN(40); {
	case n < 5:
		d.create()
	case n < 6:
		d.ends()
	case n < 8:
		d.goes()
	case n < 9 && d.oneIn(2):
		d.speak()
	case n < 9:
		d.relabel()
	case n < 10:
		if pod, ok := pick(d, d.pods); ok && len(pod.Spec.SchedulingGates) > 0 {
			d.note("a stranger lifts the gate of %s", pod.UID)
			d.edit(pod, func(p *corev1.Pod) { p.Spec.SchedulingGates = nil })
		}
	case n < 11 && d.oneIn(4):
		if pod, ok := pick(d, d.pods); ok && len(pod.Spec.SchedulingGates) == 0 && pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil {
			d.note("a stranger binds %s", pod.UID)
			d.edit(pod, func(p *corev1.Pod) { p.Spec.NodeName, p.Status.Phase = "a", corev1.PodRunning })
		}
	case n < 11:
		d.changeNode()
	case n < 12:
		d.changeQueue()
	case n < 13 && d.oneIn(3):
		d.setNamespace(d.oneIn(2))
	case n < 13:
		d.changeQueue()
	case n < 14:
		d.changeGang()
	case n < 15:
		if d.cut = !d.cut; !d.cut {
			d.note("the watch goes on")
			d.relist()
		} else {
			d.note("the watch is interrupted")
			if d.oneIn(2) {
				d.news["pods"] = nil
			}
		}
	case n < 21:
		kind := append([]string{"pods", "pods"}, others...)[d.r.IntN(2+len(others))]
		d.deliver(kind, 1+d.r.IntN(4))
	case n < 28:
		d.call()
	case n < 31:
		d.postOne()
	case n < 34:
		d.answer()
	case n < 35:
		d.verify()
	case n < 37:
		d.obey(1 + d.r.IntN(3))
	case n < 39:
		pause := []time.Duration{100 * time.Millisecond, time.Second, 5 * time.Second, 20 * time.Second, 70 * time.Second}[d.r.IntN(5)]
		d.note("%v pass", pause)
		d.after(pause)
	default:
		if d.oneIn(4) {
			d.note("restart")
			d.restart()
		}
	}
}

// begin runs a planner that has been told of everything.
func (d *disorder) begin() {
	d.effects = &effects{}
	d.doubts = &doubts{effects: d.effects}
	d.p, d.metrics = newPlanner(d.T, d.doubts, d.set...)
	ctx, cancel := context.WithCancel(d.Context())
	done := make(chan struct{})
	p := d.p
	go func() {
		p.Run(ctx)
		close(done)
	}()
	d.stop = func() {
		cancel()
		<-done
	}
	d.seen, d.news, d.cut = map[string]*corev1.Pod{}, map[string][]func(){}, false
	d.p.ObserveNamespace(d.Context(), d.namespace)
	for _, name := range slices.Sorted(maps.Keys(d.nodes)) {
		d.p.ObserveNode(d.Context(), view.NodeOf(d.nodes[name], d.p.opts.Resources))
	}
	for _, name := range slices.Sorted(maps.Keys(d.queues)) {
		d.p.ObserveQueue(d.Context(), d.queues[name])
	}
	for _, name := range slices.Sorted(maps.Keys(d.gangs)) {
		d.p.ObserveGang(d.Context(), d.gangs[name])
	}
	d.relist()
	d.deliver("pods", len(d.news["pods"]))
	d.rebuilt()
}

func (d *disorder) restart() {
	d.stop()
	d.calls.Wait()
	d.posts = nil
	d.answers = nil
	d.begin()
}

// arrive has all that is asked for done, all news told, and one Binding and one
// answer arrive.
func (d *disorder) arrive() {
	d.obey(100)
	for _, kind := range append(others, "pods") {
		d.deliver(kind, len(d.news[kind]))
	}
	d.postOne()
	d.verify()
	d.answer()
}

// settleDown lets all that is on its way arrive.
func (d *disorder) settleDown() {
	d.calm = true
	if d.cut {
		d.cut = false
		d.relist()
	}
	for range 12 {
		for {
			d.arrive()
			if len(d.posts) == 0 && len(d.answers) == 0 && len(d.news["pods"]) == 0 {
				break
			}
		}
		d.after(10 * time.Second)
	}
}

// play plays some steps, each of which draws for itself, so that others can be
// left out, and says what was wrong afterwards.
func play(t *testing.T, seed uint64, steps []int) (problem string, log []string) {
	synctest.Test(t, func(t *testing.T) {
		d := &disorder{
			kit: &kit{T: t, set: []func(o *Options){withQueues, func(o *Options) {
				switch seed % 8 {
				case 1:
					o.Queues = false
				case 2:
					o.Nominate = false
				case 3:
					o.ReservationDelay, o.ReservationTimeout = 5*time.Second, time.Minute
				case 4:
					o.StalenessGracePeriod = 10 * time.Second
				}
			}}},
			news: map[string][]func(){}, pods: map[string]*corev1.Pod{}, nodes: map[string]*corev1.Node{}, queues: map[string]*view.Queue{}, gangs: map[string]*view.Gang{},
		}
		d.r = rand.New(rand.NewPCG(seed, 1<<32))
		d.setNamespace(true)
		d.begin()
		for _, name := range []string{"a", "b"} {
			d.setNode(name, 4)
		}
		for _, name := range []string{"a", "b", "c"} {
			d.setQueue(aQueue(name, ""))
		}
		for _, kind := range []string{"nodes", "queues"} {
			d.deliver(kind, 10)
		}
		for _, i := range steps {
			d.r = rand.New(rand.NewPCG(seed, uint64(i)))
			d.step()
		}
		d.note("all settles down")
		d.settleDown()
		if problem = d.wrong(); problem == "" {
			d.note("all are served")
			problem = d.serveAll()
		}
		if problem == "" {
			d.note("all goes")
			problem = d.clear()
		}
		d.stop()
		d.calls.Wait()
		log = d.log
	})
	return problem, log
}

// disorderSeeds is how many sequences of events TestDisorder plays, disorderFirst the
// seed of the first.
var (
	disorderSeeds = flag.Uint64("disorder.seeds", 100, "how many sequences of events TestDisorder plays")
	disorderFirst = flag.Uint64("disorder.first", 0, "the seed of the first of them")
)

// News, calls and answers may come in any order that can be: when all has arrived,
// the planner knows what there is, serves everybody who can be served, and nothing
// of what is gone. A failure is shortened and told with what led to it.
func TestDisorder(t *testing.T) {
	const steps = 120
	for seed := *disorderFirst; seed < *disorderFirst+*disorderSeeds; seed++ {
		all := make([]int, steps)
		for i := range all {
			all[i] = i
		}
		problem, log := play(t, seed, all)
		if problem == "" {
			continue
		}
		for size := len(all) / 2; size > 0; size /= 2 {
			for at := 0; at+size <= len(all); {
				less := slices.Concat(all[:at], all[at+size:])
				if p, l := play(t, seed, less); p != "" && kindOf(p) == kindOf(problem) {
					all, log, problem = less, l, p
				} else {
					at += size
				}
			}
		}
		t.Fatalf("-disorder.first=%d -disorder.seeds=1: %s\n%s", seed, problem, strings.Join(log, "\n"))
	}
}

// kindOf is a problem without names and numbers.
func kindOf(problem string) string {
	words := strings.Fields(problem)
	words = slices.DeleteFunc(words, func(w string) bool { return strings.ContainsAny(w, "0123456789{}") || len(w) < 2 })
	return strings.Join(words[:min(5, len(words))], " ")
}
