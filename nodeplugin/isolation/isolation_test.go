package isolation_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tranche-dev/tranche/nodeplugin/isolation"
	"github.com/tranche-dev/tranche/nodeplugin/nvml"
	"github.com/tranche-dev/tranche/nodeplugin/nvml/models"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

// limits remembers limits, and lies or fails where told to.
type limits struct {
	set  map[string]units.MiB
	lie  bool
	fail error
}

func (l *limits) SetMemoryLimit(_ contract.GPUUUID, cgroup string, limit units.MiB) error {
	l.set[cgroup] = limit
	return l.fail
}

func (l *limits) MemoryLimit(_ contract.GPUUUID, cgroup string) (units.MiB, error) {
	if l.lie {
		return nvml.NoLimit, nil
	}
	return l.set[cgroup], nil
}

// node returns a node on which everything works.
func node(t *testing.T) isolation.Node {
	t.Helper()
	root, specs := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "cgroup.controllers"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	gpu := models.UUID("n", 0)
	text := "cdiVersion: \"0.5.0\"\nkind: nvidia.com/gpu\ndevices:\n- name: " + string(gpu) +
		"\n  containerEdits:\n    hooks:\n    - {hookName: createRuntime, path: /h, args: [h, apply-cuda-memory-limits]}\n"
	if err := os.WriteFile(filepath.Join(specs, "nvidia.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return isolation.Node{
		Driver: "615.71.09", GPUs: []contract.GPUUUID{gpu}, CgroupRoot: root,
		NVIDIAKind: "nvidia.com/gpu", CDIDirs: []string{specs}, Limits: &limits{set: map[string]units.MiB{}},
	}
}

func TestLimitsAreClaimedOnlyWhereTheyWork(t *testing.T) {
	cases := map[string]struct {
		mode   isolation.Mode
		change func(*isolation.Node)
		want   contract.Isolation
		// wantErr is part of the reason.
		wantErr string
	}{
		"all is there":                 {isolation.ModeAuto, func(*isolation.Node) {}, contract.IsolationCgroup, ""},
		"not wanted":                   {isolation.ModeNone, func(*isolation.Node) {}, contract.IsolationNone, ""},
		"an older driver":              {isolation.ModeAuto, func(n *isolation.Node) { n.Driver = "575.51.03" }, contract.IsolationNone, "older than release 615"},
		"cgroup v1":                    {isolation.ModeAuto, func(n *isolation.Node) { n.CgroupRoot = t.TempDir() }, contract.IsolationNone, "cgroup v2"},
		"no toolkit":                   {isolation.ModeAuto, func(n *isolation.Node) { n.CDIDirs = []string{t.TempDir()} }, contract.IsolationNone, "nvidia-ctk"},
		"nobody says that it has one":  {isolation.ModeAuto, func(n *isolation.Node) { n.NVIDIAKind = "" }, contract.IsolationNone, "--nvidia-cdi-kind"},
		"the operator vouches for it":  {isolation.ModeCgroup, func(n *isolation.Node) { n.NVIDIAKind = "" }, contract.IsolationCgroup, ""},
		"demanded and impossible":      {isolation.ModeCgroup, func(n *isolation.Node) { n.Driver = "575" }, contract.IsolationNone, "older than release 615"},
		"the driver refuses":           {isolation.ModeAuto, func(n *isolation.Node) { n.Limits.(*limits).fail = nvml.ErrNotSupported }, contract.IsolationNone, "not supported"},
		"the limit is not the one set": {isolation.ModeAuto, func(n *isolation.Node) { n.Limits.(*limits).lie = true }, contract.IsolationNone, "set a limit of 1024"},
		"no GPU":                       {isolation.ModeAuto, func(n *isolation.Node) { n.GPUs = nil }, contract.IsolationNone, "no GPU answers"},
		"not a mode":                   {"mps", func(*isolation.Node) {}, contract.IsolationNone, "not known"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			n := node(t)
			tc.change(&n)
			got, err := isolation.Decide(tc.mode, n)
			if got != tc.want {
				t.Errorf("Decide = %q; want %q", got, tc.want)
			}
			if tc.wantErr == "" && err != nil || tc.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tc.wantErr)) {
				t.Errorf("error %v; want %q", err, tc.wantErr)
			}
			if left, err := filepath.Glob(filepath.Join(n.CgroupRoot, "tranche-trial-*")); err != nil || len(left) > 0 {
				t.Errorf("trial cgroups left: %v %v", left, err)
			}
		})
	}
}

func TestTheReasonIsKept(t *testing.T) {
	n := node(t)
	n.Limits.(*limits).fail = nvml.ErrNotSupported
	if _, err := isolation.Decide(isolation.ModeCgroup, n); !errors.Is(err, nvml.ErrNotSupported) {
		t.Errorf("Decide: %v", err)
	}
}
