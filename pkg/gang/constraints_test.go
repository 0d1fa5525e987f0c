package gang_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"

	"github.com/tranche-dev/tranche/pkg/gang"
)

func selecting(terms ...corev1.NodeSelectorTerm) *corev1.Affinity {
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms},
	}}
}

func expression(key string, op corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorTerm {
	return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: op, Values: values}}}
}

func named(op corev1.NodeSelectorOperator, name string) corev1.NodeSelectorTerm {
	return corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: op, Values: []string{name}}}}
}

func TestMatchFollowsTheScheduler(t *testing.T) {
	node := func(change ...func(n *gang.Node)) *gang.Node {
		n := &gang.Node{Name: "n1", Labels: map[string]string{"disk": "ssd", "cores": "64"}}
		for _, c := range change {
			c(n)
		}
		return n
	}
	cordoned := func(n *gang.Node) { n.Unschedulable = true }
	tainted := func(effect corev1.TaintEffect) func(n *gang.Node) {
		return func(n *gang.Node) {
			n.Taints = append(n.Taints, corev1.Taint{Key: "gpu", Value: "yes", Effect: effect})
		}
	}
	exists := func(key string) corev1.Toleration {
		return corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists}
	}
	preferred := &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 1, Preference: expression("x", corev1.NodeSelectorOpExists)}},
	}}
	cases := map[string]struct {
		spec corev1.PodSpec
		node *gang.Node
		want string
	}{
		"nothing asked":                    {node: node()},
		"cordoned":                         {node: node(cordoned), want: gang.NodeUnschedulable},
		"cordoned, tolerated":              {corev1.PodSpec{Tolerations: []corev1.Toleration{exists(corev1.TaintNodeUnschedulable)}}, node(cordoned), ""},
		"cordoned, everything tolerated":   {corev1.PodSpec{Tolerations: []corev1.Toleration{exists("")}}, node(cordoned, tainted("NoExecute")), ""},
		"taint":                            {node: node(tainted("NoSchedule")), want: gang.NodeTainted},
		"taint that evicts":                {node: node(tainted("NoExecute")), want: gang.NodeTainted},
		"taint that only discourages":      {node: node(tainted("PreferNoSchedule"))},
		"taint tolerated":                  {corev1.PodSpec{Tolerations: []corev1.Toleration{exists("gpu")}}, node(tainted("NoSchedule")), ""},
		"one of two taints tolerated":      {corev1.PodSpec{Tolerations: []corev1.Toleration{{Key: "gpu", Value: "yes", Effect: "NoSchedule"}}}, node(tainted("NoSchedule"), tainted("NoExecute")), gang.NodeTainted},
		"selector":                         {corev1.PodSpec{NodeSelector: map[string]string{"disk": "ssd"}}, node(), ""},
		"selector of another value":        {corev1.PodSpec{NodeSelector: map[string]string{"disk": "hdd"}}, node(), gang.NodeNotSelected},
		"affinity":                         {corev1.PodSpec{Affinity: selecting(expression("disk", corev1.NodeSelectorOpIn, "ssd", "nvme"))}, node(), ""},
		"affinity, second term":            {corev1.PodSpec{Affinity: selecting(expression("x", corev1.NodeSelectorOpExists), expression("disk", corev1.NodeSelectorOpExists))}, node(), ""},
		"affinity, no term":                {corev1.PodSpec{Affinity: selecting(expression("x", corev1.NodeSelectorOpExists))}, node(), gang.NodeNotSelected},
		"affinity by number":               {corev1.PodSpec{Affinity: selecting(expression("cores", corev1.NodeSelectorOpGt, "63"))}, node(), ""},
		"affinity that cannot be read":     {corev1.PodSpec{Affinity: selecting(expression("cores", "Like", "6"))}, node(), gang.NodeNotSelected},
		"unreadable beside a good term":    {corev1.PodSpec{Affinity: selecting(expression("cores", "Like", "6"), expression("disk", corev1.NodeSelectorOpExists))}, node(), ""},
		"affinity without terms":           {corev1.PodSpec{Affinity: selecting()}, node(), gang.NodeNotSelected},
		"by name":                          {corev1.PodSpec{Affinity: selecting(named(corev1.NodeSelectorOpIn, "n1"))}, node(), ""},
		"by another name":                  {corev1.PodSpec{Affinity: selecting(named(corev1.NodeSelectorOpIn, "n2"))}, node(), gang.NodeNotSelected},
		"any but this name":                {corev1.PodSpec{Affinity: selecting(named(corev1.NodeSelectorOpNotIn, "n1"))}, node(), gang.NodeNotSelected},
		"affinity fits, selector does not": {corev1.PodSpec{NodeSelector: map[string]string{"x": "y"}, Affinity: selecting(named(corev1.NodeSelectorOpIn, "n1"))}, node(), gang.NodeNotSelected},
		"preferred affinity":               {corev1.PodSpec{Affinity: preferred}, node(), ""},
		"affinity to pods":                 {corev1.PodSpec{Affinity: &corev1.Affinity{PodAffinity: &corev1.PodAffinity{}}}, node(), ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			ok, why := gang.ConstraintsOf(&corev1.Pod{Spec: tc.spec}).Match(tc.node)
			if why != tc.want || ok != (tc.want == "") {
				t.Errorf("Match: %t, %q; want %q", ok, why, tc.want)
			}
		})
	}
}

