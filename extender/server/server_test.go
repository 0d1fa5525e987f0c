package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	extender "k8s.io/kube-scheduler/extender/v1"

	"github.com/tranche-dev/tranche/extender/internal/fixture"
	"github.com/tranche-dev/tranche/extender/planner"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/placement"
)

func args(pod *corev1.Pod, nodes ...string) extender.ExtenderArgs {
	if nodes == nil {
		nodes = []string{}
	}
	return extender.ExtenderArgs{Pod: pod, NodeNames: &nodes}
}

func TestOnlyAllowedClientsMayCall(t *testing.T) {
	k := newKit(t, nil)
	body, err := json.Marshal(args(fixture.Pod("p", "50"), "a"))
	if err != nil {
		t.Fatal(err)
	}
	stranger := fixture.NewCA(t, "stranger")
	cases := map[string]struct {
		client     *http.Client
		wantStatus int // 0: no connection at all
	}{
		"kube-scheduler":           {k.as(schedulerName), http.StatusOK},
		"somebody else of the CA":  {k.as("system:node:a"), http.StatusForbidden},
		"nobody":                   {k.as(""), 0},
		"a liar of another CA":     {&http.Client{Transport: &http.Transport{TLSClientConfig: stranger.Client(t, schedulerName, k.ca.PEM)}}, 0},
		"a client that trusts not": {&http.Client{Transport: &http.Transport{TLSClientConfig: k.ca.Client(t, schedulerName, stranger.PEM)}}, 0},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			for _, verb := range []string{"filter", "prioritize", "bind", "preempt"} {
				r, err := k.do(tc.client, http.MethodPost, k.url+"/v1/"+verb, body)
				switch {
				case tc.wantStatus == 0:
					if err == nil {
						t.Errorf("%s: status %d, want no connection", verb, r.StatusCode)
					}
				case err != nil:
					t.Errorf("%s: %v", verb, err)
				case r.StatusCode != tc.wantStatus:
					t.Errorf("%s: status %d, want %d", verb, r.StatusCode, tc.wantStatus)
				case tc.wantStatus == http.StatusForbidden && !strings.Contains(string(r.body), `"system:node:a" may not call this`):
					t.Errorf("%s: body %q does not say why", verb, r.body)
				}
			}
		})
	}
	if len(k.binder.asked) != 0 {
		t.Errorf("bound %v", k.binder.asked)
	}
}

func TestServesHTTP2(t *testing.T) {
	k := newKit(t, nil)
	r := k.call("filter", args(fixture.Pod("p", "50"), "a"), &extender.ExtenderFilterResult{})
	if r.ProtoMajor != 2 || r.Header.Get("Content-Type") != "application/json" {
		t.Errorf("%s, content type %q", r.Proto, r.Header.Get("Content-Type"))
	}
}

