package server

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	extender "k8s.io/kube-scheduler/extender/v1"

	"github.com/tranche-dev/tranche/extender/planner"
)

// Results of a call, for metrics.
const (
	ok        = "ok"
	refused   = "refused"
	failed    = "error"
	malformed = "malformed"
	notReady  = "not_ready"
	forbidden = "forbidden"
	panicked  = "panic"
)

// answer is what a verb made of a request.
type answer struct {
	body   []byte
	result string
}

// verbFunc answers one decoded request. problem is not empty if this replica
// cannot answer now, or if the call panicked: then body is nil.
type verbFunc func(ctx context.Context, body []byte, problem string) answer

func (s *Server) filter(ctx context.Context, body []byte, problem string) answer {
	fail := func(text, result string) answer { return answer{encodeFilterError(text), result} }
	if problem != "" {
		return fail(problem, failed)
	}
	args, err := decodeArgs(body)
	if err != nil {
		return fail(err.Error(), malformed)
	}
	nodes := args.names()
	verdict, err := s.decider.Filter(ctx, args.Pod, nodes)
	if err != nil {
		return fail(err.Error(), failed)
	}
	result := ok
	if verdict.Refused() {
		result = refused
	}
	if args.NodeNames == nil && args.Nodes != nil {
		return encodeNodes(args.Nodes.Items, nodes, verdict, result)
	}
	return answer{encodeFilter(nodes, verdict), result}
}

func (s *Server) prioritize(ctx context.Context, body []byte, problem string) answer {
	// The list has no place for an error; without scores the scheduler goes by
	// its own, and Bind plans.
	fail := func(result string) answer { return answer{[]byte("[]"), result} }
	if problem != "" {
		return fail(failed)
	}
	args, err := decodeArgs(body)
	if err != nil {
		return fail(malformed)
	}
	nodes := args.names()
	priorities, err := s.decider.Prioritize(ctx, args.Pod, nodes)
	if err != nil {
		return fail(failed)
	}
	return answer{encodePriorities(nodes, priorities), ok}
}

func (s *Server) bind(ctx context.Context, body []byte, problem string) answer {
	reply := func(text, result string) answer {
		return answer{encode(extender.ExtenderBindingResult{Error: text}), result}
	}
	if problem != "" {
		return reply(problem, failed)
	}
	var args extender.ExtenderBindingArgs
	if err := decode(body, &args); err != nil {
		return reply(err.Error(), malformed)
	}
	t := planner.Target{UID: args.PodUID, Namespace: args.PodNamespace, Name: args.PodName, Node: args.Node}
	if t.UID == "" || t.Namespace == "" || t.Name == "" || t.Node == "" {
		return reply("PodName, PodNamespace, PodUID and Node must all be given", malformed)
	}
	if err := s.binder.Bind(ctx, t); err != nil {
		return reply(err.Error(), failed)
	}
	return reply("", ok)
}

func (s *Server) preempt(ctx context.Context, body []byte, problem string) answer {
	// The result has no place for an error; no node means no preemption.
	reply := func(r extender.ExtenderPreemptionResult, result string) answer { return answer{encode(r), result} }
	none := extender.ExtenderPreemptionResult{NodeNameToMetaVictims: map[string]*extender.MetaVictims{}}
	if problem != "" {
		return reply(none, failed)
	}
	var args extender.ExtenderPreemptionArgs
	if err := decode(body, &args); err != nil || args.Pod == nil || args.Pod.UID == "" {
		return reply(none, malformed)
	}
	victims := metaVictims(&args)
	uids := make(map[string][]types.UID, len(victims))
	for node, v := range victims {
		for _, p := range v.Pods {
			uids[node] = append(uids[node], types.UID(p.UID))
		}
		if len(v.Pods) == 0 {
			uids[node] = nil
		}
	}
	result := none
	for node, keep := range s.decider.Preempt(ctx, args.Pod, uids) {
		if keep {
			result.NodeNameToMetaVictims[node] = victims[node]
		}
	}
	if len(result.NodeNameToMetaVictims) == 0 {
		return reply(result, refused)
	}
	return reply(result, ok)
}

// metaVictims brings both forms of the arguments to the one of the result.
func metaVictims(args *extender.ExtenderPreemptionArgs) map[string]*extender.MetaVictims {
	victims := make(map[string]*extender.MetaVictims, len(args.NodeNameToVictims)+len(args.NodeNameToMetaVictims))
	for node, v := range args.NodeNameToVictims {
		meta := &extender.MetaVictims{Pods: []*extender.MetaPod{}}
		if v != nil {
			meta.NumPDBViolations = v.NumPDBViolations
			for _, pod := range v.Pods {
				if pod != nil {
					meta.Pods = append(meta.Pods, &extender.MetaPod{UID: string(pod.UID)})
				}
			}
		}
		victims[node] = meta
	}
	for node, v := range args.NodeNameToMetaVictims {
		meta := &extender.MetaVictims{Pods: []*extender.MetaPod{}}
		if v != nil {
			meta.NumPDBViolations = v.NumPDBViolations
			for _, pod := range v.Pods {
				if pod != nil {
					meta.Pods = append(meta.Pods, pod)
				}
			}
		}
		victims[node] = meta
	}
	return victims
}

// encodeNodes answers a scheduler that sent whole nodes, which gets them back.
func encodeNodes(items []corev1.Node, names []string, verdict planner.Verdict, result string) answer {
	r := extender.ExtenderFilterResult{Nodes: &corev1.NodeList{Items: []corev1.Node{}}, FailedAndUnresolvableNodes: extender.FailedNodesMap{}}
	for i := range items {
		if reason := verdict.Reason(i); reason == "" {
			r.Nodes.Items = append(r.Nodes.Items, items[i])
		} else {
			r.FailedAndUnresolvableNodes[names[i]] = string(reason)
		}
	}
	return answer{encode(r), result}
}

// notReadyText is what the scheduler shows on a pod while nobody can place it.
func notReadyText(reasons []string) string {
	return "Tranche's extender is not ready: " + strings.Join(reasons, "; ") + "; kube-scheduler tries again by itself"
}

func forbiddenText(name string, allowed []string) string {
	return fmt.Sprintf("Client certificate with common name %q may not call this; allowed are %q. Configure kube-scheduler with a certificate of that name, or the extender with --allowed-client-names.", name, allowed)
}
