package manifests

import (
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	schedulerv1 "k8s.io/kube-scheduler/config/v1"
	"sigs.k8s.io/yaml"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/tests/cluster"
)

func TestSchedulerConfigurationSendsGPUPodsAndMembersToTheExtender(t *testing.T) {
	config := schedulerConfig(t)
	if n := len(config.Extenders); n != 1 {
		t.Errorf("%d extenders, want 1 if nothing optional is taken", n)
	}
	options := parsedSchedulerConfig(t, cluster.OptionalLines(schedulerConfigText(t)))
	if config.APIVersion != schedulerv1.SchemeGroupVersion.String() || config.Kind != "KubeSchedulerConfiguration" {
		t.Errorf("%s %s", config.APIVersion, config.Kind)
	}
	resources := contract.DefaultResources()
	forGPUs := schedulerv1.Extender{
		FilterVerb: "filter", PrioritizeVerb: "prioritize", BindVerb: "bind", PreemptVerb: "preempt",
		Weight: 10, NodeCacheCapable: true, Ignorable: false,
		ManagedResources: []schedulerv1.ExtenderManagedResource{
			{Name: string(resources.Share)},
			{Name: string(resources.GPU)},
			{Name: string(contract.MemberResource), IgnoredByScheduler: true},
		},
	}
	forGPUs.HTTPTimeout.Duration = 30 * time.Second
	// This one has no say in whether a pod is placed.
	forOthers := schedulerv1.Extender{
		PrioritizeVerb: "prioritize", Weight: 1, NodeCacheCapable: true, Ignorable: true,
		ManagedResources: []schedulerv1.ExtenderManagedResource{{Name: string(contract.CPUOnlyResource), IgnoredByScheduler: true}},
	}
	forOthers.HTTPTimeout.Duration = time.Second
	var got []schedulerv1.Extender
	for _, e := range options.Extenders {
		if at, err := url.Parse(e.URLPrefix); err != nil || at.Scheme != "https" || at.Path != "/v1" || e.URLPrefix != options.Extenders[0].URLPrefix {
			t.Errorf("urlPrefix %s (%v), want https://HOST:PORT/v1, always the same", e.URLPrefix, err)
		}
		// Without a CA kube-scheduler checks no certificate at all.
		if !e.EnableHTTPS || e.TLSConfig == nil || e.TLSConfig.Insecure || e.TLSConfig.CAFile == "" || e.TLSConfig.CertFile == "" || e.TLSConfig.KeyFile == "" {
			t.Errorf("enableHTTPS %t, tlsConfig %+v", e.EnableHTTPS, e.TLSConfig)
		}
		e.URLPrefix, e.TLSConfig, e.EnableHTTPS = "", nil, false
		got = append(got, e)
	}
	if diff := cmp.Diff([]schedulerv1.Extender{forGPUs, forOthers}, got); diff != "" {
		t.Errorf("extenders (-want +got):\n%s", diff)
	}
}

func TestSchedulerConfigurationTurnsOffTwoScoresAndNoFilter(t *testing.T) {
	config := schedulerConfig(t)
	want := &schedulerv1.Plugins{Score: schedulerv1.PluginSet{Disabled: []schedulerv1.Plugin{{Name: "NodeResourcesFit"}, {Name: "NodeResourcesBalancedAllocation"}}}}
	if diff := cmp.Diff(want, config.Profiles[0].Plugins); diff != "" {
		t.Errorf("plugins (-want +got):\n%s", diff)
	}
}

// kube-scheduler must hear why a bind failed before it stops listening, also the
// bind of a member, which waits for its gang before it makes its two calls.
func TestExtenderEndsABindBeforeTheSchedulerGivesUp(t *testing.T) {
	wait, bind, hold := extenderFlag(t, "gang-bind-timeout"), extenderFlag(t, "bind-timeout"), extenderFlag(t, "gang-hold-timeout")
	if limit := schedulerConfig(t).Extenders[0].HTTPTimeout.Duration; wait+2*bind >= limit {
		t.Errorf("a wait of %v and two calls of %v do not end within httpTimeout %v", wait, bind, limit)
	}
	if hold <= wait {
		t.Errorf("places are held for %v, and binds wait for %v", hold, wait)
	}
}

// With nomination on, the planned node is always among those that the scheduler
// looks at, and a sample is enough.
func TestSchedulerLooksAtASampleOfNodes(t *testing.T) {
	if all := schedulerConfig(t).PercentageOfNodesToScore; all != nil {
		t.Errorf("percentageOfNodesToScore %d", *all)
	}
	args := named[*appsv1.Deployment](t, install(t), "tranche-extender").Spec.Template.Spec.Containers[0].Args
	if !slices.Contains(args, "--nominate=true") || !slices.Contains(args, "--gangs=true") {
		t.Errorf("args %v", args)
	}
}

// extenderFlag is a duration that the chart gives the extender.
func extenderFlag(t *testing.T, name string) time.Duration {
	t.Helper()
	for _, a := range named[*appsv1.Deployment](t, install(t), "tranche-extender").Spec.Template.Spec.Containers[0].Args {
		if text, ok := strings.CutPrefix(a, "--"+name+"="); ok {
			d, err := time.ParseDuration(text)
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
	}
	t.Fatalf("the extender is run without --%s", name)
	return 0
}

func schedulerConfig(t *testing.T) schedulerv1.KubeSchedulerConfiguration {
	t.Helper()
	return parsedSchedulerConfig(t, schedulerConfigText(t))
}

func schedulerConfigText(t *testing.T) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "manifests", "scheduler", "kube-scheduler-config.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func parsedSchedulerConfig(t *testing.T, text []byte) (config schedulerv1.KubeSchedulerConfiguration) {
	t.Helper()
	if err := yaml.UnmarshalStrict(text, &config); err != nil {
		t.Fatal(err)
	}
	return config
}