func TestFilter(t *testing.T) {
	k := newKit(t, nil)
	k.node("a", 1)
	k.node("b", 1)
	k.pod(fixture.Bound(t, fixture.Pod("x", "60"), "a", map[string]contract.Grant{"c0": {GPU: fixture.GPU("a", 0), Shares: 60}}))
	var got extender.ExtenderFilterResult
	k.call("filter", args(fixture.Pod("p", "50"), "a", "b", "stranger"), &got)
	want := extender.ExtenderFilterResult{
		NodeNames: &[]string{"b"},
		FailedAndUnresolvableNodes: extender.FailedNodesMap{
			"a": string(placement.NotEnoughFree), "stranger": string(placement.NoInventory),
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("filter (-want +got):\n%s", diff)
	}
}

func TestFilterWithWholeNodesGivesThemBack(t *testing.T) {
	k := newKit(t, nil)
	k.node("a", 1)
	list := &corev1.NodeList{Items: []corev1.Node{*fixture.Node(t, "a", fixture.Inventory("a", 1)), *fixture.ForeignNode("b")}}
	var got extender.ExtenderFilterResult
	k.call("filter", extender.ExtenderArgs{Pod: fixture.Pod("p", "50"), Nodes: list}, &got)
	if got.NodeNames != nil || got.Nodes == nil || len(got.Nodes.Items) != 1 || got.Nodes.Items[0].Name != "a" ||
		got.FailedAndUnresolvableNodes["b"] != string(placement.NoInventory) || got.Error != "" {
		t.Errorf("got %+v", got)
	}
	var all extender.ExtenderFilterResult
	k.call("filter", extender.ExtenderArgs{Pod: fixture.Pod("q", ""), Nodes: list}, &all)
	if all.Nodes == nil || len(all.Nodes.Items) != 2 {
		t.Errorf("a pod without GPUs: got %+v", all)
	}
}

func TestFilterIsTheSameEachTime(t *testing.T) {
	k := newKit(t, nil)
	k.node("a", 1)
	request, err := json.Marshal(args(fixture.Pod("p", "60"), "a", "b"))
	if err != nil {
		t.Fatal(err)
	}
	var first extender.ExtenderFilterResult
	want := k.call("filter", request, &first)
	for range 5 {
		var again extender.ExtenderFilterResult
		if got := k.call("filter", request, &again); string(got.body) != string(want.body) {
			t.Errorf("answer changed from %s to %s", want.body, got.body)
		}
	}
	g := k.planner.Snapshot().Ledger.Node("a").GPUs()[0]
	if g.Held != 60 || g.Allocated != 0 {
		t.Errorf("held %d, allocated %d, want 60 held", g.Held, g.Allocated)
	}
}

func TestWhateverIsWrongIsSaidInTheAnswer(t *testing.T) {
	k := newKit(t, func(o *Options) { o.MaxBody = 4096 })
	big := args(fixture.Pod("p", "50"), strings.Repeat("n", 5000))
	bodies := map[string]struct {
		body any
		want string
	}{
		"no JSON":          {[]byte("{"), "not the JSON that kube-scheduler sends"},
		"nothing":          {[]byte(""), "not the JSON that kube-scheduler sends"},
		"another type":     {[]byte(`{"Pod": 7}`), "not the JSON that kube-scheduler sends"},
		"names of numbers": {[]byte(`{"Pod": {}, "NodeNames": [1]}`), "NodeNames"},
		"no pod":           {[]byte(`{"NodeNames": ["a"]}`), "the request has no Pod"},
		"null":             {[]byte("null"), "the request has no Pod"},
		"a pod of nobody":  {[]byte(`{"Pod": {}, "NodeNames": ["a"]}`), "no UID"},
		"too big":          {big, "nodeCacheCapable"},
	}
	for name, tc := range bodies {
		t.Run(name, func(t *testing.T) {
			var filter extender.ExtenderFilterResult
			k.call("filter", tc.body, &filter)
			if !strings.Contains(filter.Error, tc.want) || filter.NodeNames != nil {
				t.Errorf("filter: %+v, want an error with %q", filter, tc.want)
			}
			var priorities extender.HostPriorityList
			k.call("prioritize", tc.body, &priorities)
			if len(priorities) != 0 {
				t.Errorf("prioritize: %v", priorities)
			}
			var bound extender.ExtenderBindingResult
			k.call("bind", tc.body, &bound)
			if bound.Error == "" {
				t.Error("bind: no error")
			}
			var preempted extender.ExtenderPreemptionResult
			k.call("preempt", tc.body, &preempted)
			if len(preempted.NodeNameToMetaVictims) != 0 {
				t.Errorf("preempt: %v", preempted)
			}
		})
	}
	if got := testutil.ToFloat64(k.metrics.Requests.WithLabelValues("filter", malformed)); got != float64(len(bodies)) {
		t.Errorf("counted %v malformed filter calls, want %d", got, len(bodies))
	}
}

func TestNilListsAreEmpty(t *testing.T) {
	k := newKit(t, nil)
	k.node("a", 1)
	for name, a := range map[string]extender.ExtenderArgs{"no list": {Pod: fixture.Pod("p", "50")}, "empty list": args(fixture.Pod("p", "50")), "no items": {Pod: fixture.Pod("p", "50"), Nodes: &corev1.NodeList{}}} {
		var filter extender.ExtenderFilterResult
		k.call("filter", a, &filter)
		if filter.Error != "" || filter.NodeNames != nil && len(*filter.NodeNames) > 0 || len(filter.FailedAndUnresolvableNodes) > 0 {
			t.Errorf("%s: filter %+v", name, filter)
		}
		var priorities extender.HostPriorityList
		k.call("prioritize", a, &priorities)
		if len(priorities) != 0 {
			t.Errorf("%s: prioritize %v", name, priorities)
		}
	}
}

func TestNotReadyIsAnErrorAndNotAnAnswer(t *testing.T) {
	k := newKit(t, nil)
	k.node("a", 1)
	k.observer.set("nodes and pods are still being read")
	var filter extender.ExtenderFilterResult
	k.call("filter", args(fixture.Pod("p", "50"), "a"), &filter)
	if !strings.Contains(filter.Error, "still being read") || filter.NodeNames != nil || filter.FailedAndUnresolvableNodes != nil {
		t.Errorf("filter: %+v", filter)
	}
	var bound extender.ExtenderBindingResult
	k.call("bind", extender.ExtenderBindingArgs{PodName: "p", PodNamespace: "demo", PodUID: "u", Node: "a"}, &bound)
	if !strings.Contains(bound.Error, "still being read") || len(k.binder.asked) != 0 {
		t.Errorf("bind: %+v, asked %v", bound, k.binder.asked)
	}
	if got := testutil.ToFloat64(k.metrics.Requests.WithLabelValues("bind", notReady)); got != 1 {
		t.Errorf("counted %v, want 1", got)
	}
	k.observer.set()
	var again extender.ExtenderFilterResult
	k.call("filter", args(fixture.Pod("p", "50"), "a"), &again)
	if again.Error != "" {
		t.Errorf("ready again: %+v", again)
	}
}

func TestPrioritize(t *testing.T) {
	k := newKit(t, nil)
	k.node("a", 1)
	k.node("b", 1)
	k.pod(fixture.Bound(t, fixture.Pod("x", "40"), "b", map[string]contract.Grant{"c0": {GPU: fixture.GPU("b", 0), Shares: 40}}))
	var got extender.HostPriorityList
	k.call("prioritize", args(fixture.Pod("p", "50"), "a", "b"), &got)
	if diff := cmp.Diff(extender.HostPriorityList{{Host: "a", Score: 0}, {Host: "b", Score: 10}}, got); diff != "" {
		t.Errorf("priorities (-want +got):\n%s", diff)
	}
}

func TestBindPassesOnAndAnswers(t *testing.T) {
	k := newKit(t, nil)
	call := extender.ExtenderBindingArgs{PodName: "p", PodNamespace: "demo", PodUID: "u", Node: "a"}
	var got extender.ExtenderBindingResult
	k.call("bind", call, &got)
	if got.Error != "" || !slices.Equal(k.binder.asked, []planner.Target{{UID: "u", Namespace: "demo", Name: "p", Node: "a"}}) {
		t.Errorf("answer %+v, asked %v", got, k.binder.asked)
	}
	k.binder.err = errors.New("no \"room\"\n at all")
	k.call("bind", call, &got)
	if got.Error != "no \"room\"\n at all" {
		t.Errorf("answer %+v", got)
	}
	call.PodUID = ""
	k.call("bind", call, &got)
	if !strings.Contains(got.Error, "PodUID") || len(k.binder.asked) != 2 {
		t.Errorf("without UID: %+v, asked %v", got, k.binder.asked)
	}
}

func TestPreemptTakesBothFormsAndAddsNothing(t *testing.T) {
	k := newKit(t, nil)
	k.node("a", 1)
	k.node("b", 1)
	victim := func(name, node string) *corev1.Pod {
		pod := fixture.Bound(t, fixture.Pod(name, "60"), node, map[string]contract.Grant{"c0": {GPU: fixture.GPU(node, 0), Shares: 60}})
		k.pod(pod)
		return pod
	}
	va, vb := victim("va", "a"), victim("vb", "b")
	meta := func(pods ...*corev1.Pod) *extender.MetaVictims {
		v := &extender.MetaVictims{Pods: []*extender.MetaPod{}}
		for _, pod := range pods {
			v.Pods = append(v.Pods, &extender.MetaPod{UID: string(pod.UID)})
		}
		return v
	}
	big, small := fixture.Pod("big", "80"), fixture.Pod("small", "30")
	cases := map[string]struct {
		args extender.ExtenderPreemptionArgs
		want map[string]*extender.MetaVictims
	}{
		"identifiers": {
			extender.ExtenderPreemptionArgs{Pod: big, NodeNameToMetaVictims: map[string]*extender.MetaVictims{"a": {Pods: meta(va).Pods, NumPDBViolations: 1}, "b": meta()}},
			map[string]*extender.MetaVictims{"a": {Pods: meta(va).Pods, NumPDBViolations: 1}},
		},
		"whole pods": {
			extender.ExtenderPreemptionArgs{Pod: big, NodeNameToVictims: map[string]*extender.Victims{"a": {Pods: []*corev1.Pod{va}, NumPDBViolations: 2}, "b": {Pods: []*corev1.Pod{va, vb, nil}}}},
			map[string]*extender.MetaVictims{"a": {Pods: meta(va).Pods, NumPDBViolations: 2}, "b": meta(va, vb)},
		},
		"no victims needed": {
			extender.ExtenderPreemptionArgs{Pod: small, NodeNameToMetaVictims: map[string]*extender.MetaVictims{"a": meta(), "b": nil}},
			map[string]*extender.MetaVictims{"a": meta(), "b": meta()},
		},
		"nowhere":  {extender.ExtenderPreemptionArgs{Pod: big, NodeNameToMetaVictims: map[string]*extender.MetaVictims{"a": meta(vb)}}, map[string]*extender.MetaVictims{}},
		"nothing":  {extender.ExtenderPreemptionArgs{Pod: big}, map[string]*extender.MetaVictims{}},
		"no GPUs":  {extender.ExtenderPreemptionArgs{Pod: fixture.Pod("cpu", ""), NodeNameToMetaVictims: map[string]*extender.MetaVictims{"z": meta(va)}}, map[string]*extender.MetaVictims{"z": meta(va)}},
		"stranger": {extender.ExtenderPreemptionArgs{Pod: big, NodeNameToMetaVictims: map[string]*extender.MetaVictims{"z": meta(va)}}, map[string]*extender.MetaVictims{}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var got extender.ExtenderPreemptionResult
			k.call("preempt", tc.args, &got)
			if diff := cmp.Diff(tc.want, got.NodeNameToMetaVictims); diff != "" {
				t.Errorf("victims (-want +got):\n%s", diff)
			}
		})
	}
}

