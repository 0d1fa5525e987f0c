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
)

func TestSchedulerConfigurationSendsGPUPodsToTheExtender(t *testing.T) {
	config := schedulerConfig(t)
	if config.APIVersion != schedulerv1.SchemeGroupVersion.String() || config.Kind != "KubeSchedulerConfiguration" {
		t.Errorf("%s %s", config.APIVersion, config.Kind)
	}
	// kube-scheduler allows each managed resource and the binder once.
	if len(config.Extenders) != 1 {
		t.Fatalf("%d extenders, want 1", len(config.Extenders))
	}
	e := config.Extenders[0]
	if at, err := url.Parse(e.URLPrefix); err != nil || at.Scheme != "https" || at.Path != "/v1" {
		t.Errorf("urlPrefix %s (%v), want https://HOST:PORT/v1", e.URLPrefix, err)
	}
	// Without a CA kube-scheduler checks no certificate at all.
	if !e.EnableHTTPS || e.TLSConfig == nil || e.TLSConfig.Insecure || e.TLSConfig.CAFile == "" || e.TLSConfig.CertFile == "" || e.TLSConfig.KeyFile == "" {
		t.Errorf("enableHTTPS %t, tlsConfig %+v", e.EnableHTTPS, e.TLSConfig)
	}
	resources := contract.DefaultResources()
	want := schedulerv1.Extender{
		FilterVerb: "filter", PrioritizeVerb: "prioritize", BindVerb: "bind", PreemptVerb: "preempt",
		Weight: 10, NodeCacheCapable: true, Ignorable: false,
		ManagedResources: []schedulerv1.ExtenderManagedResource{{Name: string(resources.Share)}, {Name: string(resources.GPU)}},
	}
	want.HTTPTimeout.Duration = 5 * time.Second
	e.URLPrefix, e.TLSConfig, e.EnableHTTPS = "", nil, false
	if diff := cmp.Diff(want, e); diff != "" {
		t.Errorf("extender (-want +got):\n%s", diff)
	}
}

func TestSchedulerConfigurationTurnsOffTwoScoresAndNoFilter(t *testing.T) {
	config := schedulerConfig(t)
	want := &schedulerv1.Plugins{Score: schedulerv1.PluginSet{Disabled: []schedulerv1.Plugin{{Name: "NodeResourcesFit"}, {Name: "NodeResourcesBalancedAllocation"}}}}
	if diff := cmp.Diff(want, config.Profiles[0].Plugins); diff != "" {
		t.Errorf("plugins (-want +got):\n%s", diff)
	}
}

// kube-scheduler must hear why a bind failed before it stops listening.
func TestExtenderEndsABindBeforeTheSchedulerGivesUp(t *testing.T) {
	args := named[*appsv1.Deployment](t, install(t), "tranche-extender").Spec.Template.Spec.Containers[0].Args
	i := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, "--bind-timeout=") })
	if i < 0 {
		t.Fatalf("no --bind-timeout in %v", args)
	}
	bind, err := time.ParseDuration(strings.TrimPrefix(args[i], "--bind-timeout="))
	if err != nil {
		t.Fatal(err)
	}
	if limit := schedulerConfig(t).Extenders[0].HTTPTimeout.Duration; 2*bind >= limit {
		t.Errorf("two calls of %v do not end within httpTimeout %v", bind, limit)
	}
}

func schedulerConfig(t *testing.T) schedulerv1.KubeSchedulerConfiguration {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "manifests", "scheduler", "kube-scheduler-config.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var config schedulerv1.KubeSchedulerConfiguration
	if err := yaml.UnmarshalStrict(text, &config); err != nil {
		t.Fatal(err)
	}
	return config
}