// TestTolerationsFollowKubernetes compares with the function that the scheduler
// calls, for every toleration of every taint.
func TestTolerationsFollowKubernetes(t *testing.T) {
	var tolerations []corev1.Toleration
	values := []string{"", "a", "5", "-7"}
	for _, key := range []string{"", "k", "l"} {
		for _, op := range []corev1.TolerationOperator{"", corev1.TolerationOpEqual, corev1.TolerationOpExists, corev1.TolerationOpGt, corev1.TolerationOpLt, "Odd"} {
			for _, value := range values {
				for _, effect := range []corev1.TaintEffect{"", "NoSchedule", "NoExecute"} {
					tolerations = append(tolerations, corev1.Toleration{Key: key, Operator: op, Value: value, Effect: effect})
				}
			}
		}
	}
	for _, toleration := range tolerations {
		c := gang.ConstraintsOf(&corev1.Pod{Spec: corev1.PodSpec{Tolerations: []corev1.Toleration{toleration}}})
		for _, value := range values {
			for _, effect := range []corev1.TaintEffect{"NoSchedule", "NoExecute"} {
				taint := corev1.Taint{Key: "k", Value: value, Effect: effect}
				_, untolerated := corev1helpers.FindMatchingUntoleratedTaint(klog.Logger{}, []corev1.Taint{taint}, []corev1.Toleration{toleration}, nil, true)
				if ok, _ := c.Match(&gang.Node{Taints: []corev1.Taint{taint}}); ok == untolerated {
					t.Errorf("toleration %v of taint %v: %t, want %t", toleration, taint, ok, !untolerated)
				}
			}
		}
	}
}

func TestKeyIsEqualForEqualConstraints(t *testing.T) {
	key := func(spec corev1.PodSpec) string { return gang.ConstraintsOf(&corev1.Pod{Spec: spec}).Key() }
	a, b := corev1.Toleration{Key: "a"}, corev1.Toleration{Key: "b"}
	lasting := a
	lasting.TolerationSeconds = new(int64)
	if x, y := key(corev1.PodSpec{Tolerations: []corev1.Toleration{a, b, a}}), key(corev1.PodSpec{Tolerations: []corev1.Toleration{b, lasting}}); x != y {
		t.Errorf("keys %q and %q differ", x, y)
	}
	if lasting.TolerationSeconds == nil {
		t.Error("the toleration was changed")
	}
	if gang.ConstraintsOf(&corev1.Pod{}) != nil || key(corev1.PodSpec{}) != "" {
		t.Error("a pod without constraints has some")
	}
	seen := map[string]corev1.PodSpec{}
	for _, spec := range []corev1.PodSpec{
		{},
		{NodeSelector: map[string]string{"a": "b"}},
		{NodeSelector: map[string]string{"a": "c"}},
		{Tolerations: []corev1.Toleration{a}},
		{Tolerations: []corev1.Toleration{b}},
		{Tolerations: []corev1.Toleration{{Value: "a"}}},
		{Affinity: selecting()},
		{Affinity: selecting(named(corev1.NodeSelectorOpIn, "a"))},
		{Affinity: selecting(named(corev1.NodeSelectorOpIn, "b"))},
	} {
		if other, ok := seen[key(spec)]; ok {
			t.Errorf("%v and %v have one key", spec, other)
		}
		seen[key(spec)] = spec
	}
}