// panicking is a Decider with a bug.
type panicking struct{}

func (panicking) Filter(context.Context, *corev1.Pod, []string) (planner.Verdict, error) {
	panic("index out of range")
}

func (panicking) Prioritize(context.Context, *corev1.Pod, []string) ([]int64, error) {
	panic("index out of range")
}

func (panicking) Preempt(context.Context, *corev1.Pod, map[string][]types.UID) map[string]bool {
	panic("index out of range")
}

func TestPanicsAreCountedAndAnswered(t *testing.T) {
	k := newKit(t, nil)
	k.server.decider = panicking{}
	var filter extender.ExtenderFilterResult
	k.call("filter", args(fixture.Pod("p", "50"), "a"), &filter)
	if !strings.Contains(filter.Error, "failed inside") {
		t.Errorf("filter: %+v", filter)
	}
	var priorities extender.HostPriorityList
	k.call("prioritize", args(fixture.Pod("p", "50"), "a"), &priorities)
	var preempted extender.ExtenderPreemptionResult
	k.call("preempt", extender.ExtenderPreemptionArgs{Pod: fixture.Pod("p", "50")}, &preempted)
	if got := testutil.ToFloat64(k.metrics.Panics); got != 3 {
		t.Errorf("counted %v panics, want 3", got)
	}
}

