package manifests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

const (
	root      = "../.."
	namespace = "tranche-system"
)

// helmProgram builds helm, or finds it in the build cache, once: "go tool" would
// look at all of its packages at each call.
var helmProgram = sync.OnceValues(func() (string, error) {
	cmd := exec.Command("go", "tool", "-n", "-modfile=tools/go.mod", "helm")
	cmd.Dir = root
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return "", fmt.Errorf("build helm: %w\n%s", err, exit.Stderr)
	}
	return strings.TrimSpace(string(out)), err
})

// helm runs in the checkout's top folder and returns what it prints.
func helm(ctx context.Context, args ...string) (string, error) {
	program, err := helmProgram()
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = root
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("helm %s: %w\n%s%s", strings.Join(args, " "), err, stdout.String(), stderr.String())
	}
	return stdout.String(), nil
}

// render is helm template with the given values, "a.b=c".
func render(t *testing.T, values ...string) objects {
	t.Helper()
	text, err := helm(t.Context(), templateArgs(values...)...)
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, text)
}

func templateArgs(values ...string) []string {
	args := []string{"template", "tranche", "manifests/chart", "--namespace", namespace}
	for _, v := range values {
		args = append(args, "--set", v)
	}
	return args
}

// installed is install.yaml, read once.
var installed = sync.OnceValues(func() (string, error) {
	b, err := os.ReadFile(filepath.Join(root, "manifests", "install.yaml"))
	return string(b), err
})

func install(t *testing.T) objects {
	t.Helper()
	text, err := installed()
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, text)
}

// variants are sets of values that together switch everything on and off.
var variants = map[string][]string{
	"defaults": nil,
	"least": {
		"nodePlugin.enabled=false", "admissionPolicies.enabled=false", "defaultQueue.create=false",
	},
	"most": {
		"namespace.create=true", "certManager.enabled=true", "monitoring.podMonitor=true", "monitoring.serviceMonitor=true",
		"extender.service.clusterIP=10.96.0.200", "image.pullSecrets={a,b}", "nodePlugin.runtimeClassName=nvidia",
		"nodePlugin.nvidiaCDIKind=nvidia.com/gpu", "nodePlugin.podSource=kubelet", "extender.nodeSelector.a=b",
		"webhook.podAnnotations.a=b", "webhook.gangGate=false", "webhook.queueGate=false", "webhook.rateCPUOnlyPods=true", "extender.gangs.enabled=false", "extender.gangs.nominate=false", "extender.queues.enabled=false",
		"extender.gangs.stalenessGracePeriod=5m", "extender.gangs.admissionQPS=50", "monitoring.labels.release=prometheus",
	},
}

func TestChartLints(t *testing.T) {
	for name, values := range variants {
		t.Run(name, func(t *testing.T) {
			args := []string{"lint", "--strict", "manifests/chart"}
			for _, v := range values {
				args = append(args, "--set", v)
			}
			if _, err := helm(t.Context(), args...); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestInstallYAMLIsGeneratedFromTheChart(t *testing.T) {
	committed, err := installed()
	if err != nil {
		t.Fatal(err)
	}
	_, committed, _ = strings.Cut(committed, "\n") // the line that says where it comes from
	want, err := helm(t.Context(), append(templateArgs("namespace.create=true"), "--include-crds")...)
	if err != nil {
		t.Fatal(err)
	}
	if committed != want {
		t.Error("manifests/install.yaml is not what the chart renders; run: make generate")
	}
}

func TestChartRefusesValuesItDoesNotKnow(t *testing.T) {
	cases := map[string]struct {
		value string
		want  string
	}{
		"misspelt":           {"extender.placment=spread", "placment"},
		"policy unknown":     {"extender.placement=first-fit", "placement"},
		"no time":            {"extender.gangs.bindTimeout=20", "bindTimeout"},
		"no number of calls": {"extender.gangs.admissionQPS=0", "admissionQPS"},
		"no replica":         {"webhook.replicas=0", "replicas"},
		"too many shares":    {"resources.sharesPerGPU=1001", "sharesPerGPU"},
		"no domain":          {"resources.share=gpu-share", "share"},
		"kubernetes pattern": {"names.extender=Tranche_Extender", "extender"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := helm(t.Context(), templateArgs(tc.value)...)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("helm template --set %s: error %v, want one that names %s", tc.value, err, tc.want)
			}
		})
	}
}