func TestOtherPathsAndMethods(t *testing.T) {
	k := newKit(t, nil)
	for _, tc := range []struct {
		method, path string
		want         int
	}{
		{http.MethodGet, "/v1/filter", http.StatusMethodNotAllowed},
		{http.MethodPost, "/v1/nothing", http.StatusNotFound},
		{http.MethodPost, "/metrics", http.StatusNotFound},
		{http.MethodGet, "/v1/state", http.StatusOK},
	} {
		r, err := k.do(k.client, tc.method, k.url+tc.path, nil)
		if err != nil || r.StatusCode != tc.want {
			t.Errorf("%s %s: %v, %v, want %d", tc.method, tc.path, r.Response, err, tc.want)
		}
	}
}

func TestManyCallsAtOnceShareAConnection(t *testing.T) {
	k := newKit(t, nil)
	k.node("a", 1)
	request, err := json.Marshal(args(fixture.Pod("p", "60"), "a"))
	if err != nil {
		t.Fatal(err)
	}
	var calls sync.WaitGroup
	for range 200 {
		calls.Go(func() {
			r, err := k.do(k.client, http.MethodPost, k.url+"/v1/filter", request)
			if err != nil || r.StatusCode != http.StatusOK {
				t.Errorf("%v, %v", r.Response, err)
			}
		})
	}
	calls.Wait()
}

// Large requests and answers are in buffers that are used again.
func TestAnswersAtOnceAreNotMixedUp(t *testing.T) {
	k := newKit(t, nil)
	k.node("a", 1)
	var calls sync.WaitGroup
	for caller := range 8 {
		calls.Go(func() {
			for call := range 20 {
				nodes := []string{"a"} // and others that are not known
				for i := range 300 + 100*caller {
					nodes = append(nodes, fmt.Sprintf("unknown-%d-%d-%d", caller, call, i))
				}
				request, err := json.Marshal(args(fixture.Pod(fmt.Sprint("p", caller), "60"), nodes...))
				if err != nil {
					t.Error(err)
					return
				}
				r, err := k.do(k.client, http.MethodPost, k.url+"/v1/filter", request)
				if err != nil {
					t.Error(err)
					return
				}
				var got extender.ExtenderFilterResult
				if err := json.Unmarshal(r.body, &got); err != nil || got.NodeNames == nil {
					t.Errorf("%v: %.300s", err, r.body)
					return
				}
				refused := slices.Collect(maps.Keys(got.FailedAndUnresolvableNodes))
				if all := append(refused, *got.NodeNames...); !cmp.Equal(nodes, all, cmpopts.SortSlices(strings.Compare)) {
					t.Errorf("the answer to call %d of %d is about other nodes: %.300s", call, caller, r.body)
					return
				}
			}
		})
	}
	calls.Wait()
}

func TestObserverPort(t *testing.T) {
	k := newKit(t, nil)
	k.node("a", 1)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	url := k.serve(ctx, &running, k.server.ObserverHandler(k.registry, true), nil)
	plain := k.serve(ctx, &running, k.server.ObserverHandler(k.registry, false), nil)
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	get := func(url string, want int) string {
		t.Helper()
		r, err := k.do(client, http.MethodGet, url, nil)
		if err != nil || r.StatusCode != want {
			t.Errorf("%s: %v, %v, want %d", url, r.Response, err, want)
		}
		return string(r.body)
	}
	get(url+"/healthz", http.StatusOK)
	get(url+"/readyz", http.StatusOK)
	k.observer.set("this replica does not lead")
	if body := get(url+"/readyz", http.StatusServiceUnavailable); !strings.Contains(body, "does not lead") {
		t.Errorf("readyz %q", body)
	}
	k.observer.alive = io.ErrUnexpectedEOF
	get(url+"/healthz", http.StatusServiceUnavailable)
	if body := get(url+"/metrics", http.StatusOK); !strings.Contains(body, "tranche_extender_filter_duration_seconds_bucket") {
		t.Errorf("metrics %q", body)
	}
	get(url+"/debug/pprof/goroutine", http.StatusOK)
	get(plain+"/debug/pprof/goroutine", http.StatusNotFound)

	var state State
	if err := json.Unmarshal([]byte(get(url+"/v1/state", http.StatusOK)), &state); err != nil {
		t.Fatal(err)
	}
	if state.Program != "v1.2.3" || state.Ready || len(state.NotReady) != 1 || !state.Leader || len(state.Nodes) != 1 || state.Waiting == nil {
		t.Errorf("state %+v", state)
	}
}

func TestTimeoutsLeaveTimeForTheLongestCall(t *testing.T) {
	usual := HTTPServer(t.Context(), nil, nil, 0)
	for _, longest := range []time.Duration{time.Second, 24 * time.Second, time.Hour} {
		s := HTTPServer(t.Context(), nil, nil, longest)
		if s.WriteTimeout <= longest || s.ReadTimeout <= longest || s.WriteTimeout < usual.WriteTimeout || s.ReadTimeout < usual.ReadTimeout {
			t.Errorf("calls of %v: reads end after %v, answers after %v", longest, s.ReadTimeout, s.WriteTimeout)
		}
	}
}
